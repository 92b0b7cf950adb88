"""The kernel that multiplies a batch of rows by a packed weight; and which kernel a step's rows
take:

    rows             1 .. 8                      9 .. 64                     65 ..
    4 and 8 bits     the kernel for few rows     tiles; the copy of a        the copy; tiles
    5 and 6 bits     tiles; the copy of a small weight                       where none is kept

``matmul_kernels``, for few rows, gives a warp 16 or 32 outputs, and each tile reads all
activations: at 32 rows three times what its weights are. Here a program's warps share one tile's
activations, and features are split where outputs alone would not occupy the card:

    program (tile of outputs, split of features, tile of rows) -> sums (splits, rows, outputs)

Splits are added up in order, so a product is the same each time, and so are a row's sums in tiles
of 16, 32 and 64 rows. The tables are from what was measured on one H100 (compute capability 9.0;
decision 21), and may not be the fastest for other cards."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference.models.cuda.matmul_kernels import group_values
from inference.models.cuda.packed_layout import Packed
from inference.models.cuda.trials import LEAST_CAPABILITY


@triton.jit(do_not_specialize=["num_rows", "split_steps", "in_groups", "num_tiles"])
def packed_batch_kernel(
    x,
    words,
    high_words,
    scales,
    row_scales,
    table,
    product,
    num_rows,
    out_features,
    split_steps,
    in_groups,
    num_tiles,
    bits: tl.constexpr,
    zero: tl.constexpr,
    group_features: tl.constexpr,
    has_minimums: tl.constexpr,
    is_float: tl.constexpr,
    fills_steps: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_rows: tl.constexpr,
    step_tiles: tl.constexpr,
    stages: tl.constexpr,
    is_exact: tl.constexpr,
):
    """Grid (tiles of outputs, splits, tiles of rows). ``product`` (splits, rows, outputs): float32
    where there are several splits. ``fills_steps``: no feature is padding."""
    precision: tl.constexpr = "ieee" if is_exact else "tf32"
    planes: tl.constexpr = 2 if bits == 8 else 4
    tile_words: tl.constexpr = group_features // 2
    tile_features: tl.constexpr = planes * group_features
    word_groups: tl.constexpr = 1 if has_minimums else 2
    # As products with constants, so that the compiler knows how rows are aligned.
    row_words = num_tiles * tile_words
    in_features = in_groups * group_features

    outputs = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)
    rows = tl.program_id(2) * tile_rows + tl.arange(0, tile_rows)
    is_output = (outputs < out_features)[:, None]
    is_row = (rows < num_rows)[None, :]
    within = tl.arange(0, tile_words)[None, :]
    word_places = outputs[:, None] * row_words + within
    high_places = outputs[:, None] * (row_words // 2) + within
    features = tl.arange(0, tile_features)[:, None]
    x_places = rows.to(tl.int64)[None, :] * in_features + features

    first_step = tl.program_id(1) * split_steps
    last_step = tl.minimum(first_step + split_steps, num_tiles // step_tiles)
    summed = tl.zeros([tile_outputs, tile_rows], tl.float32)
    for step in tl.range(first_step, last_step, num_stages=stages):
        for within_step in tl.static_range(step_tiles):
            tile = step * step_tiles + within_step
            codes = tl.load(words + word_places + tile * tile_words, mask=is_output, other=0)
            high_codes = 0
            if bits == 6:
                # A word for two tiles.
                if within_step % 2 == 0:
                    places = high_places + (tile // 2) * tile_words
                    pair_codes = tl.load(high_words + places, mask=is_output, other=0)
                high_codes = pair_codes
            first_group = scales + (tile * planes // word_groups) * out_features
            values = tile_values(
                codes, high_codes, first_group + outputs[:, None], is_output, out_features, table,
                4 * (within_step % 2), bits, zero, has_minimums, is_float,
            )  # fmt: skip
            is_there = is_row
            if not fills_steps:
                is_there = is_there & (features + tile * tile_features < in_features)
            places = x_places + tile * tile_features
            activations = tl.load(x + places, mask=is_there, other=0.0)
            if is_exact:
                activations = activations.to(tl.float32)
            summed = tl.dot(
                values.to(activations.dtype), activations, summed, input_precision=precision
            )
    summed *= tl.load(row_scales + outputs[:, None], mask=is_output, other=0.0)
    split_rows = tl.program_id(1).to(tl.int64) * num_rows + rows
    places = split_rows[None, :] * out_features + outputs[:, None]
    tl.store(product + places, summed.to(product.dtype.element_ty), mask=is_row & is_output)


@triton.jit
def tile_values(
    codes,
    high_codes,
    scales,
    is_output,
    out_features,
    table,
    first_high_plane: tl.constexpr,
    bits: tl.constexpr,
    zero: tl.constexpr,
    has_minimums: tl.constexpr,
    is_float: tl.constexpr,
):
    """A tile's weights, float32 (outputs, features of all planes), in units of ``row_scales``.
    ``scales`` (outputs, 1): where the words of the tile's first group are."""
    first = tl.load(scales, mask=is_output, other=0)
    second = first
    if has_minimums:
        second = tl.load(scales + out_features, mask=is_output, other=0)
    value_0 = group_values(
        codes, high_codes, first, table, 0, first_high_plane, bits, zero, has_minimums, is_float
    )
    value_1 = group_values(
        codes, high_codes, second, table, 1, first_high_plane + 1, bits, zero, has_minimums,
        is_float,
    )  # fmt: skip
    if bits == 8:
        pairs = tl.join(value_0, value_1).permute(0, 2, 1)
        values = pairs.reshape(codes.shape[0], 4 * codes.shape[1])
    else:
        scales += 2 * out_features if has_minimums else out_features
        third = tl.load(scales, mask=is_output, other=0)
        fourth = third
        if has_minimums:
            fourth = tl.load(scales + out_features, mask=is_output, other=0)
        value_2 = group_values(
            codes, high_codes, third, table, 2, first_high_plane + 2, bits, zero, has_minimums,
            is_float,
        )  # fmt: skip
        value_3 = group_values(
            codes, high_codes, fourth, table, 3, first_high_plane + 3, bits, zero, has_minimums,
            is_float,
        )  # fmt: skip
        quads = tl.join(tl.join(value_0, value_2), tl.join(value_1, value_3)).permute(0, 2, 3, 1)
        values = quads.reshape(codes.shape[0], 8 * codes.shape[1])
    return values


