"""Weights as their files hold them, in no kernel's layout: dense, quantised in groups of input
features, or codes in a small table of values (IQ types, ternary ones, NVFP4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

HALF_GROUP_FEATURES = 16
"""Features of one scale in formats with two scales for a group."""


class _Coded:
    __slots__ = ()
    codes: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


@dataclass(frozen=True, slots=True)
class Codebook:
    """``values``: 4, 8 or 16 whole numbers in -127..127; ``unit``: their factor, a
    power of two unless the file has a scale of the whole weight."""

    values: tuple[int, ...]
    unit: float = 1.0

    @property
    def bits(self) -> int:
        return (len(self.values) - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodebookWeight(_Coded):
    """``codes`` uint8 (out_features, in_features). Either ``scales`` float16 (out_features,
    in_features / group) and no ``super_scales``, or ``scales`` int8 and ``super_scales`` float16
    (out_features, in_features / 256), whose product is the scale. A group is of 32 or 16."""

    codebook: Codebook
    codes: torch.Tensor
    scales: torch.Tensor
    super_scales: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def bits(self) -> int:
        return self.codebook.bits

    @property
    def minimums(self) -> None:
        return None

    @property
    def group_features(self) -> int:
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def packed_bytes(self) -> int:
        """Codes in their bits, and scales; without the bias."""
        supers = 0 if self.super_scales is None else self.super_scales.nbytes
        return self.codes.numel() * self.bits // 8 + self.scales.nbytes + supers

    def group_scales(self) -> torch.Tensor:
        """float32 (out_features, groups), the unit included."""
        scales = self.scales.float()
        if self.super_scales is not None:
            scales = _scaled(scales, self.super_scales)
        return scales * self.codebook.unit

    def table(self) -> torch.Tensor:
        return torch.tensor(self.codebook.values, dtype=torch.float32, device=self.codes.device)

    def dequantize(self) -> torch.Tensor:
        """float32 (out_features, in_features)."""
        scales = self.group_scales()
        numbers = self.table()[self.codes.int()].view(*scales.shape, -1)
        return (numbers * scales.unsqueeze(-1)).view(self.shape)


GROUP_FEATURES = 32
SUPER_BLOCK_FEATURES = 256
TWICE_THE_MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the value of each code: OCP Microscaling Formats 1.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseWeight:
    """``weight`` (out_features, in_features), any float dtype; ``bias`` (out_features,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWeight(_Coded):
    """w = scale * code + minimum, by row and group of 32. ``codes`` (out_features, in_features);
    ``scales`` and ``minimums`` (out_features, in_features / 32) float16 or float32.

    4 bits: uint8 in 0..15 with minimums. 5 bits: uint8 in 0..31 with, or int8 in -16..15 without. 6
    bits: int8 in -32..31 without. 8 bits: int8 without.
    """

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_mxfp4: bool = False
    """Whether every code, of 8 bits, is twice a number of MXFP4, which takes 4."""

    @property
    def packed_bits(self) -> int:
        """The bits of a code in the native decoder."""
        return 4 if self.is_mxfp4 else self.bits

    @property
    def packed_bytes(self) -> int:
        """Codes in their bits, and float16 scales and minimums; without the bias."""
        num_halves = self.scales.numel() * (1 if self.minimums is None else 2)
        return self.codes.numel() * self.packed_bits // 8 + 2 * num_halves

    def dequantize(self) -> torch.Tensor:
        out_features, in_features = self.shape
        grouped = self.codes.view(out_features, -1, GROUP_FEATURES).float()
        weight = grouped * self.scales.float().unsqueeze(-1)
        if self.minimums is not None:
            weight = weight + self.minimums.float().unsqueeze(-1)
        return weight.view(out_features, in_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperBlockWeight(_Coded):
    """GGUF's K formats: small whole scales per group, and a float for 256 features to scale those.

        w = (super_scale * scale) * (code - zero) + super_minimum * minimum

    2, 4 and 5 bits have minimums and zero = 0; 3 and 6 bits have none and zero = 2**(bits - 1).
    ``codes`` uint8 (out_features, in_features); ``scales`` and ``minimums`` int8 (out_features,
    in_features / group), a group being 32 features with 4 and 5 bits and 16 with the others;
    ``super_scales`` and ``super_minimums`` float16 (out_features, in_features / 256).
    """

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    super_scales: torch.Tensor
    minimums: torch.Tensor | None = None
    super_minimums: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def zero(self) -> int:
        return 2 ** (self.bits - 1) if self.minimums is None else 0

    @property
    def packed_bytes(self) -> int:
        """Codes in their bits, and scales and minimums in a byte; without the bias."""
        num_both = 1 if self.minimums is None else 2
        scale_bytes = self.scales.numel() + 2 * self.super_scales.numel()
        return self.codes.numel() * self.bits // 8 + num_both * scale_bytes

    def dequantize(self) -> torch.Tensor:
        scales, minimums = self.group_scales()
        grouped = self.codes.view(*scales.shape, -1).float() - self.zero
        weight = grouped * scales.unsqueeze(-1)
        if minimums is not None:
            weight = weight + minimums.unsqueeze(-1)
        return weight.view(self.shape)

    def grouped(self) -> GroupedWeight:
        assert self.bits == 4
        scales, minimums = self.group_scales()
        return GroupedWeight(
            bits=4, codes=self.codes, scales=scales, minimums=minimums, bias=self.bias
        )

    def group_scales(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """float32 (out_features, groups) each."""
        scales = _scaled(self.scales, self.super_scales)
        if self.minimums is None or self.super_minimums is None:
            return scales, None
        return scales, _scaled(self.minimums, self.super_minimums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Weight(_Coded):
    """w = scale * code. ``codes`` float8_e4m3fn (out_features, in_features); ``scales`` float32
    (blocks of outputs, blocks of inputs) of ``block_shape``, the last of which may be a part of
    one."""

    codes: torch.Tensor
    scales: torch.Tensor
    block_shape: tuple[int, int]

    def row_scales(self) -> torch.Tensor:
        """Float32 (out_features, blocks of inputs)."""
        rows = self.scales.float().repeat_interleave(self.block_shape[0], dim=0)
        return rows[: self.shape[0]]

    def group_scales(self, group_features: int) -> torch.Tensor:
        """Float32 (out_features, groups): a group's features are of one block."""
        inputs, columns = self.shape[1], self.block_shape[1]
        assert columns % group_features == 0 or columns >= inputs
        times = -(-columns // group_features)
        return self.row_scales().repeat_interleave(times, dim=1)[:, : -(-inputs // group_features)]

    def dequantize(self) -> torch.Tensor:
        return self.codes.float() * self.group_scales(1)


PackedWeight = GroupedWeight | SuperBlockWeight | CodebookWeight
StoredWeight = DenseWeight | PackedWeight
ExpertWeight = StoredWeight | Fp8Weight
"""The formats of an expert's projection; other products take fp8 multiplied out."""


def written_out(weight: ExpertWeight) -> torch.Tensor:
    """(out_features, in_features), dense weights in their own dtype and all others in float32."""
    return weight.weight if isinstance(weight, DenseWeight) else weight.dequantize()


AnyStored = TypeVar("AnyStored", bound=StoredWeight)


def with_tensors(stored: AnyStored, change: Callable[[torch.Tensor], torch.Tensor]) -> AnyStored:
    tensors: dict[str, Any] = {name: change(t) for name, t in _tensors(stored).items()}
    return replace(stored, **tensors)


def stack(weights: Sequence[AnyStored]) -> AnyStored:
    """Along out_features, weights of one kind, number of bits and set of tensors."""
    if len(weights) == 1:
        return weights[0]
    parts = [_tensors(weight) for weight in weights]
    tensors: dict[str, Any] = {name: torch.cat([p[name] for p in parts]) for name in parts[0]}
    return replace(weights[0], **tensors)


def stack_fp8(weights: Sequence[Fp8Weight]) -> Fp8Weight:
    """A scale is then of one output: blocks of outputs need not end where a weight does."""
    if len(weights) == 1:
        return weights[0]
    columns = weights[0].block_shape[1]
    return Fp8Weight(
        codes=torch.cat([weight.codes for weight in weights]),
        scales=torch.cat([weight.row_scales() for weight in weights]),
        block_shape=(1, columns),
    )


def _tensors(stored: StoredWeight) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(stored, field.name) for field in fields(stored)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _scaled(values: torch.Tensor, supers: torch.Tensor) -> torch.Tensor:
    """(out_features, groups) times its super-block's (out_features, super-blocks), float32."""
    by_block = values.float().view(*supers.shape, -1)
    return (supers.float().unsqueeze(-1) * by_block).view(values.shape)


MXFP4 = Codebook(TWICE_THE_MXFP4_VALUES)
NO_CODE = 255


def codes_of(numbers: torch.Tensor) -> torch.Tensor:
    """uint8 codes of four bits; ``NO_CODE`` where a number is not twice one of MXFP4."""
    return _CODES.to(numbers.device)[numbers.to(torch.int64) + 128]


def in_four_bits(weight: GroupedWeight) -> CodebookWeight:
    assert weight.is_mxfp4
    return CodebookWeight(
        codebook=MXFP4, codes=codes_of(weight.codes), scales=weight.scales, bias=weight.bias
    )


def _codes() -> torch.Tensor:
    found = torch.full((256,), NO_CODE, dtype=torch.uint8)
    # From the last: zero has two codes, of which the first holds.
    for code in range(len(TWICE_THE_MXFP4_VALUES) - 1, -1, -1):
        found[TWICE_THE_MXFP4_VALUES[code] + 128] = code
    return found


_CODES = _codes()
