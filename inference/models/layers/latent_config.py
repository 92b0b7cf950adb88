"""The shape of multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434). No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Widths count features.

    hidden ─▶ kv_a ─▶ latent (kv_rank) | rotary key (rotary_dim), one of each a token
    latent ─▶ kv_b ─▶ of each head: plain key (plain_dim) | value (value_dim)
    hidden ─▶ q, or q_a ─▶ norm ─▶ q_b ─▶ of each head: plain query | rotary query
    """

    kv_rank: int
    rotary_dim: int
    plain_dim: int
    """The width of the part of a head's query and key that is not rotated."""
    value_dim: int
    query_rank: int | None = None
    """The width that queries are compressed to; ``None``: they are projected at once."""
    is_up_split: bool = False
    """Whether the files hold what latents become keys with, transposed, apart from what they become
    values with."""

    @property
    def cached_features(self) -> int:
        """How many features of a token are kept for all heads together."""
        return self.kv_rank + self.rotary_dim

    @property
    def query_dim(self) -> int:
        """The width of a head's query, and of its key."""
        return self.plain_dim + self.rotary_dim

    @property
    def up_features(self) -> int:
        """What a latent becomes for each head: a plain key and a value."""
        return self.plain_dim + self.value_dim
