"""Whether a card runs the kernel for packed weights, rightly and as fast as torch's own: each
format is tried on some rows of the first weight that has it, and each shape timed where torch has a
kernel as well. Imports triton only to try."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from inference.models.cuda.timing import captured_ms
from inference.models.weights.stored import GROUP_FEATURES, PackedWeight, with_tensors
from inference.models.weights.weight_source import Linear

logger = logging.getLogger(__name__)

TRIAL_OUTPUTS = 64
TRIAL_ROWS = (5, 12, 30, 50)
"""Each in a tile of another size."""
LARGEST_ERROR = 0.02
"""Relative to the largest product: what bfloat16 may lose over a row."""


class PackedTrials:
    """Remembers the trials' results, for one device and one type of activations."""

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
        """Why this weight cannot stay packed, or ``None``. Raises nothing."""
        if weight.shape[1] % GROUP_FEATURES:
            return f"{weight.shape[1]} input features are not whole groups of {GROUP_FEATURES}"
        has_minimums = weight.minimums is not None
        key = type(weight), weight.bits, has_minimums, weight.shape[1], weight.scales.shape[1]
        if key not in self._reasons:
            self._reasons[key] = self._try(weight)
        return self._reasons[key]

    def is_slower(self, weight: PackedWeight, other: Callable[[], Linear]) -> bool:
        """Whether one row of a decode step takes longer than by ``other``'s kernel, which is built
        to compare. True where that cannot be measured. Raises nothing."""
        key = weight.bits, weight.minimums is not None, weight.shape
        if key not in self._are_slower:
            try:
                self._are_slower[key] = self._compare(weight, other())
            # Whatever a driver raises, no memory for a second copy among it.
            except Exception:
                logger.warning("packed weights were not timed on %s", self._device, exc_info=True)
                self._are_slower[key] = True
        return self._are_slower[key]

    def _compare(self, weight: PackedWeight, other: Linear) -> bool:
        from inference.models.cuda.packed import PackedLinear

        x = torch.ones(1, weight.shape[1], device=self._device, dtype=self._dtype)
        packed = PackedLinear(weight, self._device, self._dtype)
        ours_ms, others_ms = (
            self._milliseconds(lambda linear=linear: linear.decode(x), self._device)  # type: ignore[misc]
            for linear in (packed, other)
        )
        logger.info(
            "%d-bit weights, %d x %d: %.4f ms a row packed, %.4f by torch's kernel",
            weight.bits, *weight.shape, ours_ms, others_ms,
        )  # fmt: skip
        return ours_ms > others_ms

    def _try(self, weight: PackedWeight) -> str | None:
        some = with_tensors(weight, lambda tensor: tensor[:TRIAL_OUTPUTS])
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(max(TRIAL_ROWS), weight.shape[1], generator=generator)
        try:
            error = self._error(some, x.to(self._device, self._dtype))
        # Whatever a compiler, a driver or an old card raises: the weight is dequantised instead.
        except Exception as problem:
            logger.warning("no packed weights on %s", self._device, exc_info=True)
            return f"Triton: {type(problem).__name__}"
        return None if error <= LARGEST_ERROR else f"the Triton kernel was off by {error:.2g}"

    def _error(self, weight: PackedWeight, x: torch.Tensor) -> float:
        """The largest of the two phases', relative to the largest product."""
        from inference.models.cuda.packed import PackedLinear

        linear = PackedLinear(weight, self._device, self._dtype)
        wanted = x.float() @ weight.dequantize().to(self._device).T
        if weight.bias is not None:
            wanted = wanted + weight.bias.to(self._device).float()
        found = [(linear.decode(x[:rows]), wanted[:rows]) for rows in TRIAL_ROWS]
        found.append((linear.prefill(x), wanted))
        worst = max(float((product.float() - exact).abs().max()) for product, exact in found)
        return worst / max(float(wanted.abs().max()), 1e-6)
