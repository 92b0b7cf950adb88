"""The states that some layers keep for a sequence, where attention keeps keys and values.

Imports no torch: memory is planned with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

STATE_ELEMENT_BYTES = 4
"""States are float32, whatever the model computes in: they are summed over a whole sequence."""
NEGATIVE_RATE = "negative_decay_rate"
"""What a tensor is called here that holds the negated rate at which each head forgets, where other
files hold the rate's logarithm."""


class StateShape(Protocol):
    """The shape of one layer's state for one sequence."""

    @property
    def conv_shape(self) -> tuple[int, int]:
        """(rows, channels): the inputs that the next row's convolution looks back at, oldest
        first."""
        ...

    @property
    def recurrent_shape(self) -> tuple[int, ...]:
        """What sums up all earlier rows; with a 0 in it where a layer has no such state."""
        ...


def state_bytes(shape: StateShape) -> int:
    """What one layer's state takes for one sequence."""
    return STATE_ELEMENT_BYTES * (math.prod(shape.conv_shape) + math.prod(shape.recurrent_shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A gated convolution over a few rows: see ``models.short_conv``."""

    channels: int
    kernel: int
    """How many of the last inputs the convolution looks at, the row's own included."""
    has_bias: bool = False
    """Whether the convolution and the projections around it have biases."""

    @property
    def conv_shape(self) -> tuple[int, int]:
        return self.kernel - 1, self.channels

    @property
    def recurrent_shape(self) -> tuple[int, ...]:
        return (0,)
