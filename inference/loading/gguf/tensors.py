"""Tensors of a GGUF model, memory-mapped, under Hugging Face names and in natural row order.

Tensors are returned as copies, and their pages leave memory once read, so a load never holds the
file beside the model. Several threads may read at once.

Files of NVFP4 have a ``.scale`` beside a ``.weight``, because blocks are scaled by eight bits,
whose range is small: one float32, or one for each expert of a stack. Their ``.input_scale``, for
activations of four bits, is not used.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType

from inference.loading.gguf import quants as gguf_quants
from inference.loading.gguf.codebooks import CODEBOOK_UNPACKERS, Blocks
from inference.loading.gguf.header import GGUFHeader, TensorInfo, unreadable_reason
from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.family import Family, model_name
from inference.models.families.gguf_keys import PREDICTING_LAYERS, ROPE_FREQUENCIES
from inference.models.families.registry import family_of
from inference.models.lazy_weights import (
    Indices,
    MappedBlocks,
    RowReader,
    Rows,
    row_range,
)
from inference.models.stored_weights import CodebookWeight, StoredWeight
from inference.protocol.load_errors import BadFileError, shape_in_words

LAYER_NUMBER = re.compile(r"blk\.(\d+)\.")
MAPPED_AROUND = 2**20
"""The bytes on either side of a page that is read: more than a kernel maps unasked."""
READ_AHEAD_BYTES = 64 * 2**20
"""How far behind a tensor its disk is read while the tensor is unpacked."""
WEIGHT, SCALE, INPUT_SCALE = ".weight", ".scale", ".input_scale"
Scales = npt.NDArray[np.float32]


class GGUFTensorFiles(TensorFiles):
    def __init__(self, header: GGUFHeader, config: ModelConfig) -> None:
        """Raises ``BadFileError`` for a tensor that cannot be read or would not be used."""
        family = family_of(config)
        predicting = predicting_names(header, config)
        scales, num_input_scales = read_scales(header.tensors)
        counts = {
            "multi-token prediction": len(predicting),
            "scales of activations": num_input_scales,
        }
        self.left_out = ", ".join(
            f"{count} tensors of {of} left out" for of, count in counts.items() if count
        )
        maps = {path: _mapped(path) for path in {info.path for info in header.tensors.values()}}
        super().__init__({}, maps.clear)
        for info in header.tensors.values():
            is_aside = info.name == ROPE_FREQUENCIES or info.name in predicting
            if is_aside or is_scale(info.name, header.tensors):
                continue
            name = _own_name(info, family, config)
            num_heads = family.interleaved_heads(name, config)
            folded = _folded(info) if family.is_folded(info.name) else info
            self[name] = GGUFTensor(folded, maps, num_heads, scales.get(info.name))


def predicting_names(header: GGUFHeader, config: ModelConfig) -> set[str]:
    """Tensors of multi-token prediction beyond the first layer, which is all that is ever computed.
    Files count these layers among the blocks."""
    if f"{header.architecture}.{PREDICTING_LAYERS}" not in header.metadata:
        return set()
    layers = {name: match for name in header.tensors if (match := LAYER_NUMBER.match(name))}
    num_computed = config.num_layers + config.has_predictor
    return {name for name, match in layers.items() if int(match[1]) >= num_computed}


def _own_name(info: TensorInfo, family: Family, config: ModelConfig) -> str:
    name = model_name(info.name, family, config)
    if name is None:
        raise BadFileError(
            f"{info.path.name} holds the tensor {info.name}, which no {config.architecture} model "
            "here computes with"
        )
    if reason := unreadable_reason(info.type):
        raise BadFileError(f"{info.path.name}: {info.name} is {reason}")
    return name


def _folded(info: TensorInfo) -> TensorInfo:
    if len(info.shape) != 3:
        shape = shape_in_words(info.shape)
        raise BadFileError(f"{info.path.name}: {info.name} is {shape}, not a matrix a head")
    return replace(info, shape=(info.shape[0] * info.shape[1], info.shape[2]))


class GGUFTensor(FileTensor):
    def __init__(
        self,
        info: TensorInfo,
        maps: Mapping[Path, mmap.mmap],
        num_heads: int | None,
        scales: Scales | None,
    ) -> None:
        """``num_heads``: ``None`` in natural order. ``scales``: one, or one per expert."""
        self._info, self._maps, self._num_heads, self._scales = info, maps, num_heads, scales
        self._is_read_ahead = False
        self.shape, self.num_bytes = info.shape, info.num_bytes
        self.format = str(info.type.name)

    def dense(self) -> torch.Tensor:
        return super().dense().view(self.shape)

    def stored(self) -> StoredWeight:
        reader = self.reader()
        return reader.rows(0, reader.num_rows)

    def stored_rows(self, first: int, last: int) -> StoredWeight:
        return self.reader().rows(first, last)

    def reader(self) -> RowReader:
        info, scales, blocks = self._info, self._scales, self._rows()
        self._read_ahead()

        def release(rows: Rows) -> None:
            first, last = row_range(rows)
            self._forget_pages(first * blocks.shape[1], last * blocks.shape[1])

        def read(rows: Rows) -> StoredWeight:
            weight = gguf_quants.stored(blocks[rows], info.type)
            release(rows)
            if scales is None:
                return weight
            return scaled(weight, _scale_of(scales, info, *row_range(rows)))

        return RowReader(
            num_rows=len(blocks),
            read=read,
            order=self._order(),
            blocks=MappedBlocks(type=int(info.type), rows=blocks, release=release),
        )

    @property
    def _pages(self) -> mmap.mmap:
        return self._maps[self._info.path]

    def _rows(self) -> Blocks:
        """The tensor's bytes, one row per output feature (a vector is one row)."""
        info = self._info
        raw = np.frombuffer(self._pages, np.uint8, info.num_bytes, info.offset)
        is_by_head = self._num_heads is not None
        num_rows = info.shape[0] if is_by_head else info.num_elements // info.shape[-1]
        return raw.reshape(num_rows, -1)

    def _order(self) -> Indices | None:
        if self._num_heads is None:
            return None
        return natural_rotary_order(self.shape[0], self._num_heads)

    def _read_ahead(self) -> None:
        """Starts reading from the disk without waiting: page faults read only a few pages each."""
        if self._is_read_ahead or not hasattr(mmap, "MADV_WILLNEED"):
            return
        self._is_read_ahead = True
        first = self._info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        last = min(len(self._pages), self._info.offset + self.num_bytes + READ_AHEAD_BYTES)
        self._pages.madvise(mmap.MADV_WILLNEED, first, last - first)

    def _forget_pages(self, begin: int, end: int) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            offset = self._info.offset
            first = max(0, offset + begin - MAPPED_AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
            last = min(len(self._pages), offset + end + MAPPED_AROUND)
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)


