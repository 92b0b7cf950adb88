"""The memory of the host, or of the control group (version 2) that confines this process. No torch:
the neuron asks too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_bytes: int
    free_bytes: int


def host_memory(control_group: Path = CONTROL_GROUP) -> HostMemory:
    """Measured now: whichever of the two has less."""
    memory = psutil.virtual_memory()
    total_bytes, free_bytes = int(memory.total), int(memory.available)
    limit_bytes = _number(control_group / "memory.max")
    used_bytes = _number(control_group / "memory.current")
    if limit_bytes is None or used_bytes is None:
        return HostMemory(total_bytes, free_bytes)
    return HostMemory(
        min(total_bytes, limit_bytes), max(0, min(free_bytes, limit_bytes - used_bytes))
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no control groups, or "max"
        return None
