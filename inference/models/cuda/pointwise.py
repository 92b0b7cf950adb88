"""The residual sum with its norm, and the MLP's gate, by one Triton kernel each, where torch's
operators need two. Every value is rounded where torch's operators round it."""

import torch
import triton
import triton.language as tl
from torch.nn.functional import rms_norm


@triton.jit
def add_and_norm_kernel(
    hidden,
    added,
    weight,
    summed,
    normed,
    eps,
    features: tl.constexpr,
    padded_features: tl.constexpr,
):
    """Grid (rows,): ``summed`` is the sum, ``normed`` its norm."""
    places = tl.arange(0, padded_features)
    mask = places < features
    row = tl.program_id(0).to(tl.int64) * features
    dtype = summed.dtype.element_ty
    left = tl.load(hidden + row + places, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(added + row + places, mask=mask, other=0.0).to(tl.float32)
    rounded = (left + right).to(dtype)
    tl.store(summed + row + places, rounded, mask=mask)
    values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / features + eps)
    weights = tl.load(weight + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(normed + row + places, (values * scale * weights).to(dtype), mask=mask)


@triton.jit
def gate_kernel(
    gate_up,
    gated,
    features,
    block: tl.constexpr,
):
    """Grid (rows, blocks of features)."""
    places = tl.program_id(1) * block + tl.arange(0, block)
    mask = places < features
    row = tl.program_id(0).to(tl.int64)
    first = gate_up + row * 2 * features + places
    gate = tl.load(first, mask=mask, other=0.0)
    up = tl.load(first + features, mask=mask, other=0.0)
    exact = gate.to(tl.float32)
    opened = (exact / (1.0 + tl.exp(-exact))).to(gate.dtype)
    result = opened.to(tl.float32) * up.to(tl.float32)
    tl.store(gated + row * features + places, result.to(gate.dtype), mask=mask)


BLOCK_FEATURES = 1024
WIDEST_ROW_OF_A_WARP = 512
"""Features of a norm; a wider row has more warps."""


class TritonPointwise:
    def add_and_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if added is None:
            return hidden, rms_norm(hidden, weight.shape, weight, eps)
        num_rows, features = hidden.shape
        padded = triton.next_power_of_2(features)
        summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        add_and_norm_kernel[(num_rows,)](
            hidden.contiguous(),
            added.contiguous(),
            weight,
            summed,
            normed,
            eps,
            features=features,
            padded_features=padded,
            num_warps=min(max(padded // WIDEST_ROW_OF_A_WARP, 1), 16),
        )
        return summed, normed

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        num_rows, features = len(gate_up), gate_up.shape[1] // 2
        gated = gate_up.new_empty(num_rows, features)
        gate_kernel[(num_rows, triton.cdiv(features, BLOCK_FEATURES))](
            gate_up.contiguous(), gated, features, block=BLOCK_FEATURES
        )
        return gated
