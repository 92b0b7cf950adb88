"""``TensorFiles`` as the model asks for them, whatever the files hold:

    NamedFiles    the family's names, without tensors that the model does not compute with, which
                  are counted, so that a load reports them
    JoinedFiles   a tower's tensors whole that files hold in parts: patch_embed.proj.weight for each
                  of two frames; queries, keys and values of attn.qkv
    ExpertFiles   every expert of a mixture as a matrix of its own

    file                                        expert
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
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from inference.loading.weights.tensor_files import TensorFiles, WrappedFiles
from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.predictor import PREDICTOR
from inference.models.families.registry import family_of
from inference.models.families.tower import TOWER
from inference.models.families.tower_gguf import FRAME_AXIS, PATCH_KERNEL
from inference.models.weights.lazy import RowReader
from inference.models.weights.stored import DenseWeight, StoredWeight, written_out
from inference.protocol.load_errors import (
    BadFileError,
    MissingTensorError,
    WrongShapeError,
    shape_in_words,
)

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_TOWER_PART = re.compile(rf"({re.escape(TOWER)}.+\.(?:weight|bias))\.(\d)")
NUM_PARTS = {PATCH_KERNEL: 2}
"""Into how many parts files divide a tensor; any other has three."""
MIXTRAL_BLOCK = ".block_sparse_moe."
MIXTRAL_NAMES = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
_STACK = re.compile(r"(.*\.experts)\.(gate_proj|up_proj|down_proj|gate_up_proj)(\.weight|\.bias)?")


class NamedFiles(WrappedFiles):
    def __init__(self, files: TensorFiles, family: Family, config: ModelConfig) -> None:
        super().__init__(files)
        self._own_names: dict[str, str] = {}
        """The model's name of a tensor -> its name in the files."""
        self._num_left_out: Counter[str] = Counter()
        left_out = _left_out(family, config)
        for name in files.names:
            own = family.hub_name(name)
            purpose = _purpose_left_out(name, left_out) or _purpose_left_out(own, left_out)
            if purpose is None and not family.uses_transformers:
                purpose = _predicting(own, config)
            if purpose is not None:
                self._num_left_out[purpose] += 1
            else:
                self._own_names[_inside(own, family, config)] = name

    @property
    def left_out(self) -> str:
        """A sentence for people; empty where everything is computed with."""
        counts = sorted(self._num_left_out.items())
        return ", ".join(f"{count} tensors of {purpose} left out" for purpose, count in counts)

    @property
    def names(self) -> Collection[str]:
        return self._own_names.keys()

    def source(self, name: str) -> str:
        try:
            return self._own_names[name]
        except KeyError:
            raise MissingTensorError(f"the weight files have no tensor for {name}") from None


def _left_out(family: Family, config: ModelConfig) -> dict[str, str]:
    computed = {TOWER: config.vision is not None, PREDICTOR: config.has_predictor}
    return {
        start: words for start, words in family.left_out.items() if not computed.get(start, False)
    }


def _purpose_left_out(name: str, left_out: Mapping[str, str]) -> str | None:
    return next((words for start, words in left_out.items() if name.startswith(start)), None)


def _predicting(name: str, config: ModelConfig) -> str | None:
    """The first of the layers behind the model's own, which predict further tokens, is all that is
    ever computed."""
    layer, num_computed = _LAYER.match(name), config.num_layers + config.has_predictor
    return "multi-token prediction" if layer and int(layer[1]) >= num_computed else None


def _inside(own_name: str, family: Family, config: ModelConfig) -> str:
    return family.predictor_name(own_name, config) if family.predictor_name else own_name


def with_predictor(config: ModelConfig, family: Family, names: Collection[str]) -> ModelConfig:
    """``names``: of the files, which may lack it though the family knows one."""
    inside = (_inside(family.hub_name(name), family, config) for name in names)
    has_predictor = family.predictor_name is not None and f"{PREDICTOR}fc.weight" in inside
    return replace(config, has_predictor=has_predictor)


def without_absent_tower(config: ModelConfig, names: Collection[str]) -> ModelConfig:
    """``names``: of the files. Text models made from a checkpoint with a tower often keep its
    description and lack its tensors."""
    hub_name = family_of(config).hub_name
    if config.vision is None or any(hub_name(name).startswith(TOWER) for name in names):
        return config
    return replace(config, vision=None)


