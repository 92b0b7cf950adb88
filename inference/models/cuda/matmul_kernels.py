"""Triton kernel: rows times a packed weight, whose codes become numbers in registers.

The weight is ``inference.models.cuda.packed``'s. A tile's codes are loaded with each byte read by
the neighbours that share it, made float32, scaled, and rounded to the activations' type for
``tl.dot``, which sums in float32.
"""

import triton
import triton.language as tl


@triton.jit
def load_codes(
    codes,
    high_codes,
    row_places,
    features,
    mask,
    in_features: tl.constexpr,
    bits: tl.constexpr,
):
    """(features, rows) float32. Codes of 8 bits are signed bytes; of 4 two to a byte, the lower
    half first; of 6 the same, and their upper two bits four to a byte of ``high_codes``."""
    if bits == 8:
        places = row_places[None, :] * in_features + features[:, None]
        result = tl.load(codes + places, mask=mask, other=0).to(tl.float32)
    else:
        places = row_places[None, :] * (in_features // 2) + (features // 2)[:, None]
        packed = tl.load(codes + places, mask=mask, other=0).to(tl.int32)
        code = (packed >> ((features % 2) * 4)[:, None]) & 15
        if bits == 6:
            places = row_places[None, :] * (in_features // 4) + (features // 4)[:, None]
            high = tl.load(high_codes + places, mask=mask, other=0).to(tl.int32)
            code += ((high >> ((features % 4) * 2)[:, None]) & 3) << 4
        result = code.to(tl.float32)
    return result


@triton.jit
def load_scales(
    scales,
    super_scales,
    row_places,
    features,
    mask,
    in_features: tl.constexpr,
    group_features: tl.constexpr,
    super_features: tl.constexpr,
):
    """(features, rows) float32: a group's scale, times its super-block's where there are any
    (``super_features`` not 0)."""
    groups: tl.constexpr = in_features // group_features
    places = row_places[None, :] * groups + (features // group_features)[:, None]
    scale = tl.load(scales + places, mask=mask, other=0).to(tl.float32)
    if super_features > 0:
        blocks: tl.constexpr = in_features // super_features
        places = row_places[None, :] * blocks + (features // super_features)[:, None]
        scale *= tl.load(super_scales + places, mask=mask, other=0).to(tl.float32)
    return scale


@triton.jit(do_not_specialize=["num_rows"])
def packed_matmul_kernel(
    x,
    codes,
    high_codes,
    scales,
    super_scales,
    minimums,
    super_minimums,
    product,
    num_rows,
    in_features: tl.constexpr,
    out_features: tl.constexpr,
    bits: tl.constexpr,
    zero: tl.constexpr,
    group_features: tl.constexpr,
    super_features: tl.constexpr,
    has_minimums: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_features: tl.constexpr,
    is_exact: tl.constexpr,
):
    """Grid (tiles of output features, tiles of rows). How a row's products are summed depends on
    neither how many rows there are nor which of a tile's it is."""
    precision: tl.constexpr = "ieee" if is_exact else "tf32"
    outputs = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)
    rows = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    output_places = outputs.to(tl.int64)
    is_output, is_row = outputs < out_features, rows < num_rows
    summed = tl.zeros([tile_rows, tile_outputs], tl.float32)
    for first in range(0, in_features, tile_features):
        features = first + tl.arange(0, tile_features)
        is_feature = features < in_features
        x_places = rows.to(tl.int64)[:, None] * in_features + features[None, :]
        part = tl.load(x + x_places, mask=is_row[:, None] & is_feature[None, :], other=0.0)
        if is_exact:
            part = part.to(tl.float32)
        mask = is_feature[:, None] & is_output[None, :]
        weight = load_codes(
            codes, high_codes, output_places, features, mask, in_features, bits
        ) - zero  # fmt: skip
        weight *= load_scales(
            scales, super_scales, output_places, features, mask, in_features, group_features,
            super_features,
        )  # fmt: skip
        if has_minimums:
            weight += load_scales(
                minimums, super_minimums, output_places, features, mask, in_features,
                group_features, super_features,
            )  # fmt: skip
        summed += tl.dot(part, weight.to(part.dtype), input_precision=precision)
    places = rows.to(tl.int64)[:, None] * out_features + outputs[None, :]
    result = summed.to(product.dtype.element_ty)
    tl.store(product + places, result, mask=is_row[:, None] & is_output[None, :])
