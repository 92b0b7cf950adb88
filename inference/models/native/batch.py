"""A step as the native decoder's C side reads it: pointers to its arrays and to the cache."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from inference.models.native.adapters import adapter_pointers
from inference.models.native.images import NativeImages
from inference.models.native.structs import CBatch, address, pointer
from inference.models.step_input import StepInput


@dataclass(frozen=True, slots=True)
class States:
    """States of the layers that keep any, float32, zeroed before the first step.

        conv         (num_layers, num_slots, kernel - 1, channels)
        recurrent    (num_layers, num_slots, ...)

    What a head's numbers stand for is in delta_net.h; a short convolution has none.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor


def num_logits(step: StepInput) -> int:
    return len(step.positions) if step.logit_rows is None else len(step.logit_rows)


@contextmanager
def batch_of(
    step: StepInput,
    keys: torch.Tensor,
    values: torch.Tensor,
    states: States | None,
    images: NativeImages | None,
) -> Iterator[CBatch]:
    """What the C side reads of a step, alive while the context is."""
    table = step.block_table
    pointers, inner_width = None, 0
    if step.adapters is not None:
        pointers, inner_width = adapter_pointers(step.adapters)
    batch = CBatch(
        num_rows=len(step.positions),
        num_sequences=len(step.context_lens),
        num_logit_rows=num_logits(step),
        table_stride=table.strides[0] // table.itemsize,
        token_ids=address(step.token_ids),
        positions=address(step.positions),
        query_start=address(step.query_start),
        block_table=address(table, has_contiguous_rows=True),
        logit_rows=address(step.logit_rows),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        num_blocks=keys.shape[1],
        adapters=None if pointers is None else ctypes.addressof(pointers),
        inner_width=inner_width,
        last_seen=address(step.last_seen),
    )
    if states is not None:
        assert step.state_reads is not None, "a step of layers with states names their slots"
        batch.state_reads = address(step.state_reads)
        batch.state_writes = address(step.state_writes)
        batch.conv_states = pointer(states.conv, torch.float32)
        batch.states = pointer(states.recurrent, torch.float32)
        batch.num_state_slots = states.recurrent.shape[1]
    if images is not None:
        batch.images = ctypes.pointer(images.struct())
    yield batch