@triton.jit(do_not_specialize=["num_values", "num_splits"])
def sum_splits_kernel(partial, product, num_values, num_splits, block: tl.constexpr):
    """Grid (blocks of values). ``partial`` (splits, values) float32."""
    places = tl.program_id(0) * block + tl.arange(0, block)
    mask = places < num_values
    summed = tl.zeros([block], tl.float32)
    of_split = partial + places
    for _ in tl.range(0, num_splits):
        summed += tl.load(of_split, mask=mask, other=0.0)
        of_split += num_values
    tl.store(product + places, summed.to(product.dtype.element_ty), mask=mask)


ROWS = (16, 32, 64)
LEAST_SPLIT_STEPS = 4
"""Steps of the kernel's loop that a split has at least: fewer would not fill its pipeline."""
SPLIT_OUTPUTS = 256
"""Features are split until a multiprocessor has so many outputs; half was slower (8B)."""
SUMMED_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class BatchTile:
    outputs: int
    step_tiles: int
    """Tiles per step of the loop, where they divide a row's; at least 2 for 5 and 6 bits."""
    warps: int
    stages: int


LEAST_BATCH_ROWS: dict[int, int] = {4: 9, 6: 1, 8: 9}
"""The rows from which on a batch is the faster, by the kernels' bits of a code."""
_NARROW = BatchTile(outputs=64, step_tiles=1, warps=4, stages=4)
_LONG = BatchTile(outputs=64, step_tiles=2, warps=4, stages=3)
BATCH_TILES: dict[tuple[int, int], BatchTile] = {
    (4, 16): _NARROW,
    (4, 32): _NARROW,
    (4, 64): BatchTile(outputs=128, step_tiles=1, warps=8, stages=4),
    (6, 16): _LONG,
    (6, 32): _LONG,
    # A third stage makes Q6_K 10 % faster and five bits with minimums 17 % slower.
    (6, 64): BatchTile(outputs=64, step_tiles=2, warps=4, stages=2),
    (8, 16): _LONG,
    (8, 32): _LONG,
    (8, 64): _LONG,
}
"""By bits of a code and rows of a tile; each fits the 99 KiB of any card since 8.0. Each is within
9 % of the best for layers of 8B and 1.7B models, 14 % with 5 or 6 bits in 64 rows."""
COPY_WEIGHTS: dict[tuple[int, int], int] = {
    (4, 16): 10_000_000,
    (4, 32): 10_000_000,
    (4, 64): 40_000_000,
    (6, 16): 10_000_000,
    (6, 32): 20_000_000,
    (6, 64): 120_000_000,
    (8, 16): 10_000_000,
    (8, 32): 10_000_000,
    (8, 64): 60_000_000,
}
"""The most weights (outputs times inputs) of which a bfloat16 copy is faster than the tile, by the
same keys: the tile's unpacking grows with its rows."""


