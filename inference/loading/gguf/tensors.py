"""Tensors of a GGUF model, memory-mapped, under Hugging Face names and in natural row order.

A model may be split over several files. Tensors are returned as copies, and a tensor's pages leave
memory as soon as it was read, so a load never holds the file beside the model.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from inference.loading.gguf import quants as gguf_quants
from inference.loading.gguf.fields import Blocks
from inference.loading.gguf.header import GGUFHeader, TensorInfo
from inference.loading.gguf.types import unreadable_reason
from inference.models.config import ModelConfig
from inference.models.families.gguf_keys import PREDICTING_LAYERS, ROPE_FREQUENCIES
from inference.models.families.registry import family_of
from inference.models.weights.stored import StoredWeight
from inference.protocol.load_errors import BadFileError, MissingTensorError

LAYER_NUMBER = re.compile(r"blk\.(\d+)\.")
MAPPED_AROUND = 2**20
"""More than a kernel maps, unasked, on either side of a page that is read."""


class GGUFTensorFiles:
    def __init__(self, header: GGUFHeader, config: ModelConfig) -> None:
        """Raises ``BadFileError`` for a tensor that cannot be read or would not be used."""
        self._config = config
        self._family = family_of(config)
        architecture = header.metadata.get("general.architecture")
        self._has_predicting_layers = f"{architecture}.{PREDICTING_LAYERS}" in header.metadata
        infos = [
            info
            for info in header.tensors.values()
            if info.name != ROPE_FREQUENCIES and not self._is_predicting(info.name)
        ]
        self.left_out = self._in_words(header)
        """In words: what nothing computes with."""
        self._tensors = {self._name(info): info for info in infos}
        self._maps = {path: _mapped(path) for path in {info.path for info in infos}}

    def _is_predicting(self, name: str) -> bool:
        """Whether the tensor is of a layer behind the model's own, which predicts further tokens:
        files that have such layers count them among the blocks."""
        layer = LAYER_NUMBER.match(name) if self._has_predicting_layers else None
        return layer is not None and int(layer[1]) >= self._config.num_layers

    def _in_words(self, header: GGUFHeader) -> str:
        num_left_out = sum(map(self._is_predicting, header.tensors))
        return f"{num_left_out} tensors of multi-token prediction left out" if num_left_out else ""

    def _name(self, info: TensorInfo) -> str:
        name = self._family.gguf_names.hugging_face(info.name)
        if name is None:
            raise BadFileError(
                f"{info.path.name} holds the tensor {info.name}, which no "
                f"{self._config.architecture} model here computes with"
            )
        if reason := unreadable_reason(info.type):
            raise BadFileError(f"{info.path.name}: {info.name} is {reason}")
        return name

    @property
    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def dense(self, name: str) -> torch.Tensor:
        info = self._find(name)
        tensor = gguf_quants.dense(self._rows(name), info.type).view(info.shape)
        self._forget_pages(info)
        return tensor

    def stored(self, name: str) -> StoredWeight:
        info = self._find(name)
        weight = gguf_quants.stored(self._rows(name), info.type)
        self._forget_pages(info)
        return weight

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        info = self._find(name)
        num_rows = info.num_elements // info.shape[-1]
        row_bytes = info.num_bytes // num_rows
        part = replace(
            info,
            offset=info.offset + first * row_bytes,
            shape=(last - first, info.shape[-1]),
        )
        raw = np.frombuffer(self._maps[part.path], np.uint8, part.num_bytes, part.offset)
        weight = gguf_quants.stored(raw.reshape(last - first, -1), part.type)
        self._forget_pages(part)
        return weight

    def format_of(self, name: str) -> str:
        return str(self._find(name).type.name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def bytes_of(self, name: str) -> int:
        return self._find(name).num_bytes

    def close(self) -> None:
        self._maps.clear()

    def _find(self, name: str) -> TensorInfo:
        try:
            return self._tensors[name]
        except KeyError:
            raise MissingTensorError(f"the GGUF file has no tensor for {name}") from None

    def _rows(self, name: str) -> Blocks:
        """The tensor's bytes, one row per output feature (a vector is one row)."""
        info = self._find(name)
        raw = np.frombuffer(self._maps[info.path], np.uint8, info.num_bytes, info.offset)
        num_heads = self._family.interleaved_heads(name, self._config)
        num_rows = info.shape[0] if len(info.shape) == 2 or num_heads else 1
        rows = raw.reshape(num_rows, -1)
        return rows if num_heads is None else natural_rotary_order(rows, num_heads)

    def _forget_pages(self, info: TensorInfo) -> None:
        """Drop the tensor's pages from memory; another read comes from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            pages = self._maps[info.path]
            first = max(0, info.offset - MAPPED_AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(len(pages), info.offset + info.num_bytes + MAPPED_AROUND)
            pages.madvise(mmap.MADV_DONTNEED, first, end - first)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def natural_rotary_order(rows: Blocks, num_heads: int) -> Blocks:
    """Undoes the row order of llama's q and k in GGUF, on whole rows and so on quantised ones.

    GGUF puts the two halves of a rotated pair beside each other; Hugging Face keeps each head's
    first halves before its second halves:

        GGUF          0  d/2  1  d/2+1 ...   ->   0  1 ... d/2-1  d/2 ... d-1
    """
    paired = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)
