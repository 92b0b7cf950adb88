"""Captures device work as CUDA graphs that share one pool of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch


class CudaCapture:
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
