"""GGUF's quantised blocks, taken apart into codes and scales: no value changes.

Formats: ggml/src/ggml-common.h and ggml-quants.c. Q4_0 to Q8_0 are a scale (and a minimum) per 32
values: ``GroupedWeight``. Q2_K to Q6_K are blocks of 256 values with whole scales (and minimums)
per 16 or 32 and a float to scale those: ``SuperBlockWeight``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType as Type

from inference.loading.gguf.codebooks import (
    CODEBOOK_UNPACKERS,
    Blocks,
    Bytes,
    as_torch,
    bits_of,
    columns,
    half,
    joined,
    rows_of,
    spread,
)
from inference.models.stored_weights import TWICE_THE_MXFP4_VALUES as TWICE_MXFP4
from inference.models.stored_weights import (
    DenseWeight,
    GroupedWeight,
    StoredWeight,
    SuperBlockWeight,
)


def stored(blocks: Blocks, type: Type) -> StoredWeight:
    """(num_rows, num_features). Dense weights keep their dtype."""
    if type in UNPACKERS:
        return UNPACKERS[type](blocks)
    if type == Type.BF16:
        return DenseWeight(weight=as_torch(blocks.view(np.int16)).view(torch.bfloat16))
    dtype = np.float32 if type == Type.F32 else np.float16
    return DenseWeight(weight=as_torch(blocks.view(dtype)))


def _grouped(
    bits: int,
    codes: npt.NDArray[np.generic],
    scales: npt.NDArray[np.generic],
    minimums: npt.NDArray[np.generic] | None = None,
) -> GroupedWeight:
    return GroupedWeight(
        bits=bits,
        codes=rows_of(codes),
        scales=as_torch(scales),
        minimums=None if minimums is None else as_torch(minimums),
    )


def _q4_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][16 bytes]: w = d (q - 8)."""
    scale, packed = columns(blocks, (2, 16))
    scales = half(scale)
    return _grouped(4, spread(packed, 4), scales, scales * np.float32(-8))


def _q4_1(blocks: Blocks) -> GroupedWeight:
    """[f16 d][f16 m][16 bytes]: w = d q + m."""
    scale, minimum, packed = columns(blocks, (2, 2, 16))
    return _grouped(4, spread(packed, 4), half(scale), half(minimum))


def _q5_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][u32 fifth bits][16 bytes]: w = d (q - 16)."""
    scale, fifth, packed = columns(blocks, (2, 4, 16))
    codes = _five_bits(packed, fifth).astype(np.int8) - np.int8(16)
    return _grouped(5, codes, half(scale))


def _q5_1(blocks: Blocks) -> GroupedWeight:
    """[f16 d][f16 m][u32 fifth bits][16 bytes]: w = d q + m."""
    scale, minimum, fifth, packed = columns(blocks, (2, 2, 4, 16))
    return _grouped(5, _five_bits(packed, fifth), half(scale), half(minimum))


def _five_bits(packed: Bytes, fifth: Bytes) -> Bytes:
    return joined(spread(packed, 4), bits_of(fifth), 4)


def _q8_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][32 x i8]: w = d q."""
    scale, codes = columns(blocks, (2, 32))
    return _grouped(8, codes.copy().view(np.int8), half(scale))


def _mxfp4(blocks: Blocks) -> GroupedWeight:
    """[exponent + 127][16 bytes]: w = 2 ** exponent times a number of four bits. Twice such a
    number is whole: it is kept in 8 bits, exactly."""
    exponent, packed = columns(blocks, (1, 16))
    codes = np.array(TWICE_MXFP4, np.int8)[spread(packed, 4)]
    scales = np.ldexp(np.float32(1), exponent[:, :, 0].astype(np.int32) - 128)
    return replace(_grouped(8, codes, scales.astype(np.float32)), is_mxfp4=True)


def _super_block(
    bits: int,
    codes: Bytes,
    scales: npt.NDArray[np.generic],
    super_scale: Bytes,
    minimums: npt.NDArray[np.generic] | None = None,
    super_minimum: Bytes | None = None,
) -> SuperBlockWeight:
    """Super-scales are bytes. GGUF subtracts minimums; here they are added."""
    return SuperBlockWeight(
        bits=bits,
        codes=rows_of(codes),
        scales=rows_of(scales.astype(np.int8)),
        super_scales=as_torch(half(super_scale)),
        minimums=None if minimums is None else rows_of(minimums.astype(np.int8)),
        super_minimums=None if super_minimum is None else as_torch(-half(super_minimum)),
    )


