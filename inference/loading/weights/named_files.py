"""``TensorFiles`` as the model asks for them, whatever the files hold:

    named_files          the family's names, without tensors that the model does not compute with,
                         which are counted, so that a load reports them
    with_joined_tensors  a tower's tensors whole that files hold in parts: patch_embed.proj.weight
                         for each of two frames; queries, keys and values of attn.qkv
    by_expert            every expert of a mixture as a matrix of its own

    file                                        expert
    mlp.experts.3.gate_proj.weight              the same
    mlp.experts.gate_proj.weight  (E, out, in)  mlp.experts.0.gate_proj.weight ...  (out, in) each
    mlp.experts.gate_proj.bias  (E, out)        mlp.experts.0.gate_proj.bias ...
    mlp.experts.gate_up_proj  (E, 2 out, in)    mlp.experts.0.gate_proj.weight, its first rows,
                                                mlp.experts.0.up_proj.weight, its last

A stack is cut where it lies: nothing but the expert that is asked for is read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.predictor import PREDICTOR
from inference.models.families.registry import family_of
from inference.models.families.tower import TOWER
from inference.models.families.tower_names import FRAME_AXIS, PATCH_KERNEL
from inference.models.weights.stored import StoredWeight
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
_STACK = re.compile(r"(.*\.experts)\.(gate_proj|up_proj|down_proj|gate_up_proj)(\.weight|\.bias)?")


def named_files(files: TensorFiles, family: Family, config: ModelConfig) -> tuple[TensorFiles, str]:
    """The tensors by the family's names; and a sentence for people about those that are left out,
    empty where everything is computed with."""
    named: dict[str, FileTensor] = {}
    num_left_out: Counter[str] = Counter()
    left_out = _left_out(family, config)
    for name in files.names:
        own = family.hub_name(name)
        purpose = _purpose_left_out(name, left_out) or _purpose_left_out(own, left_out)
        if purpose is None and not family.uses_transformers:
            purpose = _predicting(own, config)
        if purpose is not None:
            num_left_out[purpose] += 1
        else:
            named[_inside(own, family, config)] = files[name]
    counts = sorted(num_left_out.items())
    words = ", ".join(f"{count} tensors of {purpose} left out" for purpose, count in counts)
    return TensorFiles(named, files.close), words


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
    if not found:
        return files
    tensors = {name: files[name] for name in files.names}
    for whole, parts in found.items():
        _check(files, whole, parts)
        joined = [tensors.pop(parts[i]) for i in sorted(parts)]
        tensors[whole] = JoinedTensor(joined, are_frames=whole == PATCH_KERNEL)
    return TensorFiles(tensors, files.close)


def _check(files: TensorFiles, whole: str, parts: Mapping[int, str]) -> None:
    wanted = NUM_PARTS.get(whole, 3)
    if parts.keys() != set(range(wanted)):
        raise MissingTensorError(f"the files have {len(parts)} of {wanted} parts of {whole}")
    first = files.shape_of(parts[0])
    for name in parts.values():
        if (shape := files.shape_of(name)) != first:
            raise WrongShapeError(name, first, shape)


class JoinedTensor(FileTensor):
    def __init__(self, parts: Sequence[FileTensor], *, are_frames: bool) -> None:
        self._parts, self._are_frames = parts, are_frames
        first = parts[0].shape
        self.shape = (len(parts) * first[0], *first[1:])
        if are_frames:
            self.shape = (*first[:FRAME_AXIS], len(parts), *first[FRAME_AXIS:])
        self.format = parts[0].format
        self.num_bytes = sum(part.num_bytes for part in parts)

    def dense(self) -> torch.Tensor:
        parts = [part.dense() for part in self._parts]
        return torch.stack(parts, dim=FRAME_AXIS) if self._are_frames else torch.cat(parts)


def by_expert(files: TensorFiles) -> TensorFiles:
    """``files`` themselves where they hold no experts, or hold each by its own name already."""
    parts = {name: part for source in files.names for name, part in _parts(source, files[source])}
    return files if parts.keys() == set(files.names) else TensorFiles(parts, files.close)


class ExpertRows(FileTensor):
    """Rows [first, first + num_rows) of a stack. They are small enough to be read whole."""

    def __init__(
        self, stack: FileTensor, first: int, num_rows: int, *, is_bias: bool = False
    ) -> None:
        """``is_bias``: it is one row, and comes out as a vector."""
        self._stack, self._first, self._is_bias = stack, first, is_bias
        self.shape = stack.shape[-1:] if is_bias else (num_rows, stack.shape[-1])
        self.format = stack.format
        self._num_rows = num_rows
        self.num_bytes = stack.num_bytes * num_rows // math.prod(stack.shape[:-1])

    def dense(self) -> torch.Tensor:
        dense = super().dense()
        return dense.view(-1) if self._is_bias else dense

    def stored(self) -> StoredWeight:
        return self.stored_rows(0, self._num_rows)

    def stored_rows(self, first: int, last: int) -> StoredWeight:
        return self._stack.stored_rows(self._first + first, self._first + last)


def _parts(source: str, tensor: FileTensor) -> Iterator[tuple[str, FileTensor]]:
    match = _STACK.fullmatch(source)
    if match is None:
        yield source, tensor
        return
    prefix, projection, kind = match.groups()
    if kind == ".bias":
        for expert in range(_axes(source, tensor, 2)[0]):
            part = ExpertRows(tensor, expert, 1, is_bias=True)
            yield f"{prefix}.{expert}.{projection}.bias", part
        return
    num_experts, num_rows, _ = _axes(source, tensor, 3)
    inner = ["gate_proj", "up_proj"] if projection == "gate_up_proj" else [projection]
    part_rows = num_rows // len(inner)
    for expert in range(num_experts):
        for index, inner_name in enumerate(inner):
            first = expert * num_rows + index * part_rows
            yield f"{prefix}.{expert}.{inner_name}.weight", ExpertRows(tensor, first, part_rows)


def _axes(source: str, tensor: FileTensor, count: int) -> tuple[int, ...]:
    if len(tensor.shape) != count:
        raise BadFileError(f"{source} is {shape_in_words(tensor.shape)}, and no stack of experts")
    return tensor.shape
