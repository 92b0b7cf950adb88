"""A ``StepInput`` as a message to other ranks, and back: byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from inference.engine.ranks.messages import Array, ImageArrays, Step
from inference.models.batch import StepImages
from inference.models.step_input import Ints, StepInput
from inference.models.vision.tower import PictureRows

ARRAYS = (
    "token_ids",
    "positions",
    "slots",
    "query_start",
    "context_lens",
    "block_table",
    "logit_rows",
    "state_reads",
    "state_writes",
)
"""The arrays of a ``StepInput``."""


def message_of(step: StepInput) -> Step:
    """``step`` has no adapters."""
    assert step.adapters is None, "ranks take none"
    step = step.with_all_ids()
    return Step(
        arrays={
            name: Array("int32", array.shape, array.tobytes())
            for name in ARRAYS
            if (array := getattr(step, name)) is not None
        },
        block_tokens=step.block_tokens,
        num_decodes=step.num_decodes,
        images=None if step.images is None else _images(step.images),
    )


def step_of(message: Step) -> StepInput:
    """What it was made of, in the host's memory."""
    arrays: dict[str, Any] = {name: _ints(array) for name, array in message.arrays.items()}
    return StepInput(
        **arrays,
        block_tokens=message.block_tokens,
        num_decodes=message.num_decodes,
        images=None if message.images is None else _images_of(message.images),
    )


def _ints(array: Array) -> Ints:
    return np.frombuffer(array.data, dtype=np.int32).reshape(array.shape)


def _images(images: StepImages) -> ImageArrays:
    rows = images.rows
    return ImageArrays(
        rotary=_array(images.rotary),
        row_ids=_array(images.row_ids),
        embeddings=None if rows is None else _array(rows.embeddings),
        deepstack=[] if rows is None else [_array(added) for added in rows.deepstack],
    )


def _images_of(images: ImageArrays) -> StepImages:
    rows = None
    if images.embeddings is not None:
        deepstack = tuple(map(_tensor, images.deepstack))
        rows = PictureRows(_tensor(images.embeddings), deepstack)
    return StepImages(_tensor(images.rotary), _tensor(images.row_ids), rows)


def _array(tensor: torch.Tensor) -> Array:
    """A tensor as bytes: numpy has no bfloat16."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    data = tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
    return Array(dtype, tuple(tensor.shape), data)


def _tensor(array: Array) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, array.dtype)
    if not array.data:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).view(array.shape)
