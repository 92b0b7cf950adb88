"""A step as the native decoder's C side reads it: pointers to its arrays, images and cache."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from inference.models.layers.rope import RopeTable
from inference.models.native.adapters import adapter_pointers
from inference.models.native.structs import CBatch, CImages, address, pointer
from inference.models.step_input import StepImages, StepInput


@dataclass(frozen=True, slots=True)
class NativeImages:
    """Floats are float32."""

    cosines: torch.Tensor | None
    sines: torch.Tensor | None
    """(num_rows, rotary_dim / 2) each; ``None``: rows are rotated by their positions or not at
    all."""
    image_rows: torch.Tensor
    """(num_rows,) int64: which of the embeddings each row is, or -1."""
    embeddings: torch.Tensor | None
    """(num_image_rows, hidden_size)"""
    deepstack: torch.Tensor | None
    """(num_deepstack, num_image_rows, hidden_size)"""

    def struct(self) -> CImages:
        """Returns a struct that points into tensors which this object keeps alive."""
        rows, added = self.embeddings, self.deepstack
        return CImages(
            cosines=pointer(self.cosines, torch.float32),
            sines=pointer(self.sines, torch.float32),
            image_rows=pointer(self.image_rows, torch.int64),
            embeddings=pointer(rows, torch.float32),
            deepstack=pointer(added, torch.float32),
            num_image_rows=0 if rows is None else len(rows),
            num_deepstack=0 if added is None else len(added),
        )


def native_images(images: StepImages, num_rows: int, rope: RopeTable | None) -> NativeImages:
    """``num_rows``: of the step. ``rope``: what the layers rotate by, ``None`` where none does."""
    cosines, sines = (None, None) if rope is None else _angles(images, rope)
    image_rows = torch.full((num_rows,), -1)
    rows = images.rows
    if rows is not None:
        image_rows[images.row_ids] = torch.arange(len(images.row_ids))
    return NativeImages(
        cosines=cosines,
        sines=sines,
        image_rows=image_rows,
        embeddings=None if rows is None else rows.embeddings.float().contiguous(),
        deepstack=torch.stack(rows.deepstack).float() if rows and rows.deepstack else None,
    )


def _angles(
    images: StepImages, rope: RopeTable
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    if images.rotary is None:
        return None, None
    cosines, sines = rope.at_places(images.rotary)
    half = rope.rotary_dim // 2
    # The first halves of the sines are negated.
    return cosines[:, 0, :half].contiguous(), sines[:, 0, half:].contiguous()


@dataclass(frozen=True, slots=True)
class States:
    """States of the layers that keep any, float32, zeroed before the first step.

        conv         (num_layers, num_slots, kernel - 1, channels)
        recurrent    (num_layers, num_slots, ...)

    What a head's numbers stand for is in recurrent.h; a short convolution has none.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor


@dataclass(frozen=True, slots=True)
class NativeKV:
    """``keys`` and ``values`` (layers with attention, num_blocks, num_kv_heads, bytes of a block
    and head), contiguous, in the order that element_kv.h and int8_kv.h document. Latents lie in
    ``keys``, token by token, and ``values`` is empty."""

    keys: torch.Tensor
    values: torch.Tensor
    block_tokens: int
    states: States | None = None
    """The states of layers that keep a state instead."""

    def block(self, block_id: int) -> dict[str, torch.Tensor]:
        """Views of one block, by name."""
        views = {"keys": self.keys[:, block_id], "values": self.values[:, block_id]}
        return {name: view for name, view in views.items() if view.numel()}


def num_logits(step: StepInput) -> int:
    return len(step.positions) if step.logit_rows is None else len(step.logit_rows)


@contextmanager
def batch_of(step: StepInput, kv: NativeKV, images: NativeImages | None) -> Iterator[CBatch]:
    """The struct of a step, valid within the context."""
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
        keys=kv.keys.data_ptr(),
        values=kv.values.data_ptr(),
        num_blocks=kv.keys.shape[1],
        adapters=None if pointers is None else ctypes.addressof(pointers),
        inner_width=inner_width,
        last_seen=address(step.last_seen),
    )
    if (states := kv.states) is not None:
        assert step.state_reads is not None, "a step of layers with states names their slots"
        batch.state_reads = address(step.state_reads)
        batch.state_writes = address(step.state_writes)
        batch.conv_states = pointer(states.conv, torch.float32)
        batch.states = pointer(states.recurrent, torch.float32)
        batch.num_state_slots = states.recurrent.shape[1]
    if images is not None:
        batch.images = ctypes.pointer(images.struct())
    yield batch
