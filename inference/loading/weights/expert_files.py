"""``TensorFiles`` in which every expert of a mixture is a matrix of its own.

Files hold experts in several ways; models, preflight and quantising see one of them:

    file                                        comes out as
    mlp.experts.3.gate_proj.weight              the same
    mlp.experts.gate_proj.weight  (E, out, in)  mlp.experts.0.gate_proj.weight ...  (out, in) each
    mlp.experts.gate_proj.bias  (E, out)        mlp.experts.0.gate_proj.bias ...
    mlp.experts.gate_up_proj  (E, 2 out, in)    mlp.experts.0.gate_proj.weight, its first rows,
                                                mlp.experts.0.up_proj.weight, its last
    block_sparse_moe.experts.3.w1.weight        mlp.experts.3.gate_proj.weight; w3 is up, w2 down

A stack is cut where it lies: nothing but the expert that is asked for is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from inference.loading.weights.tensor_files import TensorFiles, WrappedFiles
from inference.models.weights.lazy import RowReader
from inference.models.weights.stored import StoredWeight, written_out
from inference.protocol.load_errors import BadFileError, MissingTensorError, shape_in_words

MIXTRAL_BLOCK = ".block_sparse_moe."
MIXTRAL_NAMES = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}

_STACK = re.compile(r"(.*\.experts)\.(gate_proj|up_proj|down_proj|gate_up_proj)(\.weight|\.bias)?")


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows [first, last) of the file's tensor ``name``, or all of it."""

    name: str
    first: int = 0
    last: int | None = None
    is_bias: bool = False
    """Whether it is one row, and comes out as a vector."""

    @property
    def num_rows(self) -> int | None:
        return None if self.last is None else self.last - self.first


def by_expert(files: TensorFiles) -> TensorFiles:
    """``files`` themselves where they hold no experts, or hold each by its own name already."""
    parts = {name: part for source in files.names for name, part in _parts(files, source)}
    return files if parts.keys() == set(files.names) else ExpertFiles(files, parts)


class ExpertFiles(WrappedFiles):
    def __init__(self, files: TensorFiles, parts: dict[str, _Part]) -> None:
        super().__init__(files)
        self._parts = parts

    @property
    def names(self) -> Collection[str]:
        return self._parts.keys()

    def source(self, name: str) -> str:
        return self._find(name).name

    def dense(self, name: str) -> torch.Tensor:
        part = self._find(name)
        if part.last is None:
            return super().dense(name)
        dense = written_out(self._files.stored_rows(part.name, part.first, part.last))
        return dense.view(-1) if part.is_bias else dense

    def stored(self, name: str) -> StoredWeight:
        part = self._find(name)
        if part.last is None:
            return super().stored(name)
        return self._files.stored_rows(part.name, part.first, part.last)

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        part = self._find(name)
        return self._files.stored_rows(part.name, part.first + first, part.first + last)

    def reader(self, name: str) -> RowReader | None:
        """``None`` for an expert in a stack: it is small enough to be read whole."""
        return super().reader(name) if self._find(name).last is None else None

    def has_fp8(self, name: str) -> bool:
        """A matrix of a stack is multiplied out."""
        return self._find(name).last is None and super().has_fp8(name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        part = self._find(name)
        shape = self._files.shape_of(part.name)
        if part.is_bias:
            return shape[-1:]
        return shape if part.num_rows is None else (part.num_rows, shape[-1])

    def bytes_of(self, name: str) -> int:
        part = self._find(name)
        num_bytes = self._files.bytes_of(part.name)
        if part.num_rows is None:
            return num_bytes
        return num_bytes * part.num_rows // math.prod(self._files.shape_of(part.name)[:-1])

    def _find(self, name: str) -> _Part:
        try:
            return self._parts[name]
        except KeyError:
            raise MissingTensorError(f"the weight files have no tensor for {name}") from None


def _parts(files: TensorFiles, source: str) -> Iterator[tuple[str, _Part]]:
    name = _renamed(source)
    match = _STACK.fullmatch(name)
    if match is None:
        yield name, _Part(source)
        return
    prefix, projection, kind = match.groups()
    if kind == ".bias":
        for expert in range(_axes(files, source, 2)[0]):
            part = _Part(source, expert, expert + 1, is_bias=True)
            yield f"{prefix}.{expert}.{projection}.bias", part
        return
    num_experts, num_rows, _ = _axes(files, source, 3)
    inner = ["gate_proj", "up_proj"] if projection == "gate_up_proj" else [projection]
    part_rows = num_rows // len(inner)
    for expert in range(num_experts):
        for index, inner_name in enumerate(inner):
            first = expert * num_rows + index * part_rows
            part = _Part(source, first, first + part_rows)
            yield f"{prefix}.{expert}.{inner_name}.weight", part


def _axes(files: TensorFiles, source: str, count: int) -> tuple[int, ...]:
    shape = files.shape_of(source)
    if len(shape) != count:
        raise BadFileError(f"{source} is {shape_in_words(shape)}, and no stack of experts")
    return shape


def _renamed(name: str) -> str:
    if MIXTRAL_BLOCK not in name:
        return name
    for theirs, ours in MIXTRAL_NAMES.items():
        name = name.replace(theirs, ours)
    return name.replace(MIXTRAL_BLOCK, ".mlp.")
