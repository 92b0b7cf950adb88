"""Triton kernels: a batch of rows times a packed weight, in large tiles of outputs.

``matmul_kernels`` gives a warp 16 or 32 outputs, and each of its tiles reads all activations: at 32
rows that is three times what the tile's weights are. Here all warps of a program share the
activations of one tile, and the features are split over programs where outputs alone would not
occupy the card:

    program (tile of outputs, split of features, tile of rows) -> sums (splits, rows, outputs)

Splits are added up in order by ``sum_splits_kernel``, so a product is the same each time.
"""

import triton
import triton.language as tl

from inference.models.cuda.matmul_kernels import group_values


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
    """Grid (tiles of outputs, splits, tiles of rows). ``product`` (splits, rows, outputs): of one
    split in the activations' dtype, else float32. ``fills_steps``: no feature is padding."""
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
