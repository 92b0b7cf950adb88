"""What the operator sees: one line per step, from any thread. Standard library only."""

from __future__ import annotations

import contextlib
import sys
import threading

STEP_WIDTH = 11
_lock = threading.Lock()


def say(step: str, text: str) -> None:
    """``redis       private server started``. A console that went away is no error."""
    say_line(f"{step:<{STEP_WIDTH}} {text}")


def say_line(line: str) -> None:
    """One whole line, whoever else is printing."""
    with _lock, contextlib.suppress(OSError, ValueError):
        print(line, flush=True)


def complain(text: str) -> None:
    """The one line that a failed command leaves on standard error."""
    with _lock, contextlib.suppress(OSError, ValueError):
        print(f"helexa: {text}", file=sys.stderr, flush=True)
