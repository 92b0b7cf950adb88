"""A card's work as captured graphs, how long work takes there, and how many multiprocessors it has.

Times choose between kernels, and are what benchmarks print; on a CPU the same code can be tried
out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch

CARD = torch.device("cuda")
NUM_WARMUPS = 5
NUM_TIMED = 20


class CudaCapture:
    """Captures device work as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        """The graphs that are still there: torch ends a pool with its last graph, and refuses to
        capture into one that has ended, as after a sleep."""

    def __call__(self, forward: Callable[[], None]) -> Callable[[], None]:
        """Runs ``forward`` once before it is captured: kernels are compiled and libraries take
        their workspaces then, neither of which a capture allows."""
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self._device)
        aside: torch.cuda.Stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            forward()
        current.wait_stream(aside)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            forward()
        self._graphs.add(graph)
        return graph.replay


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


def processor_count(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
