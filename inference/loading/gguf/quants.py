"""GGUF's quantised blocks, taken apart into codes and scales: no value changes.

Formats: ggml/src/ggml-common.h and ggml-quants.c. Q4_0 to Q8_0 are a scale (and a minimum) per 32
values: ``GroupedWeight``. Q2_K to Q6_K are blocks of 256 values with whole scales (and minimums)
per 16 or 32 and a float to scale those: ``SuperBlockWeight``.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType

from inference.models.weights.stored import TWICE_THE_MXFP4_VALUES as TWICE_MXFP4
from inference.models.weights.stored import (
    DenseWeight,
    GroupedWeight,
    StoredWeight,
    SuperBlockWeight,
)

Blocks = npt.NDArray[np.uint8]
"""(num_rows, row_bytes): one tensor's bytes, a row per output feature."""

READABLE_TYPES = frozenset(
    GGMLQuantizationType[name]
    for name in (
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4",
    )
)  # fmt: skip


def dense(blocks: Blocks, type: GGMLQuantizationType) -> torch.Tensor:
    """float32 (num_rows, num_features); float16 and bfloat16 tensors keep their dtype."""
    if type == GGMLQuantizationType.F32:
        return _torch(blocks.view(np.float32))
    if type == GGMLQuantizationType.F16:
        return _torch(blocks.view(np.float16))
    if type == GGMLQuantizationType.BF16:
        return _torch(blocks.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(gguf.dequantize(blocks, type))


def stored(blocks: Blocks, type: GGMLQuantizationType) -> StoredWeight:
    unpack = UNPACKERS.get(type)
    return DenseWeight(weight=dense(blocks, type)) if unpack is None else unpack(blocks)


def _torch(values: npt.NDArray[np.generic]) -> torch.Tensor:
    """A copy: the mapping underneath is read-only, which torch tensors cannot be."""
    return torch.from_numpy(values.copy())


def _columns(blocks: Blocks, layout: tuple[int, ...]) -> list[npt.NDArray[np.uint8]]:
    """Each block's fields, of the given byte lengths: (rows, blocks per row, field bytes)."""
    split = blocks.reshape(blocks.shape[0], -1, sum(layout))
    return np.split(split, np.cumsum(layout)[:-1], axis=2)


def _half(field: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
    """The float16 at the start of each block: (rows, blocks)."""
    return np.ascontiguousarray(field).view(np.float16)[:, :, 0]


def _spread(
    field: npt.NDArray[np.uint8], width: int, span: int | None = None
) -> npt.NDArray[np.uint8]:
    """Takes of each ``span`` bytes (``None``: of each block's) all lowest ``width`` bits, then all
    next ones: (rows, blocks, n) -> (rows, blocks, 8 / width * n)."""
    spans = field.reshape(*field.shape[:2], -1, span or field.shape[2])
    digits = np.empty((*spans.shape[:3], 8 // width, spans.shape[3]), np.uint8)
    for index in range(8 // width):
        np.right_shift(spans, np.uint8(width * index), out=digits[:, :, :, index])
    digits &= np.uint8(2**width - 1)
    return digits.reshape(*field.shape[:2], -1)


def _joined(
    low: npt.NDArray[np.uint8], high: npt.NDArray[np.uint8], num_low_bits: int
) -> npt.NDArray[np.uint8]:
    """Codes of their low and their high bits. Changes both."""
    high <<= np.uint8(num_low_bits)
    low |= high
    return low


def _grouped(
    bits: int,
    codes: npt.NDArray[np.generic],
    scales: npt.NDArray[np.generic],
    minimums: npt.NDArray[np.generic] | None,
) -> GroupedWeight:
    num_rows = codes.shape[0]
    return GroupedWeight(
        bits=bits,
        codes=torch.from_numpy(codes.reshape(num_rows, -1)),
        scales=_torch(scales.reshape(num_rows, -1)),
        minimums=None if minimums is None else _torch(minimums.reshape(num_rows, -1)),
    )


def _q4_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][16 bytes]: w = d (q - 8)."""
    scale, packed = _columns(blocks, (2, 16))
    scales = _half(scale)
    return _grouped(4, _spread(packed, 4), scales, scales * np.float16(-8))


def _q4_1(blocks: Blocks) -> GroupedWeight:
    """[f16 d][f16 m][16 bytes]: w = d q + m."""
    scale, minimum, packed = _columns(blocks, (2, 2, 16))
    return _grouped(4, _spread(packed, 4), _half(scale), _half(minimum))


def _q5_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][u32 fifth bits][16 bytes]: w = d (q - 16)."""
    scale, fifth, packed = _columns(blocks, (2, 4, 16))
    codes = _five_bits(packed, fifth).astype(np.int8) - np.int8(16)
    return _grouped(5, codes, _half(scale), None)


def _q5_1(blocks: Blocks) -> GroupedWeight:
    """[f16 d][f16 m][u32 fifth bits][16 bytes]: w = d q + m."""
    scale, minimum, fifth, packed = _columns(blocks, (2, 2, 4, 16))
    return _grouped(5, _five_bits(packed, fifth), _half(scale), _half(minimum))


def _five_bits(
    packed: npt.NDArray[np.uint8], fifth: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """32 low nibbles and the fifth bits of 32 values, in order."""
    high_bits = np.unpackbits(np.ascontiguousarray(fifth), axis=2, bitorder="little")
    return _spread(packed, 4) | (high_bits << np.uint8(4))


def _q8_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][32 x i8]: w = d q."""
    scale, codes = _columns(blocks, (2, 32))
    return _grouped(8, np.ascontiguousarray(codes).view(np.int8), _half(scale), None)


def _mxfp4(blocks: Blocks) -> GroupedWeight:
    """[exponent + 127][16 bytes]: w = 2 ** exponent times a number of four bits. Twice such a
    number is whole: it is kept in 8 bits, exactly."""
    exponent, packed = _columns(blocks, (1, 16))
    codes = np.array(TWICE_MXFP4, np.int8)[_spread(packed, 4)]
    scales = np.ldexp(np.float32(1), exponent[:, :, 0].astype(np.int32) - 128)
    return _grouped(8, codes, scales.astype(np.float32), None)


def _super_block(
    bits: int,
    codes: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.generic],
    super_scale: npt.NDArray[np.uint8],
    minimums: npt.NDArray[np.generic] | None = None,
    super_minimum: npt.NDArray[np.uint8] | None = None,
) -> SuperBlockWeight:
    """Super-scales as their bytes. GGUF takes minimums away; here they are added."""
    num_rows = codes.shape[0]

    def small(values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int8).reshape(num_rows, -1))

    return SuperBlockWeight(
        bits=bits,
        codes=torch.from_numpy(codes.reshape(num_rows, -1)),
        scales=small(scales),
        super_scales=_torch(_half(super_scale)),
        minimums=None if minimums is None else small(minimums),
        super_minimums=None if super_minimum is None else _torch(-_half(super_minimum)),
    )


def _q2_k(blocks: Blocks) -> SuperBlockWeight:
    """[16 bytes: 4-bit scales, 4-bit minimums][64 bytes][f16 d][f16 dmin]:
    w = (d s) q - dmin m, groups of 16."""
    both, packed, scale, minimum = _columns(blocks, (16, 64, 2, 2))
    return _super_block(2, _spread(packed, 2, 32), both & 0x0F, scale, both >> 4, minimum)


def _q3_k(blocks: Blocks) -> SuperBlockWeight:
    """[32 bytes: third bits][64 bytes][12 bytes: 6-bit scales][f16 d]:
    w = d (s - 32) (q - 4), groups of 16. Byte i has the third bits of values i, 32 + i, 64 + i …"""
    third, packed, packed_scales, scale = _columns(blocks, (32, 64, 12, 2))
    codes = _joined(_spread(packed, 2, 32), _spread(third, 1), 2)
    return _super_block(3, codes, _q3_k_scales(packed_scales), scale)


def _q4_k(blocks: Blocks) -> SuperBlockWeight:
    """[f16 d][f16 dmin][12 bytes: eight 6-bit scales and minimums][128 bytes]:
    w = (d s) q - dmin m, groups of 32."""
    scale, minimum, packed_scales, packed = _columns(blocks, (2, 2, 12, 128))
    scales, minimums = _k_scales(packed_scales)
    return _super_block(4, _spread(packed, 4, 32), scales, scale, minimums, minimum)


def _q5_k(blocks: Blocks) -> SuperBlockWeight:
    """[f16 d][f16 dmin][12 bytes: as Q4_K][32 bytes: fifth bits][128 bytes]. Byte i has the fifth
    bits of values i, 32 + i, 64 + i …"""
    scale, minimum, packed_scales, fifth, packed = _columns(blocks, (2, 2, 12, 32, 128))
    scales, minimums = _k_scales(packed_scales)
    codes = _joined(_spread(packed, 4, 32), _spread(fifth, 1), 4)
    return _super_block(5, codes, scales, scale, minimums, minimum)


def _q6_k(blocks: Blocks) -> SuperBlockWeight:
    """[128 bytes: low bits][64 bytes: high bits][16 x i8 scale][f16 d]:
    w = (d s) (q - 32), groups of 16."""
    low, high, scales, scale = _columns(blocks, (128, 64, 16, 2))
    codes = _joined(_spread(low, 4, 64), _spread(high, 2, 32), 4)
    return _super_block(6, codes, scales.view(np.int8), scale)


def _k_scales(
    packed: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Twelve bytes -> eight scales and eight minimums of 6 bits.

    bytes 0-3   [2 high bits of scale 4-7   | scale 0-3  ]
    bytes 4-7   [2 high bits of minimum 4-7 | minimum 0-3]
    bytes 8-11  [4 low bits of minimum 4-7  | 4 low bits of scale 4-7]
    """
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], axis=-1)
    minimums = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], axis=-1)
    return scales, minimums


def _q3_k_scales(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """Twelve bytes -> sixteen scales of 6 bits, less 32.

    bytes 0-7   [low bits of scale 8-15 | low 4 bits of scale 0-7]
    bytes 8-11  [high bits of 12-15 | of 8-11 | of 4-7 | high 2 bits of scale 0-3]
    """
    scales = _spread(packed[..., 0:8], 4) | (_spread(packed[..., 8:12], 2) << 4)
    return scales.astype(np.int8) - np.int8(32)


UNPACKERS: dict[GGMLQuantizationType, Callable[[Blocks], StoredWeight]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.MXFP4: _mxfp4,
    GGMLQuantizationType.Q2_K: _q2_k,
    GGMLQuantizationType.Q3_K: _q3_k,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
}
