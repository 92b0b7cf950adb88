"""The meaning of a command's exit codes, for scripts. Documented in docs/operating/install.md."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    REFUSED = 1
    """It failed, or a value is not allowed."""
    USAGE = 2
    """The command line is wrong. argparse exits with it."""
    NOT_FOUND = 3
    CONFLICT = 4
    """The present state does not allow it."""
    DENIED = 5
    """The key is missing or wrong, or lacks the permission."""
    UNAVAILABLE = 6
    """The server, its database or its Redis does not answer. The same command may succeed later."""


BY_STATUS = {
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
    429: ExitCode.UNAVAILABLE,
    502: ExitCode.UNAVAILABLE,
    503: ExitCode.UNAVAILABLE,
    504: ExitCode.UNAVAILABLE,
}


def exit_code(http_status: int) -> ExitCode:
    return BY_STATUS.get(http_status, ExitCode.REFUSED)
