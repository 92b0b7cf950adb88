"""Whether weight files hold every tensor that a model of a config computes with, each in the shape
that its family declares. Reads headers only; one place for GGUF and safetensors. Imports no torch.

    config ─▶ family.tensors ─▶ expected names and shapes ─┐
    headers ─▶ TensorFiles ─▶ found names and shapes ──────┴─▶ the first that differs is refused
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Protocol

from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.families.roles import TensorRole
from inference.protocol.load_errors import MissingTensorError, WrongShapeError

Shape = tuple[int, ...]

MOST_COUNTED = 1000
"""Most missing tensors that are counted; the message states that there are more."""


class DeclaredTensors(Protocol):
    """Names and shapes as file headers declare them."""

    @property
    def names(self) -> Collection[str]: ...

    def shape_of(self, name: str) -> Shape: ...


def check_tensors(config: ModelConfig, files: DeclaredTensors) -> None:
    """Raises ``MissingTensorError`` and ``WrongShapeError``, naming the first tensor that differs
    from what the family of ``config`` declares."""
    names = files.names
    lacking = (
        name
        for tensor in family_of(config).tensors(config)
        if tensor.name not in names and not tensor.is_optional
        for name in tensor.parts or (tensor.name,)
        if name not in names
    )
    missing = list(islice(lacking, MOST_COUNTED))
    if missing:
        count = f"{'more than ' if len(missing) == MOST_COUNTED else ''}{len(missing) - 1}"
        others = f" and {count} more" if len(missing) > 1 else ""
        raise MissingTensorError(f"the weight files lack {missing[0]}{others}")
    for tensor in family_of(config).tensors(config):
        for name, expected in _expected(tensor, names):
            found = files.shape_of(name)
            if not _is_same(tensor, expected, found):
                raise WrongShapeError(name, expected, found)


def check_module_tensors(
    declared: Mapping[str, Shape], files: DeclaredTensors, prefix: str = ""
) -> None:
    """Checks the tensors of a transformers module, which alone knows how the files' tensors become
    its own: those that both call alike must hold as many numbers. ``declared``: the module's, by
    name; ``prefix``: what files may put before its names, or leave out. Raises
    ``WrongShapeError``."""
    for name in files.names:
        names = name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"
        own = next((own for own in names if own in declared), None)
        if own is None:
            continue
        expected, found = declared[own], files.shape_of(name)
        if math.prod(expected) != math.prod(found):
            raise WrongShapeError(name, expected, found)


def _expected(tensor: TensorRole, names: Collection[str]) -> Iterator[tuple[str, Shape]]:
    """Names among ``names`` that the tensor is held in, and their shapes. A weight's bias is read
    wherever files have one, also where no family declares it."""
    is_whole = tensor.name in names
    held = (tensor.name,) if is_whole else tensor.parts
    shape = tensor.shape if is_whole else tensor.shape[1:]
    for name in held:
        if name not in names:
            continue
        yield name, shape
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and f"{stem}.bias" in names:
            yield f"{stem}.bias", shape[:1]


def _is_same(tensor: TensorRole, expected: Shape, found: Shape) -> bool:
    """Files may leave out axes of one entry."""
    if tensor.may_be_folded:
        return math.prod(found) == math.prod(expected)
    return found in (expected, tuple(size for size in expected if size != 1))
