"""Host memory that loaded models may still take, which the system counts as free until they do.

On a CPU an engine gets the pages of its KV as blocks come into use, and a step's activations only
while it runs: both were promised when it was loaded. On CUDA they are taken at once. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import psutil

from inference.protocol.heartbeat import DeviceInfo
from inference.protocol.load import LoadReport


def promised_bytes(report: LoadReport, held_bytes: int) -> int:
    """What an engine that was loaded so may take of the host beyond what it holds."""
    if report.device != "cpu":
        return 0
    return max(0, report.process_bytes + report.actual_bytes - held_bytes)


def held_bytes(pid: int) -> int:
    """Memory of that process that no file stands behind; 0 for one that has ended."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss) - int(getattr(memory, "shared", 0))


def without_promised(devices: Iterable[DeviceInfo], num_bytes: int) -> list[DeviceInfo]:
    """The devices, with so many bytes of the host's memory counted as taken."""
    return [
        msgspec.structs.replace(
            device, free_memory_bytes=max(0, device.free_memory_bytes - num_bytes)
        )
        if device.kind == "cpu"
        else device
        for device in devices
    ]
