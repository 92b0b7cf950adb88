"""Experts whose stacks have their inputs first, each as a matrix of its own: over
``SafetensorsFiles``, as Qwen3-VL's mixtures are published.

    file                                          comes out as
    mlp.experts.gate_up_proj  (E, in, 2 inner)    mlp.experts.0.gate_proj.weight, its first columns
                                                  transposed, mlp.experts.0.up_proj.weight, its last
    mlp.experts.down_proj     (E, inner, out)     mlp.experts.0.down_proj.weight, transposed

Some files of the same families have their outputs first, as others do; the model's width shows
which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.tensor_files import TensorFiles
from inference.models.weights.stored import DenseWeight, StoredWeight
from inference.protocol.load_errors import MissingTensorError

_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns [first, last) of an expert in ``stack``."""

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
    match = _STACK.fullmatch(name)
    if match is None or len(shape) != 3 or shape[1] == shape[2]:
        return False
    inputs_first = (
        (hidden_size, shape[2]) if match[2] == "gate_up_proj" else (shape[1], hidden_size)
    )
    return shape[1:] == inputs_first


class TransposedExperts:
    def __init__(self, files: SafetensorsFiles, stacks: Collection[str]) -> None:
        self._files = files
        self._others = set(files.names) - set(stacks)
        self._parts = {
            name: part for stack in stacks for name, part in self._parts_of(stack).items()
        }

    def _parts_of(self, stack: str) -> dict[str, _Part]:
        prefix, _, inner = stack.rpartition(".")
        num_experts, _, num_columns = self._files.shape_of(stack)
        names = ("gate_proj", "up_proj") if inner == "gate_up_proj" else ("down_proj",)
        width = num_columns // len(names)
        return {
            f"{prefix}.{expert}.{name}.weight": _Part(stack, expert, i * width, (i + 1) * width)
            for expert in range(num_experts)
            for i, name in enumerate(names)
        }

    @property
    def names(self) -> Collection[str]:
        return self._parts.keys() | self._others

    def dense(self, name: str) -> torch.Tensor:
        part = self._parts.get(name)
        if part is None:
            return self._files.dense(self._other(name))
        return self._files.columns(part.stack, part.expert, part.first, part.last).T.contiguous()

    def stored(self, name: str) -> StoredWeight:
        return DenseWeight(weight=self.dense(name))

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        """Never called: these experts are split already."""
        return self._files.stored_rows(self._other(name), first, last)

    def format_of(self, name: str) -> str:
        part = self._parts.get(name)
        return self._files.format_of(self._other(name) if part is None else part.stack)

    def shape_of(self, name: str) -> tuple[int, ...]:
        part = self._parts.get(name)
        if part is None:
            return self._files.shape_of(self._other(name))
        return part.last - part.first, self._files.shape_of(part.stack)[1]

    def bytes_of(self, name: str) -> int:
        part = self._parts.get(name)
        if part is None:
            return self._files.bytes_of(self._other(name))
        return math.prod(self.shape_of(name)) * self._files.element_bytes(part.stack)

    def close(self) -> None:
        self._files.close()

    def _other(self, name: str) -> str:
        if name not in self._others:
            raise MissingTensorError(f"the safetensors files have no tensor {name}")
        return name
