"""Tries the kernels for packed weights on a card: whether they are right there, and as fast as
torch's own in a captured graph. Imports triton only to try."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from inference.models.stored_weights import (
    GROUP_FEATURES,
    DenseWeight,
    ExpertWeight,
    PackedWeight,
    with_tensors,
    written_out,
)
from inference.models.weight_source import GroupedProduct, Linear

if TYPE_CHECKING:
    from inference.models.cuda.packed import PackedLinear

logger = logging.getLogger(__name__)

TRIAL_OUTPUTS = 64
TRIAL_ROWS = (5, 12, 30, 50)
"""Numbers of rows, each in a tile of another size."""
TRIAL_COUNTS = (3, 1), (5, 13), (17, 16), (30, 41)
"""Entries of two experts, so that each size of tile has its turn."""
LARGEST_ERROR = 0.02
"""The error, relative to the largest product, that bfloat16 may make over a row."""
LEAST_CAPABILITY = (8, 0)
NUM_WARMUPS = 5
NUM_TIMED = 20


class CudaCapture:
    """Captures device work as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        """torch ends a pool with its last graph, and captures into no pool that has ended."""

    def __call__(self, forward: Callable[[], None]) -> Callable[[], None]:
        """Runs ``forward`` once before: a capture allows neither compiling nor new workspaces."""
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


def captured_ms(work: Callable[[], object], device: torch.device) -> float:
    """Excludes the launch; something else fills the device's cache each time."""
    cache_bytes = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    other = torch.empty(cache_bytes, dtype=torch.uint8, device=device)

    def evict() -> None:
        other.zero_()

    def evict_and_work() -> None:
        evict()
        work()

    capture = CudaCapture(device)
    both, alone = capture(evict_and_work), capture(evict)
    with torch.cuda.device(device):
        return _mean_ms(both) - _mean_ms(alone)


def _mean_ms(work: Callable[[], object]) -> float:
    for _ in range(NUM_WARMUPS):
        work()
    began: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(NUM_TIMED):
        work()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / NUM_TIMED


def processor_count(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def has_expert_kernel(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


class PackedTrials:
    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        milliseconds: Callable[[Callable[[], object], torch.device], float] = captured_ms,
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._milliseconds = milliseconds
        self._reasons: dict[tuple[type, int, bool, int, int], str | None] = {}
        self._are_slower: dict[tuple[int, bool, tuple[int, int]], bool] = {}

    def reason_against(self, weight: PackedWeight) -> str | None:
        """``None``: the weight can stay packed. Raises nothing."""
        if weight.shape[1] % GROUP_FEATURES:
            return _no_whole_groups(weight)
        has_minimums = weight.minimums is not None
        key = type(weight), weight.bits, has_minimums, weight.shape[1], weight.scales.shape[1]
        if key not in self._reasons:
            some = with_tensors(weight, lambda tensor: tensor[:TRIAL_OUTPUTS])
            self._reasons[key] = _reason("packed weights", self._device, lambda: self._error(some))
        return self._reasons[key]

    def is_slower(self, weight: PackedWeight, other: Callable[[], Linear]) -> bool:
        """True also where it cannot be measured. Raises nothing."""
        key = weight.bits, weight.minimums is not None, weight.shape
        if key not in self._are_slower:
            try:
                self._are_slower[key] = self._compare(weight, other())
            # Whatever a driver raises, also where there is no memory for a second copy.
            except Exception:
                logger.warning("packed weights were not timed on %s", self._device, exc_info=True)
                self._are_slower[key] = True
        return self._are_slower[key]

    def _compare(self, weight: PackedWeight, other: Linear) -> bool:
        x = torch.ones(1, weight.shape[1], device=self._device, dtype=self._dtype)
        ours_ms, others_ms = (
            self._milliseconds(lambda linear=linear: linear.decode(x), self._device)  # type: ignore[misc]
            for linear in (self._linear(weight), other)
        )
        logger.info(
            "%d-bit weights, %d x %d: %.4f ms a row packed, %.4f by torch's kernel",
            weight.bits, *weight.shape, ours_ms, others_ms,
        )  # fmt: skip
        return ours_ms > others_ms

    def _error(self, weight: PackedWeight) -> float:
        x = random_on(self._device, self._dtype, seed=0)(max(TRIAL_ROWS), weight.shape[1])
        linear = self._linear(weight)
        wanted = x.float() @ weight.dequantize().to(self._device).T
        if weight.bias is not None:
            wanted = wanted + weight.bias.to(self._device).float()
        found = [(linear.decode(x[:rows]), wanted[:rows]) for rows in TRIAL_ROWS]
        found.append((linear.prefill(x), wanted))
        worst = max(float((product.float() - exact).abs().max()) for product, exact in found)
        return worst / max(float(wanted.abs().max()), 1e-6)

    def _linear(self, weight: PackedWeight) -> PackedLinear:
        from inference.models.cuda.packed import PackedLinear

        return PackedLinear(weight, self._device, self._dtype)


class ExpertTrials:
    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._reasons: dict[tuple[object, ...], str | None] = {}

    def reason_against(self, weight: ExpertWeight) -> str | None:
        """``None``: the kernel takes experts stored as ``weight`` is. Raises nothing."""
        if not isinstance(weight, DenseWeight) and weight.shape[1] % GROUP_FEATURES:
            return _no_whole_groups(weight)
        has_minimums = getattr(weight, "minimums", None) is not None
        key = type(weight), getattr(weight, "bits", 0), has_minimums, weight.shape
        if key not in self._reasons:
            self._reasons[key] = _reason("experts", self._device, lambda: self._error(weight))
        return self._reasons[key]

    def product(
        self, stored: Callable[[int], ExpertWeight], num_experts: int
    ) -> tuple[GroupedProduct, str]:
        """The product, and in words what it runs on. Raises ``UnlikeExpertsError``."""
        from inference.models.cuda.experts import expert_format, stacked_product

        product = stacked_product(stored, num_experts, self._device, self._dtype)
        return product, f"{expert_format(product.packed)} in a Triton kernel for experts"

    def _error(self, weight: ExpertWeight) -> float:
        product, _ = self.product(lambda _: weight, 2)
        dense = written_out(weight).to(self._device, torch.float32)
        random, worst = random_on(self._device, self._dtype, seed=0), 0.0
        for counts in TRIAL_COUNTS:
            x = random(sum(counts), weight.shape[1])
            ends = torch.tensor([counts[0], sum(counts)], dtype=torch.int32, device=self._device)
            rows = torch.arange(len(x), device=self._device)
            wanted = x.float() @ dense.T
            largest = max(float(wanted.abs().max()), 1e-6)
            found = product(x, ends, rows if counts[0] < counts[1] else None)
            worst = max(worst, float((found.float() - wanted).abs().max()) / largest)
        return worst


def _no_whole_groups(weight: ExpertWeight) -> str:
    return f"{weight.shape[1]} input features are not whole groups of {GROUP_FEATURES}"


def random_on(
    device: torch.device, dtype: torch.dtype, *, seed: int
) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator).to(device, dtype)


def _reason(name: str, device: torch.device, trial: Callable[[], float]) -> str | None:
    try:
        error = trial()
    # Whatever a compiler, a driver or an old card raises: torch's operators need none of them.
    except Exception as problem:
        logger.warning("no Triton kernel for %s on %s", name, device, exc_info=True)
        return f"Triton: {type(problem).__name__}"
    return None if error <= LARGEST_ERROR else f"the Triton kernel was off by {error:.2g}"
