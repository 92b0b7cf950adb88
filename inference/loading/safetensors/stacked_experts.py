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
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.tensor_files import TensorFiles, WrappedFiles
from inference.models.weights.stored import (
    GROUP_FEATURES,
    TWICE_THE_MXFP4_VALUES,
    DenseWeight,
    GroupedWeight,
    StoredWeight,
    written_out,
)
from inference.protocol.load_errors import (
    BadFileError,
    WrongShapeError,
    shape_in_words,
)

MXFP4 = "MXFP4"
EXPONENT_BIAS = 127
BYTES_PER_GROUP = GROUP_FEATURES // 2 + 1

_INTERLEAVED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(_blocks|_scales|_bias)?")
_TRANSPOSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


@dataclass(frozen=True, slots=True)
class _Part:
    stack: str
    """The stacked tensor's name, without its ending."""
    expert: int
    outputs: slice
    """Which of an expert's outputs in the stack the part has."""
    is_bias: bool = False


def cut_interleaved(files: SafetensorsFiles) -> TensorFiles:
    """``files`` themselves where they hold no such experts. Raises ``BadFileError``."""
    stacked = [name for name in files.names if _ending(name) is not None]
    parts: dict[str, _Part] = {}
    for name in stacked:
        if _ending(name) == "_bias":
            parts |= _interleaved_parts(files, name.removesuffix("_bias"))
    return StackedExperts(files, parts, stacked) if parts else files


def cut_transposed(files: SafetensorsFiles, hidden_size: int) -> TensorFiles:
    """``files`` themselves where they hold no such stacks."""
    parts: dict[str, _Part] = {}
    stacked = [n for n in files.names if _is_transposed(n, files.shape_of(n), hidden_size)]
    for stack in stacked:
        num_experts, _, num_outputs = files.shape_of(stack)
        names = _projections(stack)
        width = num_outputs // len(names)
        for expert in range(num_experts):
            for index, name in enumerate(names):
                outputs = slice(index * width, (index + 1) * width)
                parts[f"{_prefix(stack)}.{expert}.{name}.weight"] = _Part(stack, expert, outputs)
    return StackedExperts(files, parts, stacked) if parts else files


class StackedExperts(WrappedFiles):
    _files: SafetensorsFiles

    def __init__(
        self, files: SafetensorsFiles, parts: Mapping[str, _Part], stacked: Collection[str]
    ) -> None:
        """``stacked``: the names in the files that come out as ``parts``."""
        super().__init__(files)
        self._parts = parts
        self._names = parts.keys() | (set(files.names) - set(stacked))

    @property
    def names(self) -> Collection[str]:
        return self._names

    def dense(self, name: str) -> torch.Tensor:
        part = self._parts.get(name)
        if part is None:
            return super().dense(name)
        if part.is_bias:
            return self._files.part(f"{part.stack}_bias", part.expert)[part.outputs]
        return written_out(self.stored(name))

    def stored(self, name: str) -> StoredWeight:
        part = self._parts.get(name)
        if part is None:
            return super().stored(name)
        if _is_packed(self._files, part.stack):
            blocks = self._files.part(f"{part.stack}_blocks", part.expert)[part.outputs]
            scales = self._files.part(f"{part.stack}_scales", part.expert)[part.outputs]
            return unpacked(blocks, scales, name)
        if part.outputs.step is None:
            first, last = part.outputs.start, part.outputs.stop
            columns = self._files.columns(part.stack, part.expert, first, last)
        else:
            columns = self._files.part(part.stack, part.expert)[:, part.outputs]
        return DenseWeight(weight=columns.T.contiguous())

    def format_of(self, name: str) -> str:
        part = self._parts.get(name)
        if part is None:
            return super().format_of(name)
        if not part.is_bias and _is_packed(self._files, part.stack):
            return MXFP4
        return self._files.format_of(f"{part.stack}_bias" if part.is_bias else part.stack)

    def shape_of(self, name: str) -> tuple[int, ...]:
        part = self._parts.get(name)
        if part is None:
            return super().shape_of(name)
        if part.is_bias:
            return (_count(part.outputs, self._files.shape_of(f"{part.stack}_bias")[1]),)
        if _is_packed(self._files, part.stack):
            blocks = self._files.shape_of(f"{part.stack}_blocks")
            return _count(part.outputs, blocks[1]), blocks[2] * GROUP_FEATURES
        _, inputs, num_outputs = self._files.shape_of(part.stack)
        return _count(part.outputs, num_outputs), inputs

    def bytes_of(self, name: str) -> int:
        part = self._parts.get(name)
        if part is None:
            return super().bytes_of(name)
        num_elements = math.prod(self.shape_of(name))
        if not part.is_bias and _is_packed(self._files, part.stack):
            return num_elements // GROUP_FEATURES * BYTES_PER_GROUP
        source = f"{part.stack}_bias" if part.is_bias else part.stack
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


def _interleaved_parts(files: SafetensorsFiles, stack: str) -> dict[str, _Part]:
    num_experts = _check_stack(files, stack)
    names = _projections(stack)
    has_weights = _is_packed(files, stack) or stack in files.names
    parts: dict[str, _Part] = {}
    for expert in range(num_experts):
        for index, name in enumerate(names):
            outputs, own = slice(index, None, len(names)), f"{_prefix(stack)}.{expert}.{name}"
            if has_weights:
                parts[f"{own}.weight"] = _Part(stack, expert, outputs)
            parts[f"{own}.bias"] = _Part(stack, expert, outputs, is_bias=True)
    return parts


def _check_stack(files: SafetensorsFiles, stack: str) -> int:
    """How many experts it has."""
    bias = files.shape_of(f"{stack}_bias")
    if len(bias) != 2:
        raise BadFileError(f"{stack}_bias is {shape_in_words(bias)}, and no stack of vectors")
    if _is_packed(files, stack):
        groups = files.shape_of(f"{stack}_scales")[2:]
        _check_shape(files, f"{stack}_scales", (*bias, *groups[:1]))
        _check_shape(files, f"{stack}_blocks", (*bias, *groups, GROUP_FEATURES // 2))
    elif stack in files.names:
        _check_shape(files, stack, (bias[0], *files.shape_of(stack)[1:2], bias[1]))
    return bias[0]


def _check_shape(files: SafetensorsFiles, name: str, expected: tuple[int, ...]) -> None:
    if (found := files.shape_of(name)) != expected:
        raise WrongShapeError(name, expected, found)


def _is_packed(files: SafetensorsFiles, stack: str) -> bool:
    return f"{stack}_blocks" in files.names and f"{stack}_scales" in files.names


def _is_transposed(name: str, shape: tuple[int, ...], hidden_size: int) -> bool:
    match = _TRANSPOSED.fullmatch(name)
    if match is None or len(shape) != 3 or shape[1] == shape[2]:
        return False
    return hidden_size == (shape[1] if match[2] == "gate_up_proj" else shape[2])


def _ending(name: str) -> str | None:
    """``_blocks``, ``_scales``, ``_bias`` or empty; ``None``: no stack's name."""
    match = _INTERLEAVED.fullmatch(name)
    return None if match is None else match[3] or ""


def _prefix(stack: str) -> str:
    return stack.rpartition(".")[0]


def _projections(stack: str) -> tuple[str, ...]:
    return ("gate_proj", "up_proj") if stack.endswith("gate_up_proj") else ("down_proj",)


def _count(outputs: slice, of: int) -> int:
    return len(range(*outputs.indices(of)))
