"""How much of the host's memory a process holds, of what it was promised. No torch.

On a CPU an engine gets the pages of its KV as blocks come into use, and a step's activations only
while it runs: both were promised when it was loaded. On CUDA they are taken at once.
"""

from __future__ import annotations

import psutil


def held_bytes(pid: int) -> int:
    """Memory of that process that no file stands behind; 0 for one that has ended."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss) - int(getattr(memory, "shared", 0))
