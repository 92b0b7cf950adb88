"""A step's batch as a message to other ranks, and back: on the CPU, byte for byte."""

from __future__ import annotations

import torch

from inference.engine.ranks.messages import Array, Span, Step, StepPictures
from inference.models.batch import Batch, Pictures, PrefillSpan
from inference.models.vision.tower import PictureRows


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


def batch_of(step: Step, device: torch.device) -> Batch:
    def tensor(array: Array) -> torch.Tensor:
        return _tensor(array).to(device)

    def optional(array: Array | None) -> torch.Tensor | None:
        return None if array is None else tensor(array)

    pictures = None
    if step.pictures is not None:
        embeddings = optional(step.pictures.embeddings)
        deepstack = tuple(map(tensor, step.pictures.deepstack))
        pictures = Pictures(
            rotary=tensor(step.pictures.rotary),
            row_ids=tensor(step.pictures.row_ids),
            rows=None if embeddings is None else PictureRows(embeddings, deepstack),
        )
    return Batch(
        token_ids=tensor(step.token_ids),
        positions=tensor(step.positions),
        slots=tensor(step.slots),
        block_ids=optional(step.block_ids),
        spans=tuple(
            PrefillSpan(
                span.first_row,
                span.last_row,
                span.start,
                span.end,
                tensor(span.block_ids),
                span.state_read,
                span.state_write,
            )
            for span in step.spans
        ),
        logit_rows=optional(step.logit_rows),
        state_reads=optional(step.state_reads),
        state_writes=optional(step.state_writes),
        pictures=pictures,
        decode_runs=step.decode_runs,
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


def _tensor(array: Array) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, array.dtype)
    if not array.data:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).view(array.shape)
