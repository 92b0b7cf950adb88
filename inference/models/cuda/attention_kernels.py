"""Triton kernels: attention over paged keys and values, softmax online in float32.

Online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867; tiles of a prompt: Dao 2023,
arXiv:2307.08691; parts of one row's context side by side: flash-decoding (Dao et al. 2023).

Scores are in base 2: ``score_scale`` holds log2(e). A sink is one more score of a head's softmax,
which adds nothing to the sum. A constexpr named ``padded_...`` is the power of two, 16 at least,
that ``tl.dot`` wants. ``block_ids`` has a row of ``row_blocks`` for each sequence, and
``sequences`` has each row's own. Where they lie is never specialised on: a kernel would be compiled
again while it serves.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_tile(
    entries,
    scales,
    block_ids,
    tokens,
    is_token,
    kv_head,
    which: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    block_tokens: tl.constexpr,
    group_features: tl.constexpr,
    has_scales: tl.constexpr,
    dtype: tl.constexpr,
):
    """(tokens, padded_dim) keys (``which`` 0) or values (1) of one head of a sequence."""
    blocks = tl.load(block_ids + tokens // block_tokens, mask=is_token, other=0).to(tl.int64)
    heads = ((blocks * block_tokens + tokens % block_tokens) * 2 + which) * num_kv_heads + kv_head
    dims = tl.arange(0, padded_dim)
    mask = is_token[:, None] & (dims < head_dim)[None, :]
    tile = tl.load(entries + heads[:, None] * head_dim + dims[None, :], mask=mask, other=0.0)
    if has_scales:
        num_groups: tl.constexpr = (head_dim + group_features - 1) // group_features
        group: tl.constexpr = min(group_features, padded_dim)
        padded_groups: tl.constexpr = padded_dim // group
        groups = tl.arange(0, padded_groups)
        is_group = is_token[:, None] & (groups < num_groups)[None, :]
        places = heads[:, None] * num_groups + groups[None, :]
        scale = tl.load(scales + places, mask=is_group, other=0.0)
        by_group = tile.to(tl.float32).reshape(tokens.shape[0], padded_groups, group)
        result = (by_group * scale[:, :, None]).reshape(tokens.shape[0], padded_dim).to(dtype)
    else:
        result = tile.to(dtype)
    return result


@triton.jit
def attend_tile(
    query,
    keys,
    values,
    is_visible,
    largest,
    total,
    summed,
    score_scale,
    soft_cap: tl.constexpr,
    is_exact: tl.constexpr,
):
    """One step of the online softmax: (rows, dim) queries over a tile of keys and values."""
    precision: tl.constexpr = "ieee" if is_exact else "tf32"
    scores = tl.dot(query, tl.trans(keys), input_precision=precision) * score_scale
    if soft_cap > 0:
        # cap * tanh(x / cap), in base 2: score_scale divides by the cap and doubles.
        scores = (soft_cap * LOG2_E) * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
    scores = tl.where(is_visible, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    # A row that has seen nothing yet: any finite number keeps inf - inf out of the exponent.
    pivot = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores - pivot[:, None])
    shrink = tl.exp2(largest - pivot)
    total = total * shrink + tl.sum(weights, 1)
    summed = summed * shrink[:, None]
    summed += tl.dot(weights.to(values.dtype), values, input_precision=precision)
    return new_largest, total, summed


@triton.jit(
    do_not_specialize=["row_blocks"],
    do_not_specialize_on_alignment=["block_ids", "sequences", "positions"],
)
def decode_kernel(
    queries,
    entries,
    scales,
    block_ids,
    sequences,
    positions,
    partial_sums,
    partial_softmax,
    score_scale,
    row_blocks,
    num_kv_heads: tl.constexpr,
    group_heads: tl.constexpr,
    padded_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    block_tokens: tl.constexpr,
    tile_tokens: tl.constexpr,
    smallest_part: tl.constexpr,
    most_parts: tl.constexpr,
    window: tl.constexpr,
    is_chunked: tl.constexpr,
    soft_cap: tl.constexpr,
    group_features: tl.constexpr,
    has_scales: tl.constexpr,
    is_exact: tl.constexpr,
):
    """Grid (rows, kv_heads, any number): the last axis shares out the parts of a row's context.

        context of a row   0 ...... [ first tile that the window leaves ... position ]
                                    [ part 0 | part 1 | ......... | part n - 1       ]

    How a context is cut depends on its own length alone, and ``reduce_kernel`` adds the parts up in
    order, so that a row's numbers do not depend on the batch's other rows.
    """
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(positions + row).to(tl.int32) + 1
    sequence_blocks = block_ids + tl.load(sequences + row).to(tl.int64) * row_blocks
    begin = 0
    if window > 0:
        begin = first_seen(length - 1, window, is_chunked) // tile_tokens * tile_tokens
    part_tokens = part_size(length - begin, tile_tokens, smallest_part, most_parts)
    num_parts = tl.cdiv(length - begin, part_tokens)

    heads, dims = tl.arange(0, padded_heads), tl.arange(0, padded_dim)
    first_head = (row * num_kv_heads + kv_head) * group_heads
    is_query = (heads < group_heads)[:, None] & (dims < head_dim)[None, :]
    query_places = (first_head + heads)[:, None] * head_dim + dims[None, :]
    query = tl.load(queries + query_places, mask=is_query, other=0.0)
    if is_exact:
        query = query.to(tl.float32)
    for part in range(tl.program_id(2), num_parts, tl.num_programs(2)):
        start = begin + part * part_tokens
        end = tl.minimum(start + part_tokens, length)
        largest = tl.full([padded_heads], float("-inf"), tl.float32)
        total = tl.zeros([padded_heads], tl.float32)
        summed = tl.zeros([padded_heads, padded_dim], tl.float32)
        for first in range(start, end, tile_tokens):
            tokens = first + tl.arange(0, tile_tokens)
            is_token = tokens < end
            if window > 0:
                is_token = is_token & (tokens >= first_seen(length - 1, window, is_chunked))
            keys = load_tile(
                entries, scales, sequence_blocks, tokens, is_token, kv_head, 0,
                num_kv_heads, head_dim, padded_dim, block_tokens, group_features, has_scales,
                query.dtype,
            )  # fmt: skip
            values = load_tile(
                entries, scales, sequence_blocks, tokens, is_token, kv_head, 1,
                num_kv_heads, head_dim, padded_dim, block_tokens, group_features, has_scales,
                query.dtype,
            )  # fmt: skip
            largest, total, summed = attend_tile(
                query, keys, values, is_token[None, :], largest, total, summed, score_scale,
                soft_cap, is_exact,
            )  # fmt: skip
        places = (first_head + heads) * most_parts + part
        is_head = heads < group_heads
        tl.store(partial_softmax + places * 2, largest, mask=is_head)
        tl.store(partial_softmax + places * 2 + 1, total, mask=is_head)
        sums = partial_sums + places[:, None] * head_dim + dims[None, :]
        tl.store(sums, summed, mask=is_query)


@triton.jit(do_not_specialize_on_alignment=["positions"])
def reduce_kernel(
    partial_sums,
    partial_softmax,
    positions,
    sinks,
    attended,
    num_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_tokens: tl.constexpr,
    smallest_part: tl.constexpr,
    most_parts: tl.constexpr,
    window: tl.constexpr,
    is_chunked: tl.constexpr,
):
    """Grid (rows, heads): adds up the parts of ``decode_kernel``, and the head's sink if any."""
    row = tl.program_id(0).to(tl.int64)
    place = row * num_heads + tl.program_id(1)
    length = tl.load(positions + row).to(tl.int32) + 1
    begin = 0
    if window > 0:
        begin = first_seen(length - 1, window, is_chunked) // tile_tokens * tile_tokens
    num_parts = tl.cdiv(
        length - begin, part_size(length - begin, tile_tokens, smallest_part, most_parts)
    )
    parts, dims = tl.arange(0, most_parts), tl.arange(0, padded_dim)
    is_part = parts < num_parts
    softmax = partial_softmax + (place * most_parts + parts) * 2
    largest = tl.load(softmax, mask=is_part, other=float("-inf"))
    totals = tl.load(softmax + 1, mask=is_part, other=0.0)
    pivot = tl.max(largest, 0)
    if sinks is not None:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32) * LOG2_E
        pivot = tl.maximum(pivot, sink)
    shares = tl.exp2(largest - pivot)
    total = tl.sum(totals * shares, 0)
    if sinks is not None:
        total += tl.exp2(sink - pivot)
    sums = tl.load(
        partial_sums + (place * most_parts + parts)[:, None] * head_dim + dims[None, :],
        mask=is_part[:, None] & (dims < head_dim)[None, :],
        other=0.0,
    )
    result = tl.sum(sums * shares[:, None], 0) / total
    result = result.to(attended.dtype.element_ty)
    tl.store(attended + place * head_dim + dims, result, mask=dims < head_dim)


