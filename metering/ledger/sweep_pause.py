"""Whether reservations of gateways that died may be swept yet. Belongs to the control's ticks.

While the database was away no lease was renewed, no bill written and no report settled: whatever
is late has ``SWEEP_GRACE_S`` to come first. A gateway that was restarted meanwhile writes the bills
that the one before it has spooled; what they are charged to must still be reserved then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fleet.control.leadership import Leadership
from metering.ledger.orphans import SWEEP_GRACE_S


class SweepPause:
    def __init__(self, control: Leadership, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``control`` has the same clock. One that has just begun to lead does not know for how
        long the database was away."""
        self._control = control
        self._clock = clock
        self._database_failed_s = float("-inf")

    def database_failed(self) -> None:
        self._database_failed_s = self._clock()

    @property
    def is_over(self) -> bool:
        began_s = self._control.term_began_s
        since_s = max(self._database_failed_s, float("-inf") if began_s is None else began_s)
        return self._clock() - since_s >= SWEEP_GRACE_S
