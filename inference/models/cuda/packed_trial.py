"""Whether a card runs the kernel for packed weights, and rightly: each format is tried on some rows
of the first weight that has it. Imports triton only to try."""

from __future__ import annotations

import logging

import torch

from inference.models.stored import GROUP_FEATURES, PackedWeight, with_tensors

logger = logging.getLogger(__name__)

TRIAL_OUTPUTS = 64
TRIAL_ROWS = 5
LARGEST_ERROR = 0.02
"""Relative to the largest product: what bfloat16 may lose over a row."""


class PackedTrials:
    """Remembers what was found, for one device and one type of activations."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._reasons: dict[tuple[type, int, bool, int], str | None] = {}

    def reason_against(self, weight: PackedWeight) -> str | None:
        """Why this weight cannot stay packed, or ``None``. Raises nothing."""
        if weight.shape[1] % GROUP_FEATURES:
            return f"{weight.shape[1]} input features are not whole groups of {GROUP_FEATURES}"
        has_minimums = weight.minimums is not None
        key = type(weight), weight.bits, has_minimums, weight.shape[1]
        if key not in self._reasons:
            self._reasons[key] = self._try(weight)
        return self._reasons[key]

    def _try(self, weight: PackedWeight) -> str | None:
        some = with_tensors(weight, lambda tensor: tensor[:TRIAL_OUTPUTS])
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(TRIAL_ROWS, weight.shape[1], generator=generator)
        x = x.to(self._device, self._dtype)
        try:
            error = self._error(some, x)
        # Whatever a compiler, a driver or an old card raises: the weight is dequantised instead.
        except Exception as problem:
            logger.warning("no packed weights on %s", self._device, exc_info=True)
            return f"Triton: {type(problem).__name__}"
        return None if error <= LARGEST_ERROR else f"the Triton kernel was off by {error:.2g}"

    def _error(self, weight: PackedWeight, x: torch.Tensor) -> float:
        """The larger of the two phases', relative to the largest product."""
        from inference.models.cuda.packed import PackedLinear

        linear = PackedLinear(weight, self._device, self._dtype)
        wanted = x.float() @ weight.dequantize().to(self._device).T
        if weight.bias is not None:
            wanted = wanted + weight.bias.to(self._device).float()
        worst = max(
            float((phase(x).float() - wanted).abs().max())
            for phase in (linear.decode, linear.prefill)
        )
        return worst / max(float(wanted.abs().max()), 1e-6)
