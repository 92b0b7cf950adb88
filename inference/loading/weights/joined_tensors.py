"""``TensorFiles`` in which a tower's tensors are whole that files hold in parts:

patch_embed.proj.weight   (hidden_size, channels, height, width) for each of two frames
attn.qkv                  queries, keys and values apart
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import torch

from inference.loading.weights.tensor_files import (
    TensorFiles,
    fp8_weight,
    has_fp8,
    row_reader,
)
from inference.models.families.tower import TOWER
from inference.models.families.tower_gguf import FRAME_AXIS, PATCH_KERNEL
from inference.models.weights.lazy import RowReader
from inference.models.weights.stored import DenseWeight, Fp8Weight, StoredWeight
from inference.protocol.load_errors import MissingTensorError, WrongShapeError

_PART = re.compile(rf"({re.escape(TOWER)}.+\.(?:weight|bias))\.(\d)")
NUM_PARTS = {PATCH_KERNEL: 2}
"""The number of parts of a tensor; any other has three."""


def with_joined_tensors(files: TensorFiles) -> TensorFiles:
    """``files`` themselves where they hold no tensor in parts. Raises ``MissingTensorError``,
    ``WrongShapeError``."""
    found: dict[str, dict[int, str]] = {}
    for name in files.names:
        if match := _PART.fullmatch(name):
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


class JoinedFiles:
    def __init__(self, files: TensorFiles, joined: Mapping[str, tuple[str, ...]]) -> None:
        """``joined``: the names of a tensor's parts, by its own."""
        self._files = files
        self._joined = joined
        parts = {part for names in joined.values() for part in names}
        self._names = (set(files.names) - parts) | joined.keys()

    @property
    def names(self) -> Collection[str]:
        return self._names

    def dense(self, name: str) -> torch.Tensor:
        if name not in self._joined:
            return self._files.dense(name)
        parts = [self._files.dense(part) for part in self._joined[name]]
        return torch.stack(parts, dim=FRAME_AXIS) if name == PATCH_KERNEL else torch.cat(parts)

    def stored(self, name: str) -> StoredWeight:
        if name in self._joined:
            return DenseWeight(weight=self.dense(name))
        return self._files.stored(name)

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        if name in self._joined:
            return DenseWeight(weight=self.dense(name).flatten(0, -2)[first:last])
        return self._files.stored_rows(name, first, last)

    def reader(self, name: str) -> RowReader | None:
        return None if name in self._joined else row_reader(self._files, name)

    def has_fp8(self, name: str) -> bool:
        return name not in self._joined and has_fp8(self._files, name)

    def fp8(self, name: str) -> Fp8Weight:
        found = fp8_weight(self._files, name)
        assert found is not None, "has_fp8 answers first"
        return found

    def format_of(self, name: str) -> str:
        return self._files.format_of(self._joined[name][0] if name in self._joined else name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        if name not in self._joined:
            return self._files.shape_of(name)
        parts = self._joined[name]
        first = self._files.shape_of(parts[0])
        if name == PATCH_KERNEL:
            return *first[:FRAME_AXIS], len(parts), *first[FRAME_AXIS:]
        return len(parts) * first[0], *first[1:]

    def bytes_of(self, name: str) -> int:
        return sum(self._files.bytes_of(part) for part in self._joined.get(name, (name,)))

    def close(self) -> None:
        self._files.close()