def with_joined_tensors(files: TensorFiles) -> TensorFiles:
    """``files`` themselves where they hold no tensor in parts. Raises ``MissingTensorError``,
    ``WrongShapeError``."""
    found: dict[str, dict[int, str]] = {}
    for name in files.names:
        if match := _TOWER_PART.fullmatch(name):
            found.setdefault(match[1], {})[int(match[2])] = name
    for whole, parts in found.items():
        _check(files, whole, parts)
    joined = {whole: tuple(parts[i] for i in sorted(parts)) for whole, parts in found.items()}
    return JoinedFiles(files, joined) if joined else files


def _check(files: TensorFiles, whole: str, parts: Mapping[int, str]) -> None:
    wanted = NUM_PARTS.get(whole, 3)
    if parts.keys() != set(range(wanted)):
        raise MissingTensorError(f"the files have {len(parts)} of {wanted} parts of {whole}")
    first = files.shape_of(parts[0])
    for name in parts.values():
        if (shape := files.shape_of(name)) != first:
            raise WrongShapeError(name, first, shape)


class JoinedFiles(WrappedFiles):
    def __init__(self, files: TensorFiles, joined: Mapping[str, tuple[str, ...]]) -> None:
        """``joined``: the names of a tensor's parts, by its own."""
        super().__init__(files)
        self._joined = joined
        parts = {part for names in joined.values() for part in names}
        self._names = (set(files.names) - parts) | joined.keys()

    @property
    def names(self) -> Collection[str]:
        return self._names

    def dense(self, name: str) -> torch.Tensor:
        if name not in self._joined:
            return super().dense(name)
        parts = [self._files.dense(part) for part in self._joined[name]]
        return torch.stack(parts, dim=FRAME_AXIS) if name == PATCH_KERNEL else torch.cat(parts)

    def stored(self, name: str) -> StoredWeight:
        if name in self._joined:
            return DenseWeight(weight=self.dense(name))
        return super().stored(name)

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        if name in self._joined:
            return DenseWeight(weight=self.dense(name).flatten(0, -2)[first:last])
        return super().stored_rows(name, first, last)

    def reader(self, name: str) -> RowReader | None:
        return None if name in self._joined else super().reader(name)

    def has_fp8(self, name: str) -> bool:
        return name not in self._joined and super().has_fp8(name)

    def format_of(self, name: str) -> str:
        return self._files.format_of(self._joined[name][0] if name in self._joined else name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        if name not in self._joined:
            return super().shape_of(name)
        parts = self._joined[name]
        first = self._files.shape_of(parts[0])
        if name == PATCH_KERNEL:
            return *first[:FRAME_AXIS], len(parts), *first[FRAME_AXIS:]
        return len(parts) * first[0], *first[1:]

    def bytes_of(self, name: str) -> int:
        return sum(self._files.bytes_of(part) for part in self._joined.get(name, (name,)))


@dataclass(frozen=True, slots=True)
class _Rows:
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
    parts = {name: part for source in files.names for name, part in _expert_rows(files, source)}
    return files if parts.keys() == set(files.names) else ExpertFiles(files, parts)


class ExpertFiles(WrappedFiles):
    def __init__(self, files: TensorFiles, parts: dict[str, _Rows]) -> None:
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

    def _find(self, name: str) -> _Rows:
        try:
            return self._parts[name]
        except KeyError:
            raise MissingTensorError(f"the weight files have no tensor for {name}") from None


def _expert_rows(files: TensorFiles, source: str) -> Iterator[tuple[str, _Rows]]:
    name = _renamed(source)
    match = _STACK.fullmatch(name)
    if match is None:
        yield name, _Rows(source)
        return
    prefix, projection, kind = match.groups()
    if kind == ".bias":
        for expert in range(_axes(files, source, 2)[0]):
            part = _Rows(source, expert, expert + 1, is_bias=True)
            yield f"{prefix}.{expert}.{projection}.bias", part
        return
    num_experts, num_rows, _ = _axes(files, source, 3)
    inner = ["gate_proj", "up_proj"] if projection == "gate_up_proj" else [projection]
    part_rows = num_rows // len(inner)
    for expert in range(num_experts):
        for index, inner_name in enumerate(inner):
            first = expert * num_rows + index * part_rows
            part = _Rows(source, first, first + part_rows)
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
