"""Stacks of experts, each expert as a matrix of its own: over ``SafetensorsFiles``.

    gpt-oss's files, as published                             comes out as
    mlp.experts.gate_up_proj_blocks  (E, 2 out, in/32, 16)    mlp.experts.0.gate_proj.weight, rows
    mlp.experts.gate_up_proj_scales  (E, 2 out, in/32)        0, 2, 4 ... and mlp.experts.0.up_proj
    mlp.experts.gate_up_proj_bias    (E, 2 out)               .weight, rows 1, 3, 5 ...; biases too
    mlp.experts.down_proj_blocks     (E, out, in/32, 16)      mlp.experts.0.down_proj.weight

    Qwen3-VL's mixtures, inputs first                         comes out as
    mlp.experts.gate_up_proj         (E, in, 2 inner)         mlp.experts.0.gate_proj.weight, first
                                                              columns transposed, and .up_proj, its
                                                              last
    mlp.experts.down_proj            (E, inner, out)          mlp.experts.0.down_proj.weight

Dense files of gpt-oss have ``gate_up_proj`` (E, in, 2 out) and ``down_proj`` (E, in, out) instead.
Some files of Qwen3-VL's families have their outputs first, as others do; the model's width shows
which.

MXFP4 (OCP Microscaling Formats 1.0): 32 numbers of four bits share a power of two. Twice such a
number is whole, so that a code of eight bits and half the scale hold it exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch

from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.tensor_files import TensorFiles, WrappedFiles
from inference.models.weights.stored import (
    GROUP_FEATURES,
    TWICE_THE_MXFP4_VALUES,
    DenseWeight,
    GroupedWeight,
    StoredWeight,
)
from inference.protocol.load_errors import (
    BadFileError,
    WrongShapeError,
    shape_in_words,
)

MXFP4 = "MXFP4"
EXPONENT_BIAS = 127
BYTES_PER_GROUP = GROUP_FEATURES // 2 + 1

Projection = Literal["gate_proj", "up_proj", "down_proj"]
Kind = Literal["weight", "bias"]

_INTERLEAVED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(_blocks|_scales|_bias)?")
_TRANSPOSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


@dataclass(frozen=True, slots=True)
class _Part:
    stack: str
    """Without its ending."""
    expert: int
    projection: Projection
    kind: Kind


def cut_interleaved(files: SafetensorsFiles) -> TensorFiles:
    """``files`` themselves where they hold no such experts."""
    biases = [name for name in files.names if _ending(name) == "_bias"]
    return InterleavedExperts(files, biases) if biases else files


class InterleavedExperts(WrappedFiles):
    _files: SafetensorsFiles

    def __init__(self, files: SafetensorsFiles, biases: list[str]) -> None:
        """``biases``: names of the stacked ones. Raises ``BadFileError``."""
        super().__init__(files)
        self._parts = {
            part_name: part
            for name in biases
            for part_name, part in self._parts_of(name.removesuffix("_bias"))
        }
        self._others = {name for name in files.names if _ending(name) is None}

    def _parts_of(self, stack: str) -> list[tuple[str, _Part]]:
        prefix, _, inner = stack.rpartition(".")
        projections: tuple[Projection, ...] = (
            ("gate_proj", "up_proj") if inner == "gate_up_proj" else ("down_proj",)
        )
        num_experts = self._check_stack(stack)
        kinds: tuple[Kind, ...] = ("weight", "bias")
        if not self._is_packed(stack) and stack not in self._files.names:
            kinds = ("bias",)
        return [
            (f"{prefix}.{expert}.{projection}.{kind}", _Part(stack, expert, projection, kind))
            for expert in range(num_experts)
            for projection in projections
            for kind in kinds
        ]

    def _check_stack(self, stack: str) -> int:
        """How many experts it has."""
        bias = self._files.shape_of(f"{stack}_bias")
        if len(bias) != 2:
            raise BadFileError(f"{stack}_bias is {shape_in_words(bias)}, and no stack of vectors")
        if self._is_packed(stack):
            groups = self._files.shape_of(f"{stack}_scales")[2:]
            self._check_shape(f"{stack}_scales", (*bias, *groups[:1]))
            self._check_shape(f"{stack}_blocks", (*bias, *groups, GROUP_FEATURES // 2))
        elif stack in self._files.names:
            inputs = self._files.shape_of(stack)[1:2]
            self._check_shape(stack, (bias[0], *inputs, bias[1]))
        return bias[0]

    def _check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        if (found := self._files.shape_of(name)) != expected:
            raise WrongShapeError(name, expected, found)

    def _is_packed(self, stack: str) -> bool:
        names = self._files.names
        return f"{stack}_blocks" in names and f"{stack}_scales" in names

    @property
    def names(self) -> Collection[str]:
        return self._parts.keys() | self._others

    def dense(self, name: str) -> torch.Tensor:
        part = self._parts.get(name)
        if part is None:
            return super().dense(name)
        if part.kind == "bias":
            return self._rows(self._files.part(f"{part.stack}_bias", part.expert), part)
        stored = self.stored(name)
        return stored.weight if isinstance(stored, DenseWeight) else stored.dequantize()

    def stored(self, name: str) -> StoredWeight:
        part = self._parts.get(name)
        if part is None:
            return super().stored(name)
        if not self._is_packed(part.stack):
            stacked = self._files.part(part.stack, part.expert).T
            return DenseWeight(weight=self._rows(stacked, part).contiguous())
        blocks = self._files.part(f"{part.stack}_blocks", part.expert)
        scales = self._files.part(f"{part.stack}_scales", part.expert)
        return unpacked(self._rows(blocks, part), self._rows(scales, part), name)

    def _rows(self, stacked: torch.Tensor, part: _Part) -> torch.Tensor:
        if part.projection == "down_proj":
            return stacked
        return stacked[0 if part.projection == "gate_proj" else 1 :: 2]

    def format_of(self, name: str) -> str:
        part = self._parts.get(name)
        if part is None:
            return super().format_of(name)
        if part.kind == "bias":
            return self._files.format_of(f"{part.stack}_bias")
        return MXFP4 if self._is_packed(part.stack) else self._files.format_of(part.stack)

    def shape_of(self, name: str) -> tuple[int, ...]:
        part = self._parts.get(name)
        if part is None:
            return super().shape_of(name)
        _, features = self._files.shape_of(f"{part.stack}_bias")
        rows = features if part.projection == "down_proj" else features // 2
        if part.kind == "bias":
            return (rows,)
        if self._is_packed(part.stack):
            return rows, self._files.shape_of(f"{part.stack}_blocks")[2] * GROUP_FEATURES
        return rows, self._files.shape_of(part.stack)[1]

    def bytes_of(self, name: str) -> int:
        part = self._parts.get(name)
        if part is None:
            return super().bytes_of(name)
        num_elements = math.prod(self.shape_of(name))
        if part.kind == "weight" and self._is_packed(part.stack):
            return num_elements // GROUP_FEATURES * BYTES_PER_GROUP
        source = f"{part.stack}_bias" if part.kind == "bias" else part.stack
        return num_elements * self._files.element_bytes(source)


def unpacked(blocks: torch.Tensor, scales: torch.Tensor, name: str = "a weight") -> GroupedWeight:
    """``blocks`` (rows, groups, 16) uint8, the lower four bits first; ``scales`` (rows, groups)
    uint8 exponents. Exact. Raises ``BadFileError``."""
    values = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
    pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1)
    codes = values[pairs.flatten().int()].view(blocks.shape[0], -1)
    exponents = scales.int() - EXPONENT_BIAS - 1
    if bool((scales == 255).any()):
        raise BadFileError(f"{name} has a scale that is not a number")
    powers = torch.ldexp(torch.ones(exponents.shape), exponents)
    return GroupedWeight(bits=8, codes=codes, scales=powers, is_mxfp4=True)


def _ending(name: str) -> str | None:
    """``_blocks``, ``_scales``, ``_bias`` or empty; ``None``: no stack's name."""
    match = _INTERLEAVED.fullmatch(name)
    return None if match is None else match[3] or ""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns [first, last) of an expert."""

    stack: str
    expert: int
    first: int
    last: int


def cut_transposed(files: SafetensorsFiles, hidden_size: int) -> TensorFiles:
    """``files`` themselves where they hold no such stacks."""
    stacks = [
        name for name in files.names if _is_transposed(name, files.shape_of(name), hidden_size)
    ]
    return TransposedExperts(files, stacks) if stacks else files


def _is_transposed(name: str, shape: tuple[int, ...], hidden_size: int) -> bool:
    match = _TRANSPOSED.fullmatch(name)
    if match is None or len(shape) != 3 or shape[1] == shape[2]:
        return False
    inputs_first = (
        (hidden_size, shape[2]) if match[2] == "gate_up_proj" else (shape[1], hidden_size)
    )
    return shape[1:] == inputs_first


class TransposedExperts(WrappedFiles):
    _files: SafetensorsFiles

    def __init__(self, files: SafetensorsFiles, stacks: Collection[str]) -> None:
        super().__init__(files)
        self._others = set(files.names) - set(stacks)
        self._parts = {
            name: part for stack in stacks for name, part in self._parts_of(stack).items()
        }

    def _parts_of(self, stack: str) -> dict[str, _Columns]:
        prefix, _, inner = stack.rpartition(".")
        num_experts, _, num_columns = self._files.shape_of(stack)
        names = ("gate_proj", "up_proj") if inner == "gate_up_proj" else ("down_proj",)
        width = num_columns // len(names)
        return {
            f"{prefix}.{expert}.{name}.weight": _Columns(stack, expert, i * width, (i + 1) * width)
            for expert in range(num_experts)
            for i, name in enumerate(names)
        }

    @property
    def names(self) -> Collection[str]:
        return self._parts.keys() | self._others

    def dense(self, name: str) -> torch.Tensor:
        part = self._parts.get(name)
        if part is None:
            return super().dense(name)
        return self._files.columns(part.stack, part.expert, part.first, part.last).T.contiguous()

    def stored(self, name: str) -> StoredWeight:
        return DenseWeight(weight=self.dense(name))

    def format_of(self, name: str) -> str:
        part = self._parts.get(name)
        return super().format_of(name) if part is None else self._files.format_of(part.stack)

    def shape_of(self, name: str) -> tuple[int, ...]:
        part = self._parts.get(name)
        if part is None:
            return super().shape_of(name)
        return part.last - part.first, self._files.shape_of(part.stack)[1]

    def bytes_of(self, name: str) -> int:
        part = self._parts.get(name)
        if part is None:
            return super().bytes_of(name)
        return math.prod(self.shape_of(name)) * self._files.element_bytes(part.stack)
