"""Weights into panels of sixteen output features, in the byte layout that formats.h documents,
packed by several threads while the files are read.

A chunk of rows fits a core's cache. A few weights are in work at once, so that memory holds the
panels and some chunks, and progress counts weights that are nearly packed. ggml_blocks.h takes a
GGUF file's ``BLOCK_TYPES`` apart in a quarter of numpy's time, and gives the same bytes.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
from torch.nn.functional import pad

from inference.models.lazy_weights import BlockRows, LazyWeight
from inference.models.native.library import STRUCTS
from inference.models.stored_weights import (
    GROUP_FEATURES,
    HALF_GROUP_FEATURES,
    Codebook,
    CodebookWeight,
    DenseWeight,
    GroupedWeight,
    PackedWeight,
    StoredWeight,
    SuperBlockWeight,
    in_four_bits,
)
from inference.supervised_threads import SupervisedPool

LANES = 16
CHUNK_WEIGHTS = 2**19
BLOCK_CHUNK_WEIGHTS = 2**21
"""The chunk of a weight that native code takes apart: no copy of it lies in memory in between."""
MOST_UNFINISHED = 4

Item = TypeVar("Item")
Result = TypeVar("Result")


class Format(IntEnum):
    """``enum Format`` of formats.h."""

    F32 = 0
    Q4 = 1
    Q8 = 2
    Q5_0 = 3
    Q5_1 = 4
    Q2_K = 5
    Q3_K = 6
    Q4_K = 7
    Q5_K = 8
    Q6_K = 9
    Q6 = 10
    T2 = 11
    T4 = 12
    T4H = 13
    T3K = 14
    T4K = 15


GROUPED_FORMATS = {
    (4, True): Format.Q4,
    (5, False): Format.Q5_0,
    (5, True): Format.Q5_1,
    (6, False): Format.Q6,
    (8, False): Format.Q8,
}
"""By number of bits, and whether there are minimums."""

SUPER_BLOCK_FORMATS = {
    2: Format.Q2_K,
    3: Format.Q3_K,
    4: Format.Q4_K,
    5: Format.Q5_K,
    6: Format.Q6_K,
}

CODEBOOK_FORMATS = {
    (2, GROUP_FEATURES, False): Format.T2,
    (4, GROUP_FEATURES, False): Format.T4,
    (4, HALF_GROUP_FEATURES, False): Format.T4H,
    (3, HALF_GROUP_FEATURES, True): Format.T3K,
    (4, GROUP_FEATURES, True): Format.T4K,
}
"""By number of bits, features of a scale, and whether there are super-scales."""

VALUE_RANGES = {Format.T2: (-8, 7), Format.T4H: (-16, 15), Format.T3K: (-48, 48)}
"""A codebook's range of values, where it is not -127 to 127."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """``bias``: float32 (out_features,)."""

    format: Format
    in_features: int
    out_features: int
    panels: torch.Tensor
    bias: torch.Tensor | None = None
    codebook: Codebook | None = None

    @property
    def num_bytes(self) -> int:
        return self.panels.numel() * self.panels.element_size()


TakenApart = STRUCTS["TakenApart"]


def pack(stored: StoredWeight, library: ctypes.CDLL | None = None) -> PackedLinear:
    """Quantised weights keep their codes, dense ones become float32. ``library`` packs quantised
    weights, while other threads run."""
    packed = unwritten(stored, stored.shape[0], stored.bias)
    _write_panels(stored, packed.panels, library)
    return packed


