"""Packs a model's weights while their files are read, by several threads.

    LazyWeight ─ chunks of rows ─▶ threads: read, take apart, write ─▶ panels
                                            in native code: ``BLOCK_TYPES``

A chunk fits a core's cache. A few weights are in work at once, so that memory holds the panels and
some chunks, and progress counts weights that are nearly packed. ggml_blocks.h takes a GGUF file's
blocks apart in a quarter of numpy's time, and gives the same bytes; other files, and types that are
not in ``BLOCK_TYPES``, are read by numpy.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch

from inference.models.lazy_weights import BlockRows, LazyWeight
from inference.models.native.headers import STRUCTS
from inference.models.native.packing import (
    LANES,
    PackedLinear,
    TakenApart,
    unwritten,
    write_panels,
)
from inference.supervised_threads import SupervisedPool

CHUNK_WEIGHTS = 2**19
BLOCK_CHUNK_WEIGHTS = 2**21
"""The chunk of a weight that native code takes apart: no copy of it lies in memory in between."""
MOST_UNFINISHED = 4
"""Weights that may be in work at once."""

Item = TypeVar("Item")
Result = TypeVar("Result")


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


def write_block_panels(
    packed: PackedLinear, pieces: Sequence[BlockRows], panels: torch.Tensor, library: ctypes.CDLL
) -> None:
    """Rows of ``BLOCK_TYPES``, one piece after the other, into as many ``panels`` of ``packed`` as
    they fill."""
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
    """Packs weights into panels. Belongs to one thread, which calls ``finish`` before the panels
    are read."""

    def __init__(self, library: ctypes.CDLL, threads: SupervisedPool | None = None) -> None:
        """``threads``: ``None`` packs in the caller's."""
        self._library = library
        self._threads = threads
        self._unfinished: deque[list[Future[None]]] = deque()

    def pack(self, weight: LazyWeight) -> PackedLinear:
        """Packs a weight, whose panels are written by the time that ``finish`` returns. Like
        ``finish``, raises what reading raised, also of weights that were given before."""
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
                    write_block_panels(packed, blocks, panels, self._library)
                else:
                    write_panels(weight.rows(first, last), panels, self._library)

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
        packer = Packer(self._library)
        if self._threads is None:
            return [work(item, packer) for item in items]
        return list(self._threads.map(lambda item: work(item, packer), items))

    def finish(self) -> None:
        self._finish(0)

    def _finish(self, num_left: int) -> None:
        while len(self._unfinished) > num_left:
            for future in self._unfinished.popleft():
                future.result()


@contextmanager
def packing(library: ctypes.CDLL, num_threads: int) -> Iterator[Packer]:
    """All that it packed is written behind the block. torch has one thread within it: with more it
    would wait longer for them than they take for a chunk."""
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
