"""Triton kernel: rows that are sorted by expert, each times its expert's weight, packed or dense.

Programs read their rows' expert on the device, so a step can be captured and the host does not
wait.

    entries     [ expert 0 ....... ][ expert 2 . ][ expert 3 .................. ]
    tiles       [ tile 0 ][ tile 1 ][ tile 2     ][ tile 3 ][ tile 4 ][ tile 5  ]   of tile_rows

The grid has as many tiles as there may be at most; those beyond the last end at once.
"""

import triton
import triton.language as tl

from inference.models.cuda.matmul_kernels import packed_product


@triton.jit
def find_tile(
    ends,
    tile,
    num_experts: tl.constexpr,
    padded_experts: tl.constexpr,
    tile_rows: tl.constexpr,
):
    """The expert of a tile (``num_experts`` or more: there is no such tile), its first entry, and
    where its expert's entries end."""
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
    """Rows ``x_rows`` of ``x`` times the ``outputs`` of a weight (out_features, in_features):
    float32 (outputs, rows)."""
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
    """Grid (tiles of outputs, tiles of rows at most). ``rows``: which row of ``x`` each entry is,
    or ``None``: the one of its number. ``words`` are those of all experts, one after the other, and
    so are the rest; with 16 bits they are dense weights, and there are no others."""
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
