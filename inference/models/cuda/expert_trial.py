"""Whether a card runs the kernel for experts, and rightly: tried on the first weight of each format
and shape, as ``packed_trial`` does. Imports triton only to try."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from inference.models.layers.grouped_product import GroupedProduct
from inference.models.weights.stored import GROUP_FEATURES, DenseWeight, ExpertWeight, written_out

logger = logging.getLogger(__name__)

TRIAL_COUNTS = (3, 1), (5, 13), (17, 16), (30, 41)
"""Entries of two experts, so that each size of tile has its turn."""
LARGEST_ERROR = 0.02
"""Relative to the largest product: what bfloat16 may lose over a row."""
LEAST_CAPABILITY = (8, 0)


def has_expert_kernel(device: torch.device) -> bool:
    """Whether one is built for the device; a trial checks whether it runs."""
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


class ExpertTrials:
    """Remembers the trials' results, for one device and one type of activations."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._reasons: dict[tuple[object, ...], str | None] = {}

    def reason_against(self, weight: ExpertWeight) -> str | None:
        """Why the kernel cannot take experts that are stored as ``weight`` is, or ``None``. Raises
        nothing."""
        if not isinstance(weight, DenseWeight) and weight.shape[1] % GROUP_FEATURES:
            return f"{weight.shape[1]} input features are not whole groups of {GROUP_FEATURES}"
        key = type(weight), getattr(weight, "bits", 0), _has_minimums(weight), weight.shape
        if key not in self._reasons:
            self._reasons[key] = self._try(weight)
        return self._reasons[key]

    def product(
        self, stored: Callable[[int], ExpertWeight], num_experts: int
    ) -> tuple[GroupedProduct, str]:
        """The product, and in words what it runs on. Raises ``UnlikeExpertsError``."""
        from inference.models.cuda.experts import expert_format, stacked_product

        product = stacked_product(stored, num_experts, self._device, self._dtype)
        return product, f"{expert_format(product.packed)} in a Triton kernel for experts"

    def _try(self, weight: ExpertWeight) -> str | None:
        try:
            error = self._error(weight)
        # Whatever a compiler, a driver or an old card raises: torch's grouped product takes over.
        except Exception as problem:
            logger.warning("no Triton kernel for experts on %s", self._device, exc_info=True)
            return f"Triton: {type(problem).__name__}"
        return None if error <= LARGEST_ERROR else f"the Triton kernel was off by {error:.2g}"

    def _error(self, weight: ExpertWeight) -> float:
        """The largest, relative to the largest product."""
        product, _ = self.product(lambda _: weight, 2)
        dense = written_out(weight).to(self._device, torch.float32)
        generator, worst = torch.Generator().manual_seed(0), 0.0
        for counts in TRIAL_COUNTS:
            x = torch.randn(sum(counts), weight.shape[1], generator=generator)
            x = x.to(self._device, self._dtype)
            ends = torch.tensor([counts[0], sum(counts)], dtype=torch.int32, device=self._device)
            rows = torch.arange(len(x), device=self._device)
            wanted = x.float() @ dense.T
            largest = max(float(wanted.abs().max()), 1e-6)
            found = product(x, ends, rows if counts[0] < counts[1] else None)
            worst = max(worst, float((found.float() - wanted).abs().max()) / largest)
        return worst


def _has_minimums(weight: ExpertWeight) -> bool:
    return getattr(weight, "minimums", None) is not None
