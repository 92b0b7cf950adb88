"""File descriptors of this process: the limit, and how many of them clients may use.

    0 ────────────────────────── refuse_from ───────── stop_from ────────────── limit
      own files, clients           clients, refused      kept for the database,
                                   with an answer        Redis and files

The kernel gives a new connection the lowest free number, so it tells how many are in use.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

MOST = 1_048_576
"""The limit that is set where the hard limit is infinite: Linux' default bound."""
MAX_RESERVE = 128
"""Databases take up to three descriptors in each thread, and each upload and file one."""
MAX_REFUSED = 64


def raise_descriptor_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a bound of its own below the hard limit.
        return soft
    return wanted


@dataclass(frozen=True, slots=True)
class DescriptorMarks:
    limit: int
    refuse_from: int
    stop_from: int

    @classmethod
    def of_limit(cls, limit: int) -> DescriptorMarks:
        stop_from = limit - min(MAX_RESERVE, limit // 4)
        return cls(limit, stop_from - min(MAX_REFUSED, limit // 8), stop_from)
