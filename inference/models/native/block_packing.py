"""A GGUF file's blocks into panels without numpy in between: ggml_blocks.h takes them apart.

The bytes are those of ``packing``, in a quarter of the time. Types that are not here, and other
files, take that way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch

from inference.models.native.packing import LANES, taken_apart_like
from inference.models.weights.lazy import BlockRows
from inference.models.weights.stored import StoredWeight


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


class _BlockRows(ctypes.Structure):
    """``BlockRows`` of ggml_blocks.h."""

    _fields_ = [("rows", ctypes.c_void_p), ("types", ctypes.c_void_p)]


def write_block_panels(
    sample: StoredWeight, pieces: Sequence[BlockRows], panels: torch.Tensor, library: ctypes.CDLL
) -> None:
    """Rows of ``BLOCK_TYPES``, one piece after the other, into as many ``panels`` as they fill.
    ``sample``: one of the rows, taken apart."""
    rows = np.concatenate([piece.addresses() for piece in pieces])
    types = np.repeat(
        np.array([piece.blocks.type for piece in pieces], np.int32),
        [piece.num_rows for piece in pieces],
    )
    assert panels.is_contiguous() and len(panels) == -(-len(rows) // LANES)
    source = _BlockRows(rows.__array_interface__["data"][0], types.__array_interface__["data"][0])
    shape = taken_apart_like(sample, len(rows))
    library.helexa_pack_blocks(
        ctypes.byref(source), ctypes.byref(shape), ctypes.c_void_p(panels.data_ptr())
    )
    for piece in pieces:
        piece.blocks.release(piece.rows)
