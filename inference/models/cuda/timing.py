"""How long work takes on a device: for choosing between kernels, and for benchmarks. Made for a
CUDA card; on a CPU the same code can be tried out."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from inference.models.cuda.capture import CudaCapture

CARD = torch.device("cuda")
NUM_WARMUPS = 5
NUM_TIMED = 20


def device_ms(work: Callable[[], object], device: torch.device = CARD) -> float:
    """Mean milliseconds of ``work``, back to back, after it was warmed up."""
    for _ in range(NUM_WARMUPS):
        work()
    if device.type != "cuda":
        return _host_ms(work) / NUM_TIMED
    with torch.cuda.device(device):
        return _card_ms(work) / NUM_TIMED


def captured_ms(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of ``work`` in a CUDA graph, as in a decode step: without what launching takes,
    and with the device's cache full of something else each time."""
    cache_bytes = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    other = torch.empty(cache_bytes, dtype=torch.uint8, device=device)

    def evict() -> None:
        other.zero_()

    def evict_and_work() -> None:
        evict()
        work()

    capture = CudaCapture(device)
    both, alone = capture(evict_and_work), capture(evict)
    return device_ms(both, device) - device_ms(alone, device)


def _card_ms(work: Callable[[], object]) -> float:
    began: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(NUM_TIMED):
        work()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended))


def _host_ms(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    for _ in range(NUM_TIMED):
        work()
    return (time.perf_counter() - began_s) * 1e3