def has_batch_kernel(device: torch.device) -> bool:
    if device.type != "cuda":
        return True  # Triton's interpreter
    # On older cards Triton multiplies these tiles without tensor cores.
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


def batch_tile(bits: int, num_rows: int) -> BatchTile | None:
    """``None``: ``packed``'s kernel for few rows."""
    least = LEAST_BATCH_ROWS.get(bits)
    if least is None or num_rows < least:
        return None
    return BATCH_TILES[bits, tile_rows(num_rows)]


def is_copy_faster(bits: int, num_rows: int, num_weights: int) -> bool:
    if num_rows > max(ROWS):
        # Each tile of rows unpacks the weight again: two take longer than the copy, of any weight.
        return True
    if batch_tile(bits, num_rows) is None:
        return False  # the kernel for few rows was the faster with every weight
    return num_weights <= COPY_WEIGHTS[bits, tile_rows(num_rows)]


def tile_rows(num_rows: int) -> int:
    return next((rows for rows in ROWS if rows >= num_rows), max(ROWS))


def num_splits(outputs: int, num_steps: int, num_processors: int) -> int:
    """``outputs``: over all tiles of rows."""
    most = max(1, num_steps // LEAST_SPLIT_STEPS)
    splits = max(1, min(SPLIT_OUTPUTS * num_processors // outputs, most))
    return int(triton.cdiv(num_steps, triton.cdiv(num_steps, splits)))


def batch_product(
    packed: Packed, x: torch.Tensor, out_features: int, tile: BatchTile, num_processors: int
) -> torch.Tensor:
    """``x`` (rows, in_features) times the weight: (rows, out_features) of its dtype."""
    layout, rows = packed.layout, tile_rows(len(x))
    bits, group_features = layout["bits"], layout["group_features"]
    num_tiles = packed.words.shape[1] // packed.tile_words
    step_tiles = tile.step_tiles if num_tiles % tile.step_tiles == 0 else 1
    if bits == 6:  # a word of upper bits is of two tiles
        step_tiles = max(2, step_tiles)
    num_steps = num_tiles // step_tiles
    output_tiles, row_tiles = triton.cdiv(out_features, tile.outputs), triton.cdiv(len(x), rows)
    splits = num_splits(out_features * row_tiles, num_steps, num_processors)
    product = x.new_empty(len(x), out_features)
    sums = product
    if splits > 1:
        sums = x.new_empty(splits, len(x), out_features, dtype=torch.float32)
    packed_batch_kernel[output_tiles, splits, row_tiles](
        x.contiguous(),
        packed.words,
        packed.high_words,
        packed.scales,
        packed.row_scales,
        packed.table,
        sums,
        len(x),
        out_features,
        triton.cdiv(num_steps, splits),
        layout["in_features"] // group_features,
        num_tiles,
        bits=bits,
        zero=layout["zero"],
        group_features=group_features,
        has_minimums=layout["has_minimums"],
        is_float=layout["is_float"],
        fills_steps=layout["in_features"] == layout["padded_features"],
        tile_outputs=tile.outputs,
        tile_rows=rows,
        step_tiles=step_tiles,
        stages=tile.stages,
        # Triton's interpreter cannot multiply bfloat16.
        is_exact=x.dtype == torch.float32 or x.device.type == "cpu",
        num_warps=tile.warps,
    )
    if splits > 1:
        grid = (triton.cdiv(product.numel(), SUMMED_BLOCK),)
        sum_splits_kernel[grid](sums, product, product.numel(), splits, block=SUMMED_BLOCK)
    return product
