"""How much of the host's memory a process holds, of what it was promised. No torch.

On a CPU an engine gets the pages of its KV as blocks come into use, and a step's activations only
while it runs: both were promised when it was loaded. On CUDA they are taken at once.
"""

from __future__ import annotations

from pathlib import Path

import psutil


def held_bytes(pid: int) -> int:
    """Memory of an engine, and of the ranks and stages that are its children, that no file stands
    behind; 0 for one that has ended."""
    return sum(map(_own_bytes, (pid, *_children_of(pid))))


def _own_bytes(pid: int) -> int:
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss) - int(getattr(memory, "shared", 0))


def _children_of(pid: int) -> list[int]:
    """Returns the children of the process's main thread, which starts them all. Empty where the
    system does not list them."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