@triton.jit
def first_seen(position, window: tl.constexpr, is_chunked: tl.constexpr):
    if is_chunked:
        return position // window * window
    return tl.maximum(position + 1 - window, 0)


@triton.jit
def part_size(
    num_tokens,
    tile_tokens: tl.constexpr,
    smallest_part: tl.constexpr,
    most_parts: tl.constexpr,
):
    """Whole tiles: ``smallest_part`` tokens, or more where ``most_parts`` would not reach."""
    share = tl.cdiv(tl.cdiv(num_tokens, most_parts), tile_tokens) * tile_tokens
    return tl.maximum(share, smallest_part)


@triton.jit(
    do_not_specialize=["row_blocks"], do_not_specialize_on_alignment=["block_ids", "last_seen"]
)
def prefill_kernel(
    queries,
    entries,
    scales,
    block_ids,
    tiles,
    last_seen,
    sinks,
    attended,
    score_scale,
    row_blocks,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    block_tokens: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    window: tl.constexpr,
    is_chunked: tl.constexpr,
    soft_cap: tl.constexpr,
    group_features: tl.constexpr,
    has_scales: tl.constexpr,
    is_exact: tl.constexpr,
):
    """Grid (tiles of prompt rows, heads). A tile: first row in the batch, number of rows, first
    position, sequence. ``last_seen``: the last position each row attends to; ``None``: its own."""
    tile, head = tiles + tl.program_id(0) * 4, tl.program_id(1)
    first_row = tl.load(tile).to(tl.int64)
    num_rows = tl.load(tile + 1).to(tl.int32)
    position = tl.load(tile + 2).to(tl.int32)
    sequence_blocks = block_ids + tl.load(tile + 3).to(tl.int64) * row_blocks
    kv_head = head // (num_heads // num_kv_heads)

    rows, dims = tl.arange(0, tile_rows), tl.arange(0, padded_dim)
    is_row = (rows < num_rows)[:, None] & (dims < head_dim)[None, :]
    places = ((first_row + rows) * num_heads + head)[:, None] * head_dim + dims[None, :]
    query = tl.load(queries + places, mask=is_row, other=0.0)
    if is_exact:
        query = query.to(tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        largest = tl.zeros([tile_rows], tl.float32) + sink
        total = tl.full([tile_rows], 1.0, tl.float32)
    else:
        largest = tl.full([tile_rows], float("-inf"), tl.float32)
        total = tl.zeros([tile_rows], tl.float32)
    summed = tl.zeros([tile_rows, padded_dim], tl.float32)
    begin = 0
    if window > 0:
        begin = first_seen(position, window, is_chunked) // tile_tokens * tile_tokens
    last = position + rows
    end = position + num_rows
    if last_seen is not None:
        last = tl.load(last_seen + first_row + rows, mask=rows < num_rows, other=0).to(tl.int32)
        end = tl.max(last, 0) + 1
    for first in range(begin, end, tile_tokens):
        tokens = first + tl.arange(0, tile_tokens)
        is_visible = tokens[None, :] <= last[:, None]
        is_held = tokens < end
        if window > 0:
            oldest = first_seen(position + rows, window, is_chunked)
            is_visible = is_visible & (tokens[None, :] >= oldest[:, None])
            # Earlier blocks may belong to another sequence already.
            is_held = is_held & (tokens >= first_seen(position, window, is_chunked))
        keys = load_tile(
            entries, scales, sequence_blocks, tokens, is_held, kv_head, 0,
            num_kv_heads, head_dim, padded_dim, block_tokens, group_features, has_scales,
            query.dtype,
        )  # fmt: skip
        values = load_tile(
            entries, scales, sequence_blocks, tokens, is_held, kv_head, 1,
            num_kv_heads, head_dim, padded_dim, block_tokens, group_features, has_scales,
            query.dtype,
        )  # fmt: skip
        largest, total, summed = attend_tile(
            query, keys, values, is_visible, largest, total, summed, score_scale, soft_cap, is_exact
        )
    result = (summed / total[:, None]).to(attended.dtype.element_ty)
    tl.store(attended + places, result, mask=is_row)
