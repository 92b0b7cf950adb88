"""Memory that this process holds on the device that it runs a model on, and the peak of a step. One
gauge for each kind of device:

    open_gauge ─▶ … load weights … ─▶ watch ─▶ largest steps ─▶ used_bytes

On a CPU anonymous memory counts, swapped out or not. Pages of files are the page cache's, which the
system takes back when memory is short.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol

import psutil
import pynvml
import torch

from inference.garbage import release_freed_memory

STATUS_FILE = Path("/proc/self/status")
CLEAR_REFS_FILE = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""See proc(5), ``/proc/pid/clear_refs``: resets the peak to the resident size of now."""


class MemoryGauge(Protocol):
    @property
    def process_bytes(self) -> int:
        """Bytes of the process there with nothing loaded."""
        ...

    def watch(self) -> None:
        """Call it before the largest steps."""
        ...

    def used_bytes(self) -> int:
        """Peak bytes since ``watch``, beyond ``process_bytes``."""
        ...


class HostGauge:
    """Opened before anything is loaded, and before the process uses a card."""

    def __init__(self) -> None:
        release_freed_memory()
        self.process_bytes = anonymous_bytes()
        self.free_card_bytes = free_card_bytes()

    def watch(self) -> None:
        release_freed_memory()
        # Not Linux, or forbidden: a moment's peak then goes unseen.
        with contextlib.suppress(OSError):
            CLEAR_REFS_FILE.write_text(RESET_PEAK)

    def used_bytes(self) -> int:
        status = _status()
        # Both hold the same file pages, so their difference is memory that was used and freed.
        moment = max(0, status.get("VmHWM", 0) - status.get("VmRSS", 0))
        return anonymous_bytes() + moment - self.process_bytes


class CudaGauge:
    """torch's allocator keeps freed memory, so all that it has reserved counts; the process' share
    is the CUDA context and the libraries' memory. Where the driver does not list this process, as
    in a container, the share is what has left the card's free memory since, blurred by other
    processes."""

    def __init__(self, device: torch.device, free_at_open_bytes: int | None) -> None:
        """``free_at_open_bytes``: before this process used the card; ``None``: not reported."""
        self._device = device
        taken_bytes = cuda_process_bytes(device)
        if not taken_bytes and free_at_open_bytes is not None:
            taken_bytes = free_at_open_bytes - torch.cuda.mem_get_info(device)[0]
        self.process_bytes = max(0, taken_bytes - torch.cuda.memory_reserved(device))

    def watch(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def used_bytes(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._device))


def gauge_for(device: torch.device, host: HostGauge) -> MemoryGauge:
    if device.type != "cuda":
        return host
    return CudaGauge(device, host.free_card_bytes.get(card_uuid(device)))


def anonymous_bytes() -> int:
    """Without /proc: what the process shares with no other."""
    status = _status()
    if "RssAnon" not in status:
        return int(psutil.Process().memory_full_info().uss)
    return status["RssAnon"] + status.get("VmSwap", 0)


def free_cached(device: torch.device) -> None:
    release_freed_memory()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def allocated_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def card_uuid(device: torch.device) -> str:
    """As NVML writes it: ``GPU-…``."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def cuda_process_bytes(device: torch.device) -> int:
    """As the driver counts; 0 where it reports none (in a container the process has another id)."""
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(card_uuid(device))
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return 0
    return sum(process.usedGpuMemory or 0 for process in processes if process.pid == os.getpid())


def free_card_bytes() -> dict[str, int]:
    """By UUID, where NVML reports it. Asking torch would create a context on the card."""
    nvml: Any = pynvml
    found: dict[str, int] = {}
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                name = uuid.decode() if isinstance(uuid, bytes) else uuid
                found[name] = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    return found


def _status() -> dict[str, int]:
    try:
        lines = STATUS_FILE.read_text().splitlines()
    except OSError:
        return {}
    named = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.removesuffix("kB")) * 1024 for name, _, value in named}