def unwritten(sample: StoredWeight, out_features: int, bias: torch.Tensor | None) -> PackedLinear:
    """The panels, sixteen rows each along the first axis, are still to be written."""
    sample = _as_packed(sample)
    num_rows, in_features = sample.shape
    num_panels = -(-out_features // LANES)
    if isinstance(sample, DenseWeight):
        panels = torch.empty(num_panels, in_features, LANES)
    else:
        row_bytes = sample.packed_bytes // num_rows
        panels = torch.empty(num_panels, LANES * row_bytes, dtype=torch.uint8)
    return PackedLinear(
        format=_format(sample),
        in_features=in_features,
        out_features=out_features,
        panels=panels,
        bias=None if bias is None else bias.float().contiguous(),
        codebook=sample.codebook if isinstance(sample, CodebookWeight) else None,
    )


def _write_panels(stored: StoredWeight, panels: torch.Tensor, library: ctypes.CDLL | None) -> None:
    """The rows may fill the last panel in part."""
    stored = _as_packed(stored)
    if isinstance(stored, DenseWeight):
        num_rows, in_features = stored.shape
        padded = pad(stored.weight.float().contiguous(), (0, 0, 0, -num_rows % LANES))
        panels.copy_(padded.view(-1, LANES, in_features).permute(0, 2, 1))
    else:
        assert library is not None, "only dense weights are packed without"
        _write(stored, panels, library)


def _as_packed(stored: StoredWeight) -> StoredWeight:
    if isinstance(stored, GroupedWeight) and stored.is_mxfp4:
        coded = in_four_bits(stored)
        return replace(coded, scales=coded.scales.half())
    return stored


def _format(stored: StoredWeight) -> Format:
    if isinstance(stored, DenseWeight):
        return Format.F32
    if isinstance(stored, SuperBlockWeight):
        return SUPER_BLOCK_FORMATS[stored.bits]
    if isinstance(stored, CodebookWeight):
        return _codebook_format(stored)
    return GROUPED_FORMATS[stored.bits, stored.minimums is not None]


def _codebook_format(stored: CodebookWeight) -> Format:
    has_supers = stored.super_scales is not None
    format = CODEBOOK_FORMATS[stored.bits, stored.group_features, has_supers]
    least, most = VALUE_RANGES.get(format, (-127, 127))
    assert all(least <= value <= most for value in stored.codebook.values)
    return format


def _write(stored: PackedWeight, panels: torch.Tensor, library: ctypes.CDLL) -> None:
    """Scales of groups become float16. A negative number wraps around to its unsigned code."""
    codes = stored.codes.view(torch.uint8).contiguous()
    heads, smalls = _scales(stored)
    heads = [head.to(torch.float16).contiguous() for head in heads]
    smalls = [small.contiguous() for small in smalls]
    are_signed = isinstance(stored, GroupedWeight) and stored.minimums is None
    taken_apart = TakenApart(
        format=_format(stored),
        out_features=len(codes),
        in_features=codes.shape[1],
        codes=codes.data_ptr(),
        heads=tuple(head.data_ptr() for head in heads),
        smalls=tuple(small.data_ptr() for small in smalls),
        added=2 ** (stored.bits - 1) if are_signed else 0,
    )
    assert panels.is_contiguous() and len(panels) == -(-len(codes) // LANES)
    library.helexa_pack(ctypes.byref(taken_apart), ctypes.c_void_p(panels.data_ptr()))


def _scales(stored: PackedWeight) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Scales and minimums of a block's head (out, blocks each), and its groups' small ones (out,
    parts of groups each). Two scales of a group without small ones: all first ones, then all
    second."""
    minimums = stored.minimums
    if isinstance(stored, GroupedWeight):
        return _given(stored.scales, minimums), []
    if isinstance(stored, SuperBlockWeight):
        heads = _given(stored.super_scales, stored.super_minimums)
        return heads, _given(stored.scales, minimums)
    if stored.super_scales is not None:
        return [stored.super_scales], [stored.scales]
    per_group = GROUP_FEATURES // stored.group_features
    return [stored.scales[:, part::per_group] for part in range(per_group)], []


def _given(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


class BlockType(IntEnum):
    """``enum BlockType`` of ggml_blocks.h: GGUF's numbers."""

    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    TQ2_0 = 35
    MXFP4 = 39
    Q1_0 = 41


BLOCK_TYPES = frozenset(int(type) for type in BlockType)


def _write_block_panels(
    packed: PackedLinear, pieces: Sequence[BlockRows], panels: torch.Tensor, library: ctypes.CDLL
) -> None:
    rows = np.concatenate([piece.addresses() for piece in pieces])
    types = np.repeat(
        np.array([piece.blocks.type for piece in pieces], np.int32),
        [piece.num_rows for piece in pieces],
    )
    assert panels.is_contiguous() and len(panels) == -(-len(rows) // LANES)
    source = STRUCTS["BlockRows"](
        rows.__array_interface__["data"][0], types.__array_interface__["data"][0]
    )
    shape = TakenApart(format=packed.format, out_features=len(rows), in_features=packed.in_features)
    library.helexa_pack_blocks(
        ctypes.byref(source), ctypes.byref(shape), ctypes.c_void_p(panels.data_ptr())
    )
    for piece in pieces:
        piece.blocks.release(piece.rows)


class Packer:
    """Belongs to one thread, which calls ``finish`` before the panels are read."""

    def __init__(self, library: ctypes.CDLL, threads: SupervisedPool | None = None) -> None:
        """``threads``: ``None`` packs in the caller's."""
        self._library = library
        self._threads = threads
        self._unfinished: deque[list[Future[None]]] = deque()

    def pack(self, weight: LazyWeight) -> PackedLinear:
        """The panels are written once ``finish`` returns. Like ``finish``, raises what reading
        raised, also of earlier weights."""
        num_rows, in_features = weight.shape
        packed = unwritten(weight.sample, num_rows, weight.bias)
        are_blocks = weight.block_types is not None and weight.block_types <= BLOCK_TYPES
        chunk_weights = BLOCK_CHUNK_WEIGHTS if are_blocks else CHUNK_WEIGHTS
        chunk_rows = max(1, chunk_weights // in_features // LANES) * LANES

        def write(first: int) -> None:
            last = min(first + chunk_rows, num_rows)
            # The caller may have allocated the panels in inference mode, which is a thread's own.
            with torch.inference_mode():
                panels = packed.panels[first // LANES : -(-last // LANES)]
                if are_blocks:
                    blocks = weight.block_rows(first, last)
                    _write_block_panels(packed, blocks, panels, self._library)
                else:
                    _write_panels(weight.rows(first, last), panels, self._library)

        firsts = range(0, num_rows, chunk_rows)
        if self._threads is None:
            for first in firsts:
                write(first)
        else:
            self._unfinished.append([self._threads.submit(write, first) for first in firsts])
            self._finish(0 if weight.is_in_memory else MOST_UNFINISHED)
        return packed

    def each(self, work: Callable[[Item, Packer], Result], items: Sequence[Item]) -> list[Result]:
        """``work`` on every item, each by one thread with a packer of its own."""
        assert self._threads is not None, "no thread's own packer"
        packer = Packer(self._library)
        return list(self._threads.map(lambda item: work(item, packer), items))

    def finish(self) -> None:
        self._finish(0)

    def _finish(self, num_left: int) -> None:
        while len(self._unfinished) > num_left:
            for future in self._unfinished.popleft():
                future.result()


@contextmanager
def packing(library: ctypes.CDLL, num_threads: int) -> Iterator[Packer]:
    """Finishes at the block's end. torch has one thread within it: with more it would wait longer
    for them than they take for a chunk."""
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    threads = SupervisedPool(num_threads, thread_name_prefix="pack")
    try:
        packer = Packer(library, threads)
        yield packer
        packer.finish()
    finally:
        threads.shutdown(cancel_futures=True)
        torch.set_num_threads(torch_threads)
