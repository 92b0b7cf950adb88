"""The shape of a Gated DeltaNet layer, and of the state that it keeps for a sequence. Imports no
torch: memory is planned with it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNames:
    """A layer's tensors that not all files hold alike, by the names after ``linear_attn.``.

    Projections that files hold in one go from key head to key head, with what belongs to each; of
    those that they hold apart, each has all its heads in order.
    """

    qkvz: tuple[str, ...] = ("in_proj_qkv", "in_proj_z")
    ba: tuple[str, ...] = ("in_proj_b", "in_proj_a")
    decay: str = "A_log"
    """How fast each head forgets: the logarithm of the rate, or the negated rate itself, which is
    called ``NEGATIVE_RATE`` here."""

    @property
    def is_qkvz_grouped(self) -> bool:
        return len(self.qkvz) == 1

    @property
    def is_ba_grouped(self) -> bool:
        return len(self.ba) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    """How many of the last inputs the causal convolution looks at, the row's own included."""
    are_value_heads_tiled: bool = False
    """Whether value head ``i`` belongs to key head ``i % num_key_heads``, as some GGUF files have
    it, and not to ``i // (num_value_heads / num_key_heads)``."""
    names: DeltaNames = field(default_factory=DeltaNames)

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
