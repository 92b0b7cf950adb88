"""The operator's console: one line per step, from any thread. Standard library only."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
import threading

from inference.logs.formatters import one_line
from inference.logs.setup import formatter_for, is_json

STEP_WIDTH = 11
JSON_RECORD = re.compile(r'\{"ts": ".*\}')
_lock = threading.Lock()


def print_step(step: str, text: str) -> None:
    """``redis private server started``. A closed console is no error."""
    print_line(f"{step:<{STEP_WIDTH}} {text}")


def overwrite_line(step: str, text: str) -> None:
    """A line on a terminal that the next one overwrites; empty: removes it."""
    line = one_line(f"{step:<{STEP_WIDTH}} {text}")[: shutil.get_terminal_size().columns - 1]
    with _lock, contextlib.suppress(OSError, ValueError):
        print(f"\r\x1b[K{line.rstrip()}", end="", flush=True)


def print_line(line: str) -> None:
    _print(_json(line) if is_json(os.environ) else one_line(line))


def relay(step: str, line: str) -> None:
    """A line of another process's log. Its JSON stays unchanged."""
    if is_json(os.environ) and JSON_RECORD.fullmatch(line):
        _print(line)
    else:
        print_step(step, line)


def complain(text: str) -> None:
    with _lock, contextlib.suppress(OSError, ValueError):
        print(f"helexa: {text}", file=sys.stderr, flush=True)


def _print(line: str) -> None:
    with _lock, contextlib.suppress(OSError, ValueError):
        print(line, flush=True)


def _json(line: str) -> str:
    record = logging.LogRecord("helexa_site.bootstrap", logging.INFO, "", 0, line, None, None)
    return formatter_for("serve", os.environ).format(record)
