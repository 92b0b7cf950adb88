"""The shape of a Gated DeltaNet layer, and of the state that it keeps for a sequence. Imports no
torch: memory is planned with it."""

from __future__ import annotations

from dataclasses import dataclass

STATE_ELEMENT_BYTES = 4
"""States are float32, whatever the model computes in: they are summed over a whole sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """Each key head serves ``num_value_heads / num_key_heads`` value heads."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    """How many of the last inputs the causal convolution looks at, the row's own included."""

    @property
    def key_features(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_features(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values, side by side."""
        return 2 * self.key_features + self.value_features

    @property
    def conv_shape(self) -> tuple[int, int]:
        """The inputs that the next row's convolution looks back at, oldest first."""
        return self.conv_kernel - 1, self.conv_channels

    @property
    def recurrent_shape(self) -> tuple[int, int, int]:
        return self.num_value_heads, self.key_head_dim, self.value_head_dim

    @property
    def state_bytes_per_layer(self) -> int:
        conv = (self.conv_kernel - 1) * self.conv_channels
        recurrent = self.num_value_heads * self.key_head_dim * self.value_head_dim
        return STATE_ELEMENT_BYTES * (conv + recurrent)
