"""A step as a message to a child process: arrays by name, byte for byte. Imports no torch."""

from __future__ import annotations

import msgspec


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
    """``inference.models.step_input.StepInput``, without its adapters."""

    arrays: dict[str, Array]
    """The step's arrays, by field."""
    block_tokens: int
    num_decodes: int
    images: ImageArrays | None = None
