"""Frames that ranks and stages share: their storage, and a ``StepInput``, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch

from inference.models.step_input import ImageEmbeddings, Ints, StepImages, StepInput


class Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class ImageArrays(msgspec.Struct, frozen=True, array_like=True):
    rotary: Array | None
    row_ids: Array
    embeddings: Array | None
    deepstack: list[Array]


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    arrays: dict[str, Array]
    block_tokens: int
    num_decodes: int
    images: ImageArrays | None = None


class NewKV(msgspec.Struct, frozen=True, kw_only=True, tag="new_kv"):
    """Allocates keys, values and states, instead of the previous ones."""

    num_blocks: int
    block_tokens: int
    num_state_slots: int


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
    "last_seen",
)


def message_of(step: StepInput) -> Step:
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
    """In the host's memory. Raises ``ValueError``, ``TypeError`` and ``RuntimeError``."""
    if not message.arrays.keys() <= set(ARRAYS):
        raise ValueError(f"{sorted(message.arrays)} are not all arrays of a step")
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
        rotary=None if images.rotary is None else array_of(images.rotary),
        row_ids=array_of(images.row_ids),
        embeddings=None if rows is None else array_of(rows.embeddings),
        deepstack=[] if rows is None else [array_of(added) for added in rows.deepstack],
    )


def _images_of(images: ImageArrays) -> StepImages:
    rows = None
    if images.embeddings is not None:
        deepstack = tuple(map(tensor_of, images.deepstack))
        rows = ImageEmbeddings(tensor_of(images.embeddings), deepstack)
    rotary = None if images.rotary is None else tensor_of(images.rotary)
    return StepImages(rotary, tensor_of(images.row_ids), rows)


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor as bytes: numpy has no bfloat16."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    data = tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
    return Array(dtype, tuple(tensor.shape), data)


def tensor_of(array: Array) -> torch.Tensor:
    """Raises ``ValueError``, ``TypeError`` and ``RuntimeError`` if it cannot be made."""
    dtype = getattr(torch, array.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{array.dtype!r} is no dtype")
    if not array.data:
        # Through numpy, which allocates nothing and checks that the shape has no elements.
        empty = np.empty(0, dtype=np.uint8).reshape(array.shape)
        return torch.empty(empty.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).view(array.shape)
