"""``TensorFiles`` by the names and in the shapes that the model asks for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from inference.loading.weights.tensor_files import FileTensor, MadeTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import PREDICTOR
from inference.models.families.family import Family
from inference.models.families.registry import family_of
from inference.models.families.tower import FRAME_AXIS, PATCH_KERNEL, TOWER
from inference.protocol.load_errors import MissingTensorError, WrongShapeError

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_TOWER_PART = re.compile(rf"({re.escape(TOWER)}.+\.(?:weight|bias))\.(\d)")
NUM_PARTS = {PATCH_KERNEL: 2}
"""Into how many parts files divide a tensor; any other has three."""


def named_files(files: TensorFiles, family: Family, config: ModelConfig) -> tuple[TensorFiles, str]:
    """The tensors by the family's names; and a sentence for people about those that are left out,
    empty where everything is computed with."""
    named: dict[str, FileTensor] = {}
    num_left_out: Counter[str] = Counter()
    for name in files.names:
        own = family.hub_name(name)
        if purpose := next(_purposes(name, own, family, config), None):
            num_left_out[purpose] += 1
        else:
            named[_inside(own, family, config)] = files[name]
    counts = sorted(num_left_out.items())
    words = ", ".join(f"{count} tensors of {purpose} left out" for purpose, count in counts)
    return TensorFiles(named, files.close), words


def _purposes(name: str, own: str, family: Family, config: ModelConfig) -> Iterator[str]:
    """What a tensor is for that the model does not compute with."""
    computed = {TOWER: config.vision is not None, PREDICTOR: config.has_predictor}
    for start, words in family.left_out.items():
        if not computed.get(start, False) and (name.startswith(start) or own.startswith(start)):
            yield words
    layer = None if family.uses_transformers else _LAYER.match(own)
    # The first of the layers behind the model's own is all that is ever computed.
    if layer and int(layer[1]) >= config.num_layers + config.has_predictor:
        yield "multi-token prediction"


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
    """A tower's tensors whole that files hold in parts: patch_embed.proj.weight for each of two
    frames; queries, keys and values of attn.qkv. ``files`` themselves where they hold none. Raises
    ``MissingTensorError``, ``WrongShapeError``."""
    found: dict[str, dict[int, str]] = {}
    for name in files.names:
        if match := _TOWER_PART.fullmatch(name):
            found.setdefault(match[1], {})[int(match[2])] = name
    if not found:
        return files
    tensors = {name: files[name] for name in files.names}
    for whole, parts in found.items():
        _check(files, whole, parts)
        tensors[whole] = _joined(whole, [tensors.pop(parts[i]) for i in sorted(parts)])
    return TensorFiles(tensors, files.close)


def _check(files: TensorFiles, whole: str, parts: Mapping[int, str]) -> None:
    wanted = NUM_PARTS.get(whole, 3)
    if parts.keys() != set(range(wanted)):
        raise MissingTensorError(f"the files have {len(parts)} of {wanted} parts of {whole}")
    first = files.shape_of(parts[0])
    for name in parts.values():
        if (shape := files.shape_of(name)) != first:
            raise WrongShapeError(name, first, shape)


def _joined(whole: str, parts: Sequence[FileTensor]) -> MadeTensor:
    first, are_frames = parts[0], whole == PATCH_KERNEL
    shape = (len(parts) * first.shape[0], *first.shape[1:])
    if are_frames:
        shape = (*first.shape[:FRAME_AXIS], len(parts), *first.shape[FRAME_AXIS:])

    def read() -> torch.Tensor:
        tensors = [part.dense() for part in parts]
        return torch.stack(tensors, dim=FRAME_AXIS) if are_frames else torch.cat(tensors)

    return MadeTensor(shape, first.format, sum(part.num_bytes for part in parts), read)
