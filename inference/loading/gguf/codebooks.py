"""GGUF's types whose codes are looked up in a table, taken apart: no value changes.

Formats: ggml/src/ggml-common.h. The tables are data of the formats, and come from the gguf package.
The IQ types of 1 to 3 bits hold places in a *grid*, whose entries are the magnitudes of 4 or 8
neighbours, and signs apart: grid and signs become one code of 3 or 4 bits for each value.

        magnitude's place | sign << 2    or    magnitude's place | sign << 3
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import quants as gguf_package
from gguf.constants import GGMLQuantizationType as Type

from inference.models.stored_weights import Codebook, CodebookWeight

Bytes = npt.NDArray[np.uint8]
Blocks = Bytes
"""(num_rows, row_bytes): one tensor's bytes, a row per output feature."""
Words = npt.NDArray[np.unsignedinteger]


def as_torch(values: npt.NDArray[np.generic]) -> torch.Tensor:
    """A copy: the mapping underneath is read-only, which torch tensors cannot be."""
    return torch.from_numpy(values.copy())


def columns(blocks: Blocks, layout: tuple[int, ...]) -> list[Bytes]:
    """Each block's fields, of the given byte lengths: (rows, blocks per row, field bytes)."""
    split = blocks.reshape(blocks.shape[0], -1, sum(layout))
    return np.split(split, np.cumsum(layout)[:-1], axis=2)


def half(field: Bytes) -> npt.NDArray[np.float16]:
    """The float16 at the start of each block: (rows, blocks)."""
    return np.ascontiguousarray(field).view(np.float16)[:, :, 0]


