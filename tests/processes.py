"""Reads of processes that may end between being listed and being read."""

from __future__ import annotations

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Empty where the process has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
