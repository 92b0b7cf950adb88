"""The states of recurrent layers, in slots. Which sequence owns which slot is decided in
``inference.engine.cache.state_slots``; this file must not know sequences.

    conv         (num_slots, *StateShape.conv_shape)                    float32
    recurrent    (num_slots, *StateShape.recurrent_shape)               float32

A step reads one slot of a sequence and writes another. Slot 0 is nought: what a sequence without
tokens starts from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.layers.configs import StateShape
from inference.models.weights.lazy_zeros import lazy_zeros


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer's: in slots, or those that rows read or leave."""

    conv: torch.Tensor
    recurrent: torch.Tensor


def new_layer_state(num_slots: int, shape: StateShape, device: torch.device) -> LayerState:
    """Zeroed."""
    return LayerState(
        lazy_zeros((num_slots, *shape.conv_shape), torch.float32, device),
        lazy_zeros((num_slots, *shape.recurrent_shape), torch.float32, device),
    )
