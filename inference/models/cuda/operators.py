"""Triton kernels for a decoder layer's operators, each in the place of several of torch's:

    rotation       norms of heads, rotation and the KV write of a step: about ten of torch's
    pointwise      the residual sum with its norm, and the MLP's gate: two each
    chunk states   the states that the chunks of a DeltaNet prompt begin with: one a chunk

Pointwise kernels round every value where torch's operators round it."""

import torch
import triton
import triton.language as tl
from torch.nn.functional import rms_norm

from inference.models.config import ModelConfig
from inference.models.device_step import DeviceStep
from inference.models.kv_format import GROUP_FEATURES
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.rope import (
    RopeTable,
    RotatedHeads,
    Rotation,
    torch_rotation,
)
from inference.models.paged_kv import LARGEST_CODE, LayerKV


@triton.jit
def load_head(
    head,
    dims,
    norm,
    eps,
    head_dim: tl.constexpr,
    has_norm: tl.constexpr,
):
    """float32 features at ``dims``, normed where there is a norm, and rounded as it rounds."""
    mask = dims < head_dim
    values = tl.load(head + dims, mask=mask, other=0.0)
    result = values.to(tl.float32)
    if has_norm:
        mean_square = tl.sum(tl.sum(result * result, 1), 0) / head_dim
        weight = tl.load(norm + dims, mask=mask, other=0.0).to(tl.float32)
        result = (result * tl.rsqrt(mean_square + eps) * weight).to(values.dtype).to(tl.float32)
    return result


