"""The operator's console: one line per step, from any thread. Standard library only."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading

from inference.logs import formatter_for, is_json, one_line

STEP_WIDTH = 11
JSON_RECORD = re.compile(r'\{"ts": ".*\}')
_lock = threading.Lock()


class BootstrapError(Exception):
    """The text is the line for the operator: the failure, and the remedy. The exit code is 1."""


def print_step(step: str, text: str) -> None:
    print_line(f"{step:<{STEP_WIDTH}} {text}")


def print_line(line: str) -> None:
    if is_json(os.environ):
        record = logging.LogRecord("helexa_site.bootstrap", logging.INFO, "", 0, line, None, None)
        _print(formatter_for("serve", os.environ).format(record))
    else:
        _print(one_line(line))


def relay(step: str, line: str) -> None:
    if is_json(os.environ) and JSON_RECORD.fullmatch(line):
        _print(line)
    else:
        print_step(step, line)


def complain(text: str) -> None:
    _print(f"helexa: {text}", is_error=True)


def _print(line: str, *, is_error: bool = False) -> None:
    with _lock, contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr if is_error else sys.stdout, flush=True)
