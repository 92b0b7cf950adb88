"""Which child of an engine has sent nothing for too long. Pure: it counts checks and not seconds,
since all processes of a host may stand still together."""

from __future__ import annotations

CHECK_INTERVAL_S = 1.0
SILENT_CHECKS = 8
"""A child that runs sends a message every second. One that has sent none in more checks in a row
than this is stopped or stuck."""
SILENCE_S = SILENT_CHECKS * CHECK_INTERVAL_S


class SilentChildren:
    """Any thread may call."""

    def __init__(self, num_children: int) -> None:
        self._num_checks = [0] * num_children
        """Checks since each child's last message. One that arrives during a check may be lost: the
        next message counts."""

    def note_message(self, index: int) -> None:
        """The child has sent something."""
        self._num_checks[index] = 0

    def check(self) -> int | None:
        """Counts one check. Returns a child that has been silent for too many, if there is one."""
        self._num_checks = [number + 1 for number in self._num_checks]
        silent = (i for i, number in enumerate(self._num_checks) if number > SILENT_CHECKS)
        return next(silent, None)
