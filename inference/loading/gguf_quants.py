"""GGUF's quantised blocks, taken apart into ``GroupedWeight`` where groups of 32 hold them exactly.

Formats: ggml/src/ggml-common.h and ggml-quants.c. Q4_0, Q4_1, Q4_K, Q5_0 and Q8_0 are a scale (and
a minimum) per 32 values with codes of 4 or 8 bits; the rest (16-value groups, 5 bits with a
minimum) come out dense through ``gguf.dequantize``.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType

from inference.models.stored import GROUP_FEATURES, DenseWeight, GroupedWeight, StoredWeight

Blocks = npt.NDArray[np.uint8]
"""(num_rows, row_bytes): one tensor's bytes, a row per output feature."""

READABLE_TYPES = frozenset(
    GGMLQuantizationType[name]
    for name in (
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    )
)  # fmt: skip

SUPER_BLOCK_FEATURES = 256


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


def _nibbles(field: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(rows, blocks, n) -> (rows, blocks, 2 n): every low nibble, then every high one."""
    return np.concatenate([field & 0x0F, field >> 4], axis=2)


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
    return _grouped(4, _nibbles(packed), scales, scales * np.float16(-8))


def _q4_1(blocks: Blocks) -> GroupedWeight:
    """[f16 d][f16 m][16 bytes]: w = d q + m."""
    scale, minimum, packed = _columns(blocks, (2, 2, 16))
    return _grouped(4, _nibbles(packed), _half(scale), _half(minimum))


def _q5_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][u32 fifth bits][16 bytes]: w = d (q - 16), which 8-bit codes hold."""
    scale, fifth, packed = _columns(blocks, (2, 4, 16))
    high_bits = np.unpackbits(np.ascontiguousarray(fifth), axis=2, bitorder="little")
    codes = (_nibbles(packed) | (high_bits << 4)).astype(np.int8) - np.int8(16)
    return _grouped(8, codes, _half(scale), None)


def _q8_0(blocks: Blocks) -> GroupedWeight:
    """[f16 d][32 x i8]: w = d q."""
    scale, codes = _columns(blocks, (2, 32))
    return _grouped(8, np.ascontiguousarray(codes).view(np.int8), _half(scale), None)


def _q4_k(blocks: Blocks) -> GroupedWeight:
    """[f16 d][f16 dmin][12 bytes: eight 6-bit scales and minimums][128 bytes], 256 values:
    w = (d s) q - dmin m. Byte i of each 32 holds value i of one group and of the next."""
    scale, minimum, packed_scales, packed = _columns(blocks, (2, 2, 12, 128))
    six_bit_scales, six_bit_minimums = _k_scales(packed_scales)
    scales = _half(scale).astype(np.float32)[:, :, None] * six_bit_scales
    minimums = _half(minimum).astype(np.float32)[:, :, None] * six_bit_minimums
    pairs = packed.reshape(*packed.shape[:2], 4, GROUP_FEATURES)
    codes = np.stack([pairs & 0x0F, pairs >> 4], axis=3)
    return _grouped(4, codes, scales, -minimums)


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


UNPACKERS: dict[GGMLQuantizationType, Callable[[Blocks], GroupedWeight]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_K: _q4_k,
}
