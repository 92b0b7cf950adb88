"""Triton kernels: what a layer does to each row between its products. Every value is rounded where
torch's operators round it."""

import triton
import triton.language as tl


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
