"""All experts of a layer's projection on the card, packed as their files hold them. Codes lie as
``packed_layout``'s do, one expert's after the other's; those of MXFP4 and fp8 are floats. Programs
read their rows' expert on the device, so a step can be captured:

    entries     [ expert 0 ....... ][ expert 2 . ][ expert 3 .................. ]
    tiles       [ tile 0 ][ tile 1 ][ tile 2     ][ tile 3 ][ tile 4 ][ tile 5  ]   of tile_rows

The grid has as many tiles as there may be at most; those beyond the last end at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from inference.models.cuda.matmul_kernels import packed_product
from inference.models.cuda.packed import TILES, Tile
from inference.models.cuda.packed_layout import Packed, pack, pack_codes
from inference.models.stored_weights import (
    GROUP_FEATURES,
    NO_CODE,
    DenseWeight,
    ExpertWeight,
    Fp8Weight,
    GroupedWeight,
    codes_of,
)


@triton.jit
def find_tile(
    ends,
    tile,
    num_experts: tl.constexpr,
    padded_experts: tl.constexpr,
    tile_rows: tl.constexpr,
):
    """A tile's expert (``num_experts`` or more: no such tile), first entry, its expert's end."""
    experts = tl.arange(0, padded_experts)
    is_expert = experts < num_experts
    is_later = is_expert & (experts > 0)
    # A load's places stay within the tensor whether it is masked or not.
    before = tl.where(is_later, experts - 1, 0)
    their_ends = tl.load(ends + tl.where(is_expert, experts, 0), mask=is_expert, other=0)
    starts = tl.load(ends + before, mask=is_later, other=0)
    counts = tl.where(is_expert, their_ends - starts, 0)
    tiles = (counts + tile_rows - 1) // tile_rows
    last_tiles = tl.cumsum(tiles, 0)
    expert = tl.sum((last_tiles <= tile).to(tl.int32), 0)
    is_own = experts == expert
    first_tile = tl.sum(tl.where(is_own, last_tiles - tiles, 0), 0)
    first = tl.sum(tl.where(is_own, starts, 0), 0) + (tile - first_tile) * tile_rows
    return expert, first, tl.sum(tl.where(is_own, their_ends, 0), 0)


@triton.jit
def dense_product(
    x,
    weight,
    x_rows,
    is_row,
    outputs,
    in_features: tl.constexpr,
    step_features: tl.constexpr,
    stages: tl.constexpr,
    is_exact: tl.constexpr,
):
    """``x_rows`` of ``x`` times ``outputs`` of ``weight`` (out, in): float32 (outputs, rows)."""
    precision: tl.constexpr = "ieee" if is_exact else "tf32"
    within = tl.arange(0, step_features)
    x_places = x_rows.to(tl.int64)[None, :] * in_features
    weight_places = outputs.to(tl.int64)[:, None] * in_features
    summed = tl.zeros([outputs.shape[0], x_rows.shape[0]], tl.float32)
    for first in tl.range(0, in_features, step_features, num_stages=stages):
        features = first + within
        is_feature = features < in_features
        values = tl.load(
            weight + weight_places + features[None, :], mask=is_feature[None, :], other=0.0
        )
        activations = tl.load(
            x + x_places + features[:, None], mask=is_feature[:, None] & is_row[None, :], other=0.0
        )
        if is_exact:
            activations = activations.to(tl.float32)
        summed = tl.dot(
            values.to(activations.dtype), activations, summed, input_precision=precision
        )
    return summed


@triton.jit(do_not_specialize_on_alignment=["rows"])
def expert_matmul_kernel(
    x,
    rows,
    ends,
    words,
    high_words,
    scales,
    row_scales,
    table,
    product,
    out_features,
    num_experts: tl.constexpr,
    padded_experts: tl.constexpr,
    in_features: tl.constexpr,
    padded_features: tl.constexpr,
    bits: tl.constexpr,
    zero: tl.constexpr,
    group_features: tl.constexpr,
    has_minimums: tl.constexpr,
    is_float: tl.constexpr,
    parts: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_rows: tl.constexpr,
    stages: tl.constexpr,
    is_exact: tl.constexpr,
):
    """Grid (tiles of outputs, most tiles of rows). ``rows``: each entry's row of ``x``; ``None``:
    its own. ``words``: all experts', one after the other; with 16 bits they are dense weights."""
    expert, first, end = find_tile(ends, tl.program_id(1), num_experts, padded_experts, tile_rows)
    if expert < num_experts:
        outputs = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)
        some_outputs = tl.minimum(outputs, out_features - 1)
        entries = first + tl.arange(0, tile_rows)
        is_entry = entries < end
        if rows is not None:
            x_rows = tl.load(rows + entries, mask=is_entry, other=0)
        else:
            x_rows = tl.where(is_entry, entries, 0)
        skipped = expert.to(tl.int64) * out_features
        if bits == 16:
            result = dense_product(
                x, words + skipped * in_features, x_rows, is_entry, some_outputs, in_features,
                group_features, stages, is_exact,
            )  # fmt: skip
        else:
            planes: tl.constexpr = 2 if bits == 8 else 4
            row_words: tl.constexpr = padded_features // (2 * planes)
            word_groups: tl.constexpr = 1 if has_minimums else 2
            own_high_words = high_words
            if bits == 6:
                own_high_words = high_words + skipped * (row_words // 2)
            own_scales = scales + skipped * (padded_features // group_features // word_groups)
            result = packed_product(
                x, words + skipped * row_words, own_high_words, own_scales, table, x_rows, is_entry,
                some_outputs, out_features, in_features, padded_features, bits, zero,
                group_features, has_minimums, is_float, parts, stages, is_exact,
            )  # fmt: skip
            result *= tl.load(row_scales + skipped + some_outputs)[:, None]
        places = entries.to(tl.int64)[None, :] * out_features + outputs[:, None]
        mask = is_entry[None, :] & (outputs < out_features)[:, None]
        tl.store(product + places, result.to(product.dtype.element_ty), mask=mask)


DENSE_BITS = 16
"""Stands for a code's bits with a dense weight of any dtype."""
DENSE_STEP_FEATURES = 64
DENSE_WARPS = 4
DENSE_TILES = {8: Tile(64, 3), 16: Tile(64, 3), 32: Tile(64, 3), 64: Tile(64, 3)}


class UnlikeExpertsError(Exception):
    pass


class TritonProduct:
    """A ``GroupedProduct`` that launches one kernel and waits for nothing."""

    def __init__(self, packed: Packed, num_experts: int) -> None:
        """``packed``'s tensors have all experts' along their first axis."""
        self.packed, self.num_experts = packed, num_experts
        self.out_features = packed.words.shape[1]

    def __call__(
        self, x: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        packed, is_dense = self.packed, self.packed.layout["bits"] == DENSE_BITS
        num_entries = len(x) if rows is None else len(rows)
        tiles = DENSE_TILES if is_dense else TILES
        tile_rows = chosen_tile_rows(tiles, num_entries, self.num_experts)
        tile, out_features = tiles[tile_rows], self.out_features
        product = x.new_empty(num_entries, out_features)
        grid = (
            triton.cdiv(out_features, tile.outputs),
            most_tiles(num_entries, self.num_experts, tile_rows),
        )
        expert_matmul_kernel[grid](
            x.contiguous(),
            rows,
            ends,
            packed.words,
            packed.high_words,
            packed.scales,
            packed.row_scales,
            packed.table,
            product,
            out_features,
            num_experts=self.num_experts,
            padded_experts=triton.next_power_of_2(self.num_experts),
            **packed.layout,
            parts=packed.parts,
            tile_outputs=tile.outputs,
            tile_rows=tile_rows,
            stages=tile.stages,
            # Triton's interpreter cannot multiply bfloat16.
            is_exact=x.dtype == torch.float32 or x.device.type == "cpu",
            num_warps=DENSE_WARPS if is_dense else packed.parts,
        )
        return product


def chosen_tile_rows(tiles: dict[int, Tile], num_entries: int, num_experts: int) -> int:
    """Enough for an expert with its share: the real counts are known on the device alone."""
    share = -(-num_entries // num_experts)
    return next((rows for rows in tiles if rows >= share), max(tiles))


def most_tiles(num_entries: int, num_experts: int, tile_rows: int) -> int:
    """Counts one tile that is not full for each expert that may have entries."""
    with_entries = min(num_entries, num_experts)
    return with_entries + (num_entries - with_entries) // tile_rows


def stacked_product(
    stored: Callable[[int], ExpertWeight],
    num_experts: int,
    device: torch.device,
    dtype: torch.dtype,
) -> TritonProduct:
    """Experts, (out_features, in_features) each, are copied one by one, so that no second copy of
    all is made. ``dtype`` is the activations'. Raises ``UnlikeExpertsError``."""
    first = pack_expert(stored(0), device, dtype)
    stacks: dict[str, Any] = {
        name: tensor.new_empty((num_experts, *tensor.shape))
        for name, tensor in _tensors(first).items()
    }
    for index in range(num_experts):
        packed = pack_expert(stored(index), device, dtype) if index else first
        if not packed.is_like(first):
            raise UnlikeExpertsError(f"expert {index} is not stored as the first is")
        for name, tensor in _tensors(packed).items():
            stacks[name][index] = tensor
    return TritonProduct(replace(first, **stacks), num_experts)


def pack_expert(weight: ExpertWeight, device: torch.device, dtype: torch.dtype) -> Packed:
    if isinstance(weight, DenseWeight):
        return _dense(weight, device, dtype)
    if isinstance(weight, Fp8Weight):
        return _fp8(weight, device)
    if isinstance(weight, GroupedWeight) and (codes := mxfp4_codes(weight)) is not None:
        scales = 2 * weight.scales.to(device).float()
        return pack_codes(codes.to(device), 0, 4, scales, None, is_float=True)
    return pack(weight, device)


def mxfp4_codes(weight: GroupedWeight) -> torch.Tensor | None:
    """(out, in) uint8 codes of four bits; ``None``: not every code is twice an MXFP4 number."""
    if weight.bits != 8 or weight.minimums is not None:
        return None
    found = codes_of(weight.codes)
    return None if bool((found == NO_CODE).any()) else found


def _dense(weight: DenseWeight, device: torch.device, dtype: torch.dtype) -> Packed:
    in_features = weight.shape[1]
    layout = {
        "in_features": in_features,
        "padded_features": in_features,
        "bits": DENSE_BITS,
        "zero": 0,
        "group_features": DENSE_STEP_FEATURES,
        "has_minimums": False,
        "is_float": False,
    }
    return Packed(weight.weight.to(device, dtype), None, None, None, layout, parts=1)


def _fp8(weight: Fp8Weight, device: torch.device) -> Packed:
    codes = weight.codes.to(device).view(torch.uint8)
    scales = weight.group_scales(GROUP_FEATURES).to(device)
    return pack_codes(codes, 0, 8, scales, None, is_float=True)


def expert_format(packed: Packed) -> str:
    bits, is_float = packed.layout["bits"], packed.layout["is_float"]
    if bits == DENSE_BITS:
        return "dense"
    if packed.table is not None:
        return "codes in a table"
    if is_float:
        return "fp8 codes" if bits == 8 else "MXFP4 codes"
    return f"{bits}-bit codes"


def _tensors(packed: Packed) -> dict[str, torch.Tensor]:
    names: Sequence[str] = ("words", "high_words", "scales", "row_scales")
    found = {name: getattr(packed, name) for name in names}
    return {name: tensor for name, tensor in found.items() if tensor is not None}
