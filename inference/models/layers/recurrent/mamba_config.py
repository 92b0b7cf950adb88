"""The shape of a Mamba-2 layer, and of the state that it keeps for a sequence. Imports no torch:
memory is planned with it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    num_heads: int
    head_dim: int
    num_groups: int
    """Heads of a group share what writes to their states and what reads them."""
    state_size: int
    """Features that a head keeps of each of its own."""
    conv_kernel: int
    """How many of the last inputs the causal convolution looks at, the row's own included."""
    has_conv_bias: bool = True
    has_bias: bool = False
    """Whether the projections have biases."""
    step_limit: tuple[float, float] = (0.0, math.inf)
    """What lengths of steps are clamped to."""
    prefix: str = "mamba"
    """What a layer's tensors are called after ``model.layers.N.``."""
    decay: str = "A_log"
    """The tensor of each head's decay rate: see ``state_weights``."""

    @property
    def features(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def group_features(self) -> int:
        """How wide it is what writes, or reads, the states of all groups."""
        return self.num_groups * self.state_size

    @property
    def conv_channels(self) -> int:
        """Values, what writes and what reads, side by side."""
        return self.features + 2 * self.group_features

    @property
    def projected_features(self) -> int:
        """Gates, channels of the convolution, and each head's step."""
        return self.features + self.conv_channels + self.num_heads

    @property
    def conv_shape(self) -> tuple[int, int]:
        return self.conv_kernel - 1, self.conv_channels

    @property
    def recurrent_shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.head_dim, self.state_size
