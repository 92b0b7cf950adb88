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

import torch

from inference.loading.safetensors.tensors import DTYPE_BYTES, SafeTensor, SafetensorsFiles
from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.weights.stored import (
    GROUP_FEATURES,
    TWICE_THE_MXFP4_VALUES,
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

_INTERLEAVED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(_blocks|_scales|_bias)?")
_TRANSPOSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


def cut_interleaved(files: SafetensorsFiles) -> TensorFiles:
    """``files`` themselves where they hold no such experts. Raises ``BadFileError``."""
    stacked = [name for name in files.names if _ending(name) is not None]
    parts: dict[str, FileTensor] = {}
    for name in stacked:
        if _ending(name) == "_bias":
            parts |= _interleaved_parts(files, name.removesuffix("_bias"))
    return _cut(files, parts, stacked)


def cut_transposed(files: SafetensorsFiles, hidden_size: int) -> TensorFiles:
    """``files`` themselves where they hold no such stacks."""
    parts: dict[str, FileTensor] = {}
    stacked = [n for n in files.names if _is_transposed(n, files.shape_of(n), hidden_size)]
    for stack in stacked:
        num_experts, _, num_outputs = files.shape_of(stack)
        names = _projections(stack)
        width = num_outputs // len(names)
        for expert in range(num_experts):
            for index, name in enumerate(names):
                outputs = slice(index * width, (index + 1) * width)
                own = f"{_prefix(stack)}.{expert}.{name}.weight"
                parts[own] = DenseExpert(files[stack], expert, outputs)
    return _cut(files, parts, stacked)


def _cut(
    files: SafetensorsFiles, parts: Mapping[str, FileTensor], stacked: Collection[str]
) -> TensorFiles:
    """``stacked``: the names in the files that come out as ``parts``."""
    if not parts:
        return files
    others = {name: files[name] for name in files.names if name not in stacked}
    return TensorFiles({**others, **parts}, files.close)


class ExpertBias(FileTensor):
    def __init__(self, stack: SafeTensor, expert: int, outputs: slice) -> None:
        """``outputs``: which of an expert's outputs in the stack are the tensor's."""
        self._stack, self._expert, self._outputs = stack, expert, outputs
        self.shape, self.format = (_count(outputs, stack.shape[1]),), stack.format
        self.num_bytes = self.shape[0] * DTYPE_BYTES[stack.format]

    def dense(self) -> torch.Tensor:
        return self._stack.part(self._expert)[self._outputs]


class DenseExpert(FileTensor):
    def __init__(self, stack: SafeTensor, expert: int, outputs: slice) -> None:
        self._stack, self._expert, self._outputs = stack, expert, outputs
        _, inputs, num_outputs = stack.shape
        self.shape, self.format = (_count(outputs, num_outputs), inputs), stack.format
        self.num_bytes = math.prod(self.shape) * DTYPE_BYTES[stack.format]

    def dense(self) -> torch.Tensor:
        outputs = self._outputs
        if outputs.step is None:
            columns = self._stack.columns(self._expert, outputs.start, outputs.stop)
        else:
            columns = self._stack.part(self._expert)[:, outputs]
        return columns.T.contiguous()


class PackedExpert(FileTensor):
    format = MXFP4

    def __init__(
        self, name: str, blocks: SafeTensor, scales: SafeTensor, expert: int, outputs: slice
    ) -> None:
        self._name, self._blocks, self._scales = name, blocks, scales
        self._expert, self._outputs = expert, outputs
        num_groups = blocks.shape[2]
        self.shape = _count(outputs, blocks.shape[1]), num_groups * GROUP_FEATURES
        self.num_bytes = self.shape[0] * num_groups * BYTES_PER_GROUP

    def stored(self) -> StoredWeight:
        blocks, scales = (
            stack.part(self._expert)[self._outputs] for stack in (self._blocks, self._scales)
        )
        return unpacked(blocks, scales, self._name)


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


def _interleaved_parts(files: SafetensorsFiles, stack: str) -> dict[str, FileTensor]:
    names, parts = _projections(stack), dict[str, FileTensor]()
    for expert in range(_check_stack(files, stack)):
        for index, name in enumerate(names):
            outputs, own = slice(index, None, len(names)), f"{_prefix(stack)}.{expert}.{name}"
            weight = f"{own}.weight"
            if _is_packed(files, stack):
                blocks, scales = files[f"{stack}_blocks"], files[f"{stack}_scales"]
                parts[weight] = PackedExpert(weight, blocks, scales, expert, outputs)
            elif stack in files.names:
                parts[weight] = DenseExpert(files[stack], expert, outputs)
            parts[f"{own}.bias"] = ExpertBias(files[f"{stack}_bias"], expert, outputs)
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
