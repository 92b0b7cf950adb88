"""Whether reservations of gateways that died may be swept yet. Belongs to the control's ticks.

While the database was away no lease was renewed and no bill written: whatever is late has
``PAUSE_S`` to come first. A gateway that was restarted meanwhile writes the bills of the one before
it; what they are charged to should still be reserved then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fleet.control.leadership import Leadership

PAUSE_S = 15.0
"""Three renewals of a lease, and several looks for the files of gateways that died."""


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
        return self._clock() - since_s >= PAUSE_S
