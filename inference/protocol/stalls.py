"""Shared timing rules of gateways and neurons for a stalled Redis.

    answered … answered │ pause │ answered ── settling ──▶ settled
                                  a missing key means nothing yet

Keys expire by Redis' own clock, which advances while Redis is stopped. So when Redis answers again,
all keys are gone although every process is alive. Each side gets a moment to write its keys before
the other side treats a missing key as a death.
"""

from __future__ import annotations

from inference.protocol.keys import HEARTBEAT_INTERVAL_S

KEPT_AFTER_LIMIT_S = 5.0
"""Neurons keep events this much longer than gateways wait, which detected the stall later."""
SETTLING_S = 5.0
"""Five beats: the time for others to write their keys again."""
MAX_GAP_S = 1.5 * HEARTBEAT_INTERVAL_S
"""Between two answers. During a shorter pause no key of a living process expires."""


class Continuity:
    """Whether Redis has answered without a pause for long enough to trust missing keys. Pure: times
    are arguments, on one clock."""

    def __init__(self) -> None:
        self._answered_s: float | None = None
        self._resumed_s: float | None = None
        self._was_interrupted = False

    def interrupted(self) -> None:
        self._was_interrupted = True

    def answered(self, now_s: float) -> None:
        was_long = self._answered_s is not None and now_s - self._answered_s > MAX_GAP_S
        if was_long or self._was_interrupted:
            self._resumed_s = now_s
        self._answered_s = now_s
        self._was_interrupted = False

    def is_settled(self, now_s: float) -> bool:
        return self._resumed_s is None or now_s - self._resumed_s >= SETTLING_S
