"""A step's batch as a message to other ranks, and back: on the CPU, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inference.engine.ranks.messages import Array, Span, Step, StepPictures
from inference.engine.to_device import all_on_device
from inference.models.batch import Batch, Pictures, PrefillSpan
from inference.models.vision.tower import PictureRows

INTEGERS = (
    "token_ids",
    "positions",
    "slots",
    "block_ids",
    "logit_rows",
    "state_reads",
    "state_writes",
)
"""The tensors of a ``Batch`` beside its spans' and pictures', int64."""


def step_of(batch: Batch) -> Step:
    """``batch`` has no adapters."""
    assert batch.adapters is None, "ranks take none"
    return Step(
        token_ids=_array(batch.token_ids),
        positions=_array(batch.positions),
        slots=_array(batch.slots),
        block_ids=_optional(batch.block_ids),
        spans=[
            Span(
                span.first_row,
                span.last_row,
                span.start,
                span.end,
                _array(span.block_ids),
                span.state_read,
                span.state_write,
            )
            for span in batch.spans
        ],
        logit_rows=_optional(batch.logit_rows),
        state_reads=_optional(batch.state_reads),
        state_writes=_optional(batch.state_writes),
        pictures=None if batch.pictures is None else _pictures(batch.pictures),
        decode_runs=batch.decode_runs,
    )


def batch_of(step: Step) -> Batch:
    """The batch, in the host's memory."""
    pictures = None
    if step.pictures is not None:
        deepstack = tuple(map(_tensor, step.pictures.deepstack))
        embeddings = _optional_tensor(step.pictures.embeddings)
        pictures = Pictures(
            rotary=_tensor(step.pictures.rotary),
            row_ids=_tensor(step.pictures.row_ids),
            rows=None if embeddings is None else PictureRows(embeddings, deepstack),
        )
    return Batch(
        token_ids=_tensor(step.token_ids),
        positions=_tensor(step.positions),
        slots=_tensor(step.slots),
        block_ids=_optional_tensor(step.block_ids),
        spans=tuple(
            PrefillSpan(
                span.first_row,
                span.last_row,
                span.start,
                span.end,
                _tensor(span.block_ids),
                span.state_read,
                span.state_write,
            )
            for span in step.spans
        ),
        logit_rows=_optional_tensor(step.logit_rows),
        state_reads=_optional_tensor(step.state_reads),
        state_writes=_optional_tensor(step.state_writes),
        pictures=pictures,
        decode_runs=step.decode_runs,
    )


def on_rank(batch: Batch, device: torch.device) -> Batch:
    """``batch`` with its tensors on ``device``: the host's whole numbers go there in one copy."""
    if batch.token_ids.device == device:
        return batch
    names = [name for name in INTEGERS if getattr(batch, name) is not None]
    tensors = [getattr(batch, name) for name in names]
    tensors += [span.block_ids for span in batch.spans]
    moved = all_on_device([tensor.numpy() for tensor in tensors], device)
    changed: dict[str, Any] = dict(zip(names, moved, strict=False))
    spans = zip(batch.spans, moved[len(names) :], strict=True)
    return replace(
        batch,
        **changed,
        spans=tuple(replace(span, block_ids=block_ids) for span, block_ids in spans),
        pictures=None if batch.pictures is None else _pictures_on(batch.pictures, device),
    )


def _pictures_on(pictures: Pictures, device: torch.device) -> Pictures:
    rows = pictures.rows
    if rows is not None:
        deepstack = tuple(added.to(device) for added in rows.deepstack)
        rows = PictureRows(rows.embeddings.to(device), deepstack)
    return Pictures(
        rotary=pictures.rotary.to(device), row_ids=pictures.row_ids.to(device), rows=rows
    )


def _pictures(pictures: Pictures) -> StepPictures:
    rows = pictures.rows
    return StepPictures(
        rotary=_array(pictures.rotary),
        row_ids=_array(pictures.row_ids),
        embeddings=None if rows is None else _array(rows.embeddings),
        deepstack=[] if rows is None else [_array(added) for added in rows.deepstack],
    )


def _array(tensor: torch.Tensor) -> Array:
    """A tensor as bytes: numpy has no bfloat16."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    data = tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
    return Array(dtype, tuple(tensor.shape), data)


def _optional(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else _array(tensor)


def _optional_tensor(array: Array | None) -> torch.Tensor | None:
    return None if array is None else _tensor(array)


def _tensor(array: Array) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, array.dtype)
    if not array.data:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).view(array.shape)
