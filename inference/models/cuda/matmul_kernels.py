"""Triton kernels that multiply rows by a weight of ``packed_layout``, or write it out.

Converting codes is the expensive part: under float16's bits of 1024 a code is 1024 + code, two to a
word, and the fused multiply-add of the group's scale and minimum removes the 1024. A code that is a
float (e4m3 or e2m1) is a float16 with its bits moved, times a power of two. A place in a table is
looked up with its neighbour: ``table`` has the two float16 of each of the 256 pairs in a word, a
kilobyte that stays in the multiprocessor's cache. ``tl.dot`` sums in float32.
"""

import triton
import triton.language as tl


@triton.jit
def group_values(
    codes,
    high_codes,
    scale_words,
    table,
    plane: tl.constexpr,
    high_plane: tl.constexpr,
    bits: tl.constexpr,
    zero: tl.constexpr,
    has_minimums: tl.constexpr,
    is_float: tl.constexpr,
):
    """float32 ([parts,] outputs, features) in units of ``row_scales``. ``codes`` ([parts,] outputs,
    features / 2): words whose halves hold a pair at ``plane``; ``high_codes`` the same, for 6 bits;
    ``scale_words`` ([parts,] outputs, 1); ``table`` (256,), for 4 bits alone."""
    if bits == 8:
        pairs = (codes >> (8 * plane)) & 0x00FF00FF
    else:
        pairs = (codes >> (4 * plane)) & 0x000F000F
        if bits == 6:
            pairs = pairs | (((high_codes >> (2 * high_plane)) & 0x00030003) << 4)
    if table is not None:
        pairs = tl.load(table + ((pairs | (pairs >> 12)) & 255))
    elif is_float and bits == 8:  # e4m3: float16 with 8 less in its exponents
        pairs = ((pairs & 0x007F007F) << 7) | ((pairs & 0x00800080) << 8)
    elif is_float:  # e2m1: 14 less
        pairs = ((pairs & 0x00070007) << 9) | ((pairs & 0x00080008) << 12)
    else:
        pairs = pairs | 0x64006400
    numbers = tl.join(half(pairs, 0), half(pairs, 1))
    if len(codes.shape) == 2:
        numbers = numbers.reshape(codes.shape[0], 2 * codes.shape[1])
    else:
        numbers = numbers.reshape(codes.shape[0], codes.shape[1], 2 * codes.shape[2])
    if has_minimums:
        scale = half(scale_words, 0)
        minimum = half(scale_words, 1)
    else:
        scale = half(scale_words, plane % 2)
        minimum = 0.0
    if is_float:
        unit: tl.constexpr = 256.0 if bits == 8 else 16384.0
        return numbers * (scale * unit)
    if table is not None:
        return numbers * scale
    return numbers * scale + (minimum - (1024.0 + zero) * scale)


