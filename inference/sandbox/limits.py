"""How much one job may take: processor time, memory and output. Set by the worker for itself, so
that they hold without anybody watching; the pool watches the clock beside them.

All limits grow with the job's frame: a long conversation may take longer than a short one.
"""

from __future__ import annotations

import resource
import signal
from pathlib import Path

MIB = 1024 * 1024
PAGE_BYTES = resource.getpagesize()
STATM = Path("/proc/self/statm")

CPU_S = 3.0
CPU_S_PER_MIB = 0.5
MEMORY_BYTES = 256 * MIB
MEMORY_PER_BYTE = 40
"""A character may take four bytes, and a rendered turn is copied several times."""
OUTPUT_BYTES = 16 * MIB
OUTPUT_PER_BYTE = 4
STACK_BYTES = 4 * MIB
"""Half of a thread's in an engine: what overflows there overflows here first."""
GROWTH_BYTES = 64 * MIB
"""A worker that has grown by so much ends after its job; the next one is forked."""


def cpu_s(num_bytes: int) -> float:
    return CPU_S + CPU_S_PER_MIB * num_bytes / MIB


def memory_bytes(num_bytes: int) -> int:
    return MEMORY_BYTES + MEMORY_PER_BYTE * num_bytes


def output_bytes(num_bytes: int) -> int:
    return OUTPUT_BYTES + OUTPUT_PER_BYTE * num_bytes


def limit_process() -> None:
    """Sets the limits of a new worker; called once."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_STACK, STACK_BYTES)
    # The kernel ends it: a handler of Python's would wait for the C code to return.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def limit_job(num_bytes: int) -> None:
    """Sets a job's limits, until ``lift_limits``: more processor time ends the process, more memory
    fails."""
    _limit(resource.RLIMIT_DATA, data_bytes() + memory_bytes(num_bytes))
    signal.setitimer(signal.ITIMER_PROF, cpu_s(num_bytes))


def lift_limits() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit(which: int, num_bytes: int) -> None:
    """A host's own limit stays, where that is lower."""
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or num_bytes < hard:
        resource.setrlimit(which, (num_bytes, hard))


def data_bytes() -> int:
    """Bytes that the kernel counts against ``RLIMIT_DATA``."""
    return int(STATM.read_bytes().split()[5]) * PAGE_BYTES