def spread(field: Bytes, width: int, span: int | None = None) -> Bytes:
    """Takes of each ``span`` bytes (``None``: of each block's) all lowest ``width`` bits, then all
    next ones: (rows, blocks, n) -> (rows, blocks, 8 / width * n)."""
    spans = field.reshape(*field.shape[:2], -1, span or field.shape[2])
    digits = np.empty((*spans.shape[:3], 8 // width, spans.shape[3]), np.uint8)
    for index in range(8 // width):
        np.right_shift(spans, np.uint8(width * index), out=digits[:, :, :, index])
    digits &= np.uint8(2**width - 1)
    return digits.reshape(*field.shape[:2], -1)


def bits_of(field: Bytes) -> Bytes:
    return np.unpackbits(np.ascontiguousarray(field), axis=2, bitorder="little")


def joined(low: Bytes, high: Bytes, num_low_bits: int) -> Bytes:
    """Changes both arguments."""
    high <<= np.uint8(num_low_bits)
    low |= high
    return low


def rows_of(values: npt.NDArray[Any]) -> torch.Tensor:
    """(num_rows, ...) -> (num_rows, n), on the same memory."""
    return torch.from_numpy(values.reshape(len(values), -1))


IQ4 = Codebook(tuple(gguf_package.IQ4_NL.kvalues))
MXFP4 = Codebook(tuple(gguf_package.NVFP4.kvalues))
"""Twice the numbers of e2m1."""
TERNARY = Codebook((-1, 0, 1, 2))
"""Two bits of a TQ2_0 may be 2 as well."""
BINARY = Codebook((-1, 1, 0, 0))
HALF_E4M3 = gguf_package.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8)).astype(np.float16)
"""Half the number that each byte stands for, without its sign."""

SIGNS_OF_7_BITS = np.frombuffer(gguf_package.IQ2_XXS.ksigns, np.uint8)
"""The sign of the eighth value makes their number even."""


def _signed(magnitudes: tuple[int, ...], num_codes: int, unit: float) -> Codebook:
    padded = (*magnitudes, *(0,) * (num_codes // 2 - len(magnitudes)))
    return Codebook((*padded, *(-value for value in padded)), unit)


IQ2 = _signed(gguf_package.IQ2_XS.grid_map, 8, 1 / 8)
IQ3_XXS = _signed(gguf_package.IQ3_XXS.grid_map, 16, 1 / 4)
IQ3_S = _signed(gguf_package.IQ3_S.grid_map, 16, 1.0)
IQ1 = Codebook((-7, 1, 9, 0, -9, -1, 7, 0), 1 / 8)
"""-1, 0, 1 and an eighth, then less an eighth."""


@cache
def _grid(name: str) -> Words:
    """A word of codes, a byte each, for each entry. The package packs an entry's codes in bits."""
    type = getattr(gguf_package, name)
    num_entries, num_codes = type.grid_shape
    packed = np.frombuffer(bytes.fromhex(type.grid_hex.decode()), np.uint8)
    width = 2 if len(type.grid_map) < 5 else 4
    digits = packed[:, None] >> np.arange(0, 8, width, dtype=np.uint8) & np.uint8(2**width - 1)
    codes = np.ascontiguousarray(digits.reshape(num_entries, num_codes))
    return codes.view(f"<u{num_codes}").reshape(num_entries)


@cache
def _spread_signs(shift: int) -> npt.NDArray[np.uint64]:
    """Eight bytes for each byte of signs: a bit of it each, at ``shift``."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (bits << np.uint8(shift)).view("<u8").reshape(256)


def _words(field: Bytes, dtype: str) -> Words:
    return np.ascontiguousarray(field).view(dtype)


def _codes(name: str, places: npt.NDArray[np.integer], signs: Bytes) -> Bytes:
    """``places`` in the grid ``name`` and a byte of signs for each eight values; (rows, ...)."""
    entries = _grid(name)[places]
    shift = 2 if entries.itemsize == 8 else 3
    words = np.ascontiguousarray(entries).reshape(len(places), -1).view(np.uint64)
    words |= _spread_signs(shift)[signs.reshape(len(signs), -1)]
    return words.view(np.uint8)


def _super(
    codebook: Codebook, codes: Bytes, scales: npt.NDArray[np.integer], supers: Bytes
) -> CodebookWeight:
    return CodebookWeight(
        codebook=codebook,
        codes=rows_of(codes),
        scales=rows_of(scales.astype(np.int8)),
        super_scales=as_torch(half(supers)),
    )


def _grouped(
    codebook: Codebook, codes: Bytes, scales: npt.NDArray[np.float16], times: int = 1
) -> CodebookWeight:
    repeated = np.repeat(scales.reshape(len(scales), -1), times, axis=1)
    return CodebookWeight(codebook=codebook, codes=rows_of(codes), scales=as_torch(repeated))


def _iq4_nl(blocks: Blocks) -> CodebookWeight:
    """[f16 d][16 bytes]: w = d v[q]."""
    scale, packed = columns(blocks, (2, 16))
    return _grouped(IQ4, spread(packed, 4), half(scale))


def _iq4_xs(blocks: Blocks) -> CodebookWeight:
    """[f16 d][u16: upper 2 bits of eight scales][4 bytes: lower 4 bits][128 bytes]:
    w = d (s - 32) v[q], groups of 32."""
    scale, upper, lower, packed = columns(blocks, (2, 2, 4, 128))
    bits = _words(upper, "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (spread(lower, 4, 1) | bits << 4).astype(np.int8) - np.int8(32)
    return _super(IQ4, spread(packed, 4, 16), scales, scale)


def _iq2_xxs(blocks: Blocks) -> CodebookWeight:
    """[f16 d][8 x (4 places of 8 bits, 4 signs of 7 bits, scale of 4)]: w = d (2 s + 1) / 8 v,
    groups of 32, here as two of 16."""
    scale, packed = columns(blocks, (2, 64))
    words = _words(packed, "<u4").reshape(*packed.shape[:2], 8, 2)
    places = packed.reshape(*packed.shape[:2], 8, 8)[..., :4]
    signs, scales = _signs_and_scale(words[..., 1])
    codes = _codes("IQ2_XXS", places, signs)
    return _super(IQ2, codes, np.repeat(scales, 2, axis=-1), scale)


def _signs_and_scale(words: npt.NDArray[np.unsignedinteger]) -> tuple[Bytes, Bytes]:
    """Words of four 7-bit signs and a scale: bytes of signs (..., 4), and the odd scales."""
    places = words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127
    return SIGNS_OF_7_BITS[places], (2 * (words >> 28) + 1).astype(np.uint8)


def _iq2_xs(blocks: Blocks) -> CodebookWeight:
    """[f16 d][32 x u16: place of 9 bits, signs of 7][8 bytes: 4-bit scales], groups of 16."""
    scale, packed, scales = columns(blocks, (2, 64, 8))
    words = _words(packed, "<u2")
    codes = _codes("IQ2_XS", words & 511, SIGNS_OF_7_BITS[words >> 9])
    return _super(IQ2, codes, 2 * spread(scales, 4, 1) + 1, scale)


def _iq2_s(blocks: Blocks) -> CodebookWeight:
    """[f16 d][32 bytes: places][32 bytes: signs][8 bytes: upper 2 bits][8 bytes: 4-bit scales]."""
    scale, lower, signs, upper, scales = columns(blocks, (2, 32, 32, 8, 8))
    codes = _codes("IQ2_S", lower | spread(upper, 2, 1).astype(np.uint16) << 8, signs)
    return _super(IQ2, codes, 2 * spread(scales, 4, 1) + 1, scale)


def _iq3_xxs(blocks: Blocks) -> CodebookWeight:
    """[f16 d][64 bytes: places][8 x u32: 4 signs of 7 bits, scale of 4]: w = d (2 s + 1) / 4 v,
    groups of 32."""
    scale, places, packed = columns(blocks, (2, 64, 32))
    signs, scales = _signs_and_scale(_words(packed, "<u4"))
    return _super(IQ3_XXS, _codes("IQ3_XXS", places, signs), scales, scale)


def _iq3_s(blocks: Blocks) -> CodebookWeight:
    """[f16 d][64 bytes: places][8 bytes: ninth bits][32 bytes: signs][4 bytes: 4-bit scales]:
    w = d (2 s + 1) v, groups of 32."""
    scale, lower, ninth, signs, scales = columns(blocks, (2, 64, 8, 32, 4))
    codes = _codes("IQ3_S", lower | bits_of(ninth).astype(np.uint16) << 8, signs)
    return _super(IQ3_S, codes, 2 * spread(scales, 4, 1) + 1, scale)


def _iq1_s(blocks: Blocks) -> CodebookWeight:
    """[f16 d][32 bytes: places][8 x u16: 4 times upper 3 bits, scale of 3, sign of the eighth]:
    w = d (2 s + 1) (v + 1/8 or v - 1/8), groups of 32, here as two of 16."""
    scale, lower, packed = columns(blocks, (2, 32, 16))
    words = _words(packed, "<u2")
    upper = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(lower.shape)
    signs = np.repeat(_all_or_none(words >> 15), 4, axis=-1)
    codes = _codes("IQ1_S", lower | upper << 8, signs)
    return _super(IQ1, codes, np.repeat(2 * (words >> 12 & 7) + 1, 2, axis=-1), scale)


def _all_or_none(bits: npt.NDArray[np.integer]) -> Bytes:
    return (255 * bits).astype(np.uint8)


def _iq1_m(blocks: Blocks) -> CodebookWeight:
    """[32 bytes: places][16 bytes: 2 times upper 3 bits and sign of the eighth]
    [4 x u16: 4 scales of 3 bits, 4 bits of the f16 d]: as IQ1_S, groups of 16."""
    lower, upper, packed = columns(blocks, (32, 16, 8))
    upper = spread(upper, 4, 1)
    words = _words(packed, "<u2")
    scales = words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    supers = ((words >> 12) << np.arange(0, 16, 4, dtype=np.uint16)).sum(-1, dtype=np.uint16)
    codes = _codes("IQ1_S", lower | (upper & 7).astype(np.uint16) << 8, _all_or_none(upper >> 3))
    return _super(IQ1, codes, 2 * scales + 1, supers[..., None].view(np.uint8))


def _tq1_0(blocks: Blocks) -> CodebookWeight:
    """[32 bytes: five base-3 digits each][16 bytes: the same][4 bytes: four digits][f16 d]:
    w = d (q - 1). A byte is digits times 256 / 243, the first digit on top."""
    first, second, last, scale = columns(blocks, (32, 16, 4, 2))
    digits = [_base_3(first, 5), _base_3(second, 5), _base_3(last, 4)]
    return _grouped(TERNARY, np.concatenate(digits, axis=-1), half(scale), times=8)


def _base_3(field: Bytes, num_digits: int) -> Bytes:
    """(rows, blocks, n) -> (rows, blocks, digits * n): all first digits, then all second ones."""
    powers = np.array([3**place for place in range(num_digits)], np.uint8)[:, None]
    rest = field[:, :, None, :] * powers  # what wraps around is digits before
    digits: Bytes = (rest.astype(np.uint16) * 3 >> 8).astype(np.uint8)
    return digits.reshape(*field.shape[:2], -1)


def _tq2_0(blocks: Blocks) -> CodebookWeight:
    """[64 bytes][f16 d]: w = d (q - 1)."""
    packed, scale = columns(blocks, (64, 2))
    return _grouped(TERNARY, spread(packed, 2, 32), half(scale), times=8)


def _nvfp4(blocks: Blocks) -> CodebookWeight:
    """[4 x unsigned e4m3][32 bytes]: w = scale times a number of e2m1, groups of 16. The number is
    twice what it is, and the scale half."""
    scales, packed = columns(blocks, (4, 32))
    return _grouped(MXFP4, spread(packed, 4, 8), HALF_E4M3[scales])


def _q1_0(blocks: Blocks) -> CodebookWeight:
    """[f16 d][16 bytes]: w = d or -d, blocks of 128."""
    scale, packed = columns(blocks, (2, 16))
    return _grouped(BINARY, bits_of(packed), half(scale), times=4)


CODEBOOK_UNPACKERS: dict[Type, Callable[[Blocks], CodebookWeight]] = {
    Type.IQ1_S: _iq1_s,
    Type.IQ1_M: _iq1_m,
    Type.IQ2_XXS: _iq2_xxs,
    Type.IQ2_XS: _iq2_xs,
    Type.IQ2_S: _iq2_s,
    Type.IQ3_XXS: _iq3_xxs,
    Type.IQ3_S: _iq3_s,
    Type.IQ4_NL: _iq4_nl,
    Type.IQ4_XS: _iq4_xs,
    Type.TQ1_0: _tq1_0,
    Type.TQ2_0: _tq2_0,
    Type.NVFP4: _nvfp4,
    Type.Q1_0: _q1_0,
}