@triton.jit
def half(words, which: tl.constexpr):
    """float32 of the float16 in a word's lower (0) or upper (1) half."""
    bits = ((words >> (16 * which)) & 0xFFFF).to(tl.int16)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def packed_product(
    x,
    words,
    high_words,
    scales,
    table,
    x_rows,
    is_row,
    outputs,
    out_features,
    in_features: tl.constexpr,
    padded_features: tl.constexpr,
    bits: tl.constexpr,
    zero: tl.constexpr,
    group_features: tl.constexpr,
    has_minimums: tl.constexpr,
    is_float: tl.constexpr,
    parts: tl.constexpr,
    stages: tl.constexpr,
    is_exact: tl.constexpr,
):
    """Rows ``x_rows`` of ``x`` times existing ``outputs``, in units of ``row_scales``: float32
    (outputs, rows). ``parts`` of the features, a warp's each, are added up in order: a row's sums
    depend on neither the number of rows nor its place in the tile."""
    precision: tl.constexpr = "ieee" if is_exact else "tf32"
    planes: tl.constexpr = 2 if bits == 8 else 4
    # A word of upper bits is for two tiles; otherwise one tile would be a short step.
    step_tiles: tl.constexpr = 1 if bits == 4 and group_features == 32 else 2
    tile_words: tl.constexpr = group_features // 2
    row_words: tl.constexpr = padded_features // (2 * planes)
    part_features: tl.constexpr = padded_features // parts
    groups: tl.constexpr = part_features // group_features
    word_groups: tl.constexpr = 1 if has_minimums else 2

    part = tl.arange(0, parts)[:, None, None]
    of_output = outputs[None, :, None]
    within = tl.arange(0, tile_words)[None, None, :]
    word_places = of_output * row_words + part * (row_words // parts) + within
    high_places = of_output * (row_words // 2) + part * (row_words // 2 // parts) + within
    scale_places = part * (groups // word_groups) * out_features + of_output
    features = part * part_features + tl.arange(0, group_features)[None, :, None]
    x_places = x_rows.to(tl.int64)[None, None, :] * in_features + features

    summed = tl.zeros([parts, outputs.shape[0], x_rows.shape[0]], tl.float32)
    for step in tl.range(0, groups // (planes * step_tiles), num_stages=stages):
        high_codes = 0
        if bits == 6:
            high_codes = tl.load(high_words + high_places + step * tile_words)
        for within_step in tl.static_range(step_tiles):
            tile = step * step_tiles + within_step
            codes = tl.load(words + word_places + tile * tile_words)
            for plane in tl.static_range(planes):
                group = tile * planes + plane
                if has_minimums or plane % 2 == 0:
                    places = scale_places + (group // word_groups) * out_features
                    scale_words = tl.load(scales + places)
                is_there = is_row[None, None, :]
                if padded_features != in_features:
                    is_there = is_there & (features + group * group_features < in_features)
                places = x_places + group * group_features
                activations = tl.load(x + places, mask=is_there, other=0.0)
                if is_exact:
                    activations = activations.to(tl.float32)
                values = group_values(
                    codes, high_codes, scale_words, table, plane, 4 * within_step + plane, bits,
                    zero, has_minimums, is_float,
                ).to(activations.dtype)  # fmt: skip
                summed = tl.dot(values, activations, summed, input_precision=precision)
    return tl.sum(summed, 0)


@triton.jit(do_not_specialize=["num_rows"])
def packed_matmul_kernel(
    x,
    words,
    high_words,
    scales,
    row_scales,
    table,
    product,
    num_rows,
    out_features,
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
    """Grid (tiles of outputs, tiles of rows)."""
    outputs = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)
    rows = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    # Values read for outputs out of range are not stored.
    some_outputs = tl.minimum(outputs, out_features - 1)
    result = packed_product(
        x, words, high_words, scales, table, rows, rows < num_rows, some_outputs, out_features,
        in_features, padded_features, bits, zero, group_features, has_minimums, is_float, parts,
        stages, is_exact,
    )  # fmt: skip
    result *= tl.load(row_scales + some_outputs)[:, None]
    places = rows.to(tl.int64)[None, :] * out_features + outputs[:, None]
    mask = (rows < num_rows)[None, :] & (outputs < out_features)[:, None]
    tl.store(product + places, result.to(product.dtype.element_ty), mask=mask)


@triton.jit
def unpack_kernel(
    words,
    high_words,
    scales,
    row_scales,
    table,
    weight,
    out_features,
    in_features: tl.constexpr,
    padded_features: tl.constexpr,
    bits: tl.constexpr,
    zero: tl.constexpr,
    group_features: tl.constexpr,
    has_minimums: tl.constexpr,
    is_float: tl.constexpr,
    tile_outputs: tl.constexpr,
):
    """Grid (tiles of outputs, tiles of words): the weight, (out_features, in_features)."""
    planes: tl.constexpr = 2 if bits == 8 else 4
    tile_words: tl.constexpr = group_features // 2
    row_words: tl.constexpr = padded_features // (2 * planes)
    word_groups: tl.constexpr = 1 if has_minimums else 2
    tile = tl.program_id(1)
    outputs = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)[None, :, None]
    is_output = outputs < out_features
    some_outputs = tl.minimum(outputs, out_features - 1)
    row_scale = tl.load(row_scales + some_outputs)
    within = tl.arange(0, tile_words)[None, None, :]
    codes = tl.load(words + some_outputs * row_words + tile * tile_words + within)
    high_codes = 0
    if bits == 6:
        places = some_outputs * (row_words // 2) + (tile // 2) * tile_words + within
        high_codes = tl.load(high_words + places) >> (8 * (tile % 2))
    for plane in tl.static_range(planes):
        group = tile * planes + plane
        scale_words = tl.load(scales + (group // word_groups) * out_features + some_outputs)
        values = group_values(
            codes, high_codes, scale_words, table, plane, plane, bits, zero, has_minimums, is_float
        )
        features = group * group_features + tl.arange(0, group_features)[None, None, :]
        places = outputs.to(tl.int64) * in_features + features
        result = (values * row_scale).to(weight.dtype.element_ty)
        tl.store(weight + places, result, mask=is_output & (features < in_features))