def _scale_of(scales: Scales, info: TensorInfo, first: int, last: int) -> float:
    """Rows [first, last) are of one expert where there are several scales."""
    expert_rows = info.shape[-2] if len(scales) > 1 else last
    assert first // expert_rows == (last - 1) // expert_rows
    return float(scales[first // expert_rows])


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def natural_rotary_order(num_rows: int, num_heads: int) -> Indices:
    """Returns each row's index in GGUF, which puts the halves of a rotated pair side by side;
    Hugging Face has a head's first halves first.

        GGUF          0  d/2  1  d/2+1 ...   ->   0  1 ... d/2-1  d/2 ... d-1
    """
    paired = np.arange(num_rows, dtype=np.int64).reshape(num_heads, -1, 2)
    return paired.swapaxes(1, 2).flatten()


def is_scale(name: str, names: Collection[str]) -> bool:
    stem, dot, kind = name.rpartition(".")
    return f"{dot}{kind}" in (SCALE, INPUT_SCALE) and stem + WEIGHT in names


def read_scales(tensors: Mapping[str, TensorInfo]) -> tuple[dict[str, Scales], int]:
    """Returns also the number of scales of activations."""
    found: dict[str, Scales] = {}
    own = [name for name in tensors if is_scale(name, tensors)]
    for name in own:
        if name.endswith(SCALE):
            info, weight = tensors[name], tensors[name.removesuffix(SCALE) + WEIGHT]
            _check_scale(info, weight)
            found[weight.name] = info.floats()
    return found, len(own) - len(found)


def scaled(weight: StoredWeight, scale: float) -> StoredWeight:
    assert isinstance(weight, CodebookWeight)
    book = weight.codebook
    return replace(weight, codebook=replace(book, unit=book.unit * scale))


def _check_scale(info: TensorInfo, weight: TensorInfo) -> None:
    name = f"{info.path.name}: {info.name}"
    num_experts = weight.shape[0] if len(weight.shape) == 3 else 1
    if info.type != GGMLQuantizationType.F32 or info.num_elements not in (1, num_experts):
        raise BadFileError(
            f"{name} is {shape_in_words(info.shape)} in {info.type.name}; one F32 is read, or one "
            f"for each of {num_experts} experts"
        )
    if weight.type not in CODEBOOK_UNPACKERS:
        known = ", ".join(sorted(type.name for type in CODEBOOK_UNPACKERS))
        raise BadFileError(
            f"{name} is the scale of a weight of {weight.type.name}; scales are read of: {known}"
        )