# A step's positions and slots are slices of one upload: their alignment changes with its rows.
@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def rotate_kernel(
    qkv,
    query_norm,
    key_norm,
    cosines,
    sines,
    positions,
    slots,
    queries,
    entries,
    scales,
    eps,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_groups: tl.constexpr,
    group_features: tl.constexpr,
    has_norm: tl.constexpr,
    norms_rotated: tl.constexpr,
    has_scales: tl.constexpr,
    largest_code: tl.constexpr,
    is_integer: tl.constexpr,
):
    """Grid (rows, num_heads + 2 * num_kv_heads). Query heads go to ``queries``, the others to the
    row's slot. A head is (padded_groups, group_features), so that a group's largest is at hand."""
    row, index = tl.program_id(0).to(tl.int64), tl.program_id(1)
    groups, within = tl.arange(0, padded_groups), tl.arange(0, group_features)
    dims = groups[:, None] * group_features + within[None, :]
    mask = dims < head_dim
    head = qkv + (row * (num_heads + 2 * num_kv_heads) + index) * head_dim
    is_value = index >= num_heads + num_kv_heads
    if is_value:
        result = load_head(head, dims, query_norm, eps, head_dim, False)
    else:
        # A pointer of any kind where there is no norm: what reads it is not compiled then.
        norm = qkv
        if has_norm:
            norm = query_norm if index < num_heads else key_norm
        norms_first: tl.constexpr = has_norm and not norms_rotated
        values = load_head(head, dims, norm, eps, head_dim, norms_first)
        # The half that a feature is rotated with; its norm's sum is over the same features.
        others = tl.where(mask, (dims + head_dim // 2) % head_dim, dims)
        turned = load_head(head, others, norm, eps, head_dim, norms_first)
        angles = tl.load(positions + row) * head_dim + dims
        cosine = tl.load(cosines + angles, mask=mask, other=0.0)
        sine = tl.load(sines + angles, mask=mask, other=0.0)
        result = values * cosine + turned * sine
        if has_norm and norms_rotated:
            result = result.to(queries.dtype.element_ty).to(tl.float32)
            mean_square = tl.sum(tl.sum(result * result, 1), 0) / head_dim
            weight = tl.load(norm + dims, mask=mask, other=0.0).to(tl.float32)
            result = result * tl.rsqrt(mean_square + eps) * weight
    result = result.to(queries.dtype.element_ty)
    if index < num_heads:
        tl.store(queries + (row * num_heads + index) * head_dim + dims, result, mask=mask)
    else:
        which = (index - num_heads) // num_kv_heads
        slot = tl.load(slots + row)
        place = (slot * 2 + which) * num_kv_heads + (index - num_heads) % num_kv_heads
        if has_scales:
            exact = result.to(tl.float32)
            largest = tl.max(tl.abs(exact), 1)
            # The maximum ignores a NaN; the sum does not.
            largest = tl.where(tl.sum(exact, 1) == tl.sum(exact, 1), largest, float("nan"))
            scale = tl.where(largest == 0.0, 1.0, largest / largest_code)
            num_groups: tl.constexpr = (head_dim + group_features - 1) // group_features
            tl.store(scales + place * num_groups + groups, scale, mask=groups < num_groups)
            code = exact / scale[:, None]
            if is_integer:
                code = (code + 12582912.0) - 12582912.0  # 1.5 * 2**23: to the nearest whole number
            else:
                # To fp8's three bits of mantissa, ties to even: Triton's interpreter, converting,
                # forgets to carry into the exponent.
                pattern = code.to(tl.int32, bitcast=True)
                pattern = (pattern + 0x7FFFF + ((pattern >> 20) & 1)) & -0x100000
                code = pattern.to(tl.float32, bitcast=True)
            stored = code.to(entries.dtype.element_ty)
        else:
            stored = result.to(entries.dtype.element_ty)
        tl.store(entries + place * head_dim + dims, stored, mask=mask)


def triton_rotation(config: ModelConfig, rope: RopeTable, step: DeviceStep) -> Rotation:
    """Steps with images, which are rotated by rows and columns, take torch's operators."""
    if step.images is not None and step.images.rotary is not None:
        return torch_rotation(config, rope, step)

    def rotate(weights: AttentionMixer, qkv: torch.Tensor, layer_kv: LayerKV) -> RotatedHeads:
        num_rows, num_heads, head_dim = len(qkv), config.num_heads, config.head_dim
        dtype = layer_kv.entries.dtype
        queries = qkv.new_empty(num_rows, num_heads, head_dim)
        rotate_kernel[(num_rows, num_heads + 2 * config.num_kv_heads)](
            qkv.contiguous(),
            weights.query_norm,
            weights.key_norm,
            rope.cosines,
            rope.sines,
            step.positions,
            step.slots,
            queries,
            layer_kv.entries,
            layer_kv.scales,
            config.rms_norm_eps,
            num_heads=num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            padded_groups=padded_groups(head_dim),
            group_features=GROUP_FEATURES,
            has_norm=weights.query_norm is not None,
            norms_rotated=config.is_qk_norm_after_rotation,
            has_scales=layer_kv.scales is not None,
            largest_code=LARGEST_CODE.get(dtype, 1.0),
            is_integer=dtype == torch.int8,
            num_warps=1,
        )
        return RotatedHeads(queries)

    return rotate


def padded_groups(head_dim: int) -> int:
    return int(triton.next_power_of_2(-(-head_dim // GROUP_FEATURES)))


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
    """Grid (rows,)."""
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


@triton.jit(do_not_specialize=["num_chunks"])
def chunk_states_kernel(
    carried,
    written,
    state,
    before,
    after,
    num_chunks,
    num_heads: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    padded_keys: tl.constexpr,
    tile_values: tl.constexpr,
):
    """Grid (heads, tiles of values): S ← A S + B, chunk after chunk. Columns do not depend on each
    other: a program keeps its own in registers. ``carried`` (chunks, heads, keys, keys) are A,
    ``written`` (chunks, heads, keys, values) B."""
    head = tl.program_id(0)
    values = tl.program_id(1) * tile_values + tl.arange(0, tile_values)
    keys = tl.arange(0, padded_keys)
    is_key = keys < key_dim
    mask = is_key[:, None] & (values < value_dim)[None, :]
    of_state = keys[:, None] * value_dim + values[None, :]
    of_carried = keys[:, None] * key_dim + keys[None, :]
    state_numbers: tl.constexpr = key_dim * value_dim
    current = tl.load(state + head * state_numbers + of_state, mask=mask, other=0.0)
    place = head.to(tl.int64)
    for _ in range(num_chunks):
        tl.store(before + place * state_numbers + of_state, current, mask=mask)
        carries = tl.load(
            carried + place * (key_dim * key_dim) + of_carried,
            mask=is_key[:, None] & is_key[None, :],
            other=0.0,
        )
        writes = tl.load(written + place * state_numbers + of_state, mask=mask, other=0.0)
        current = tl.dot(carries, current, writes, input_precision="ieee")
        place += num_heads
    tl.store(after + head * state_numbers + of_state, current, mask=mask)


TILE_VALUES = 16
"""The values of a state that each program computes: what ``tl.dot`` takes at least."""


def triton_chunk_states(
    carried: torch.Tensor, written: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``state_rows.torch_chunk_states``."""
    num_chunks, num_heads, key_dim, value_dim = written.shape
    before, after = torch.empty_like(written), torch.empty_like(state)
    grid = num_heads, triton.cdiv(value_dim, TILE_VALUES)
    chunk_states_kernel[grid](
        carried.contiguous(),
        written.contiguous(),
        state.contiguous(),
        before,
        after,
        num_chunks,
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        padded_keys=max(TILE_VALUES, triton.next_power_of_2(key_dim)),
        tile_values=TILE_VALUES,
        num_warps=4,
        num_stages=1,  # a chunk's product takes most of a multiprocessor's memory
    )
    return before, after
