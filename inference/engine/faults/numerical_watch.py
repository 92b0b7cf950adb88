"""When logits that are not numbers say more of the device than of a prompt. Pure counting."""

from __future__ import annotations

from inference.engine.faults.kinds import DeviceFault

SUSPICIOUS_STEPS = 8
"""Each ends every sequence that it samples, so it takes as many requests, all of them failing and
none between them that succeeds."""


class NumericalWatch:
    def __init__(self) -> None:
        self._num_steps = 0

    def record(self, *, num_rows: int, num_failed: int) -> None:
        """Records one step. Raises ``DeviceFault`` when no row has been a number for too long."""
        if num_rows == 0:
            return
        self._num_steps = self._num_steps + 1 if num_failed == num_rows else 0
        if self._num_steps >= SUSPICIOUS_STEPS:
            raise DeviceFault(f"no row was a number in {self._num_steps} steps in a row")