def _q2_k(blocks: Blocks) -> SuperBlockWeight:
    """[16 bytes: 4-bit scales, 4-bit minimums][64 bytes][f16 d][f16 dmin]:
    w = (d s) q - dmin m, groups of 16."""
    both, packed, scale, minimum = columns(blocks, (16, 64, 2, 2))
    return _super_block(2, spread(packed, 2, 32), both & 0x0F, scale, both >> 4, minimum)


def _q3_k(blocks: Blocks) -> SuperBlockWeight:
    """[32 bytes: third bits][64 bytes][12 bytes: 6-bit scales][f16 d]:
    w = d (s - 32) (q - 4), groups of 16. Byte i has the third bits of values i, 32 + i, 64 + i …"""
    third, packed, packed_scales, scale = columns(blocks, (32, 64, 12, 2))
    codes = joined(spread(packed, 2, 32), spread(third, 1), 2)
    return _super_block(3, codes, _q3_k_scales(packed_scales), scale)


def _q4_k(blocks: Blocks) -> SuperBlockWeight:
    """[f16 d][f16 dmin][12 bytes: eight 6-bit scales and minimums][128 bytes]:
    w = (d s) q - dmin m, groups of 32."""
    scale, minimum, packed_scales, packed = columns(blocks, (2, 2, 12, 128))
    scales, minimums = _k_scales(packed_scales)
    return _super_block(4, spread(packed, 4, 32), scales, scale, minimums, minimum)


def _q5_k(blocks: Blocks) -> SuperBlockWeight:
    """[f16 d][f16 dmin][12 bytes: as Q4_K][32 bytes: fifth bits][128 bytes]. Byte i has the fifth
    bits of values i, 32 + i, 64 + i …"""
    scale, minimum, packed_scales, fifth, packed = columns(blocks, (2, 2, 12, 32, 128))
    scales, minimums = _k_scales(packed_scales)
    codes = joined(spread(packed, 4, 32), spread(fifth, 1), 4)
    return _super_block(5, codes, scales, scale, minimums, minimum)


def _q6_k(blocks: Blocks) -> SuperBlockWeight:
    """[128 bytes: low bits][64 bytes: high bits][16 x i8 scale][f16 d]:
    w = (d s) (q - 32), groups of 16."""
    low, high, scales, scale = columns(blocks, (128, 64, 16, 2))
    codes = joined(spread(low, 4, 64), spread(high, 2, 32), 4)
    return _super_block(6, codes, scales.view(np.int8), scale)


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Twelve bytes -> eight scales and eight minimums of 6 bits.

    bytes 0-3   [2 high bits of scale 4-7   | scale 0-3  ]
    bytes 4-7   [2 high bits of minimum 4-7 | minimum 0-3]
    bytes 8-11  [4 low bits of minimum 4-7  | 4 low bits of scale 4-7]
    """
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], axis=-1)
    minimums = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], axis=-1)
    return scales, minimums


def _q3_k_scales(packed: Bytes) -> npt.NDArray[np.int8]:
    """Twelve bytes -> sixteen scales of 6 bits, less 32.

    bytes 0-7   [low bits of scale 8-15 | low 4 bits of scale 0-7]
    bytes 8-11  [high bits of 12-15 | of 8-11 | of 4-7 | high 2 bits of scale 0-3]
    """
    scales = spread(packed[..., 0:8], 4) | (spread(packed[..., 8:12], 2) << 4)
    return scales.astype(np.int8) - np.int8(32)


UNPACKERS: dict[Type, Callable[[Blocks], StoredWeight]] = {
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q5_0: _q5_0,
    Type.Q5_1: _q5_1,
    Type.Q8_0: _q8_0,
    Type.MXFP4: _mxfp4,
    Type.Q2_K: _q2_k,
    Type.Q3_K: _q3_k,
    Type.Q4_K: _q4_k,
    Type.Q5_K: _q5_k,
    Type.Q6_K: _q6_k,
    **CODEBOOK_UNPACKERS,
}
