"""What the parts of a family's layers are called in its files, and which parts there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """Hugging Face's names after ``model.layers.N.``, without ``.weight``. Projections that one
    input meets may lie in one tensor or in several."""

    input_norm: str | None = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    """The whole name of the sinks' tensor, where attention has sinks."""
    output: str = "self_attn.o_proj"
    mixed_norm: str | None = None
    """The norm of what the mixer adds."""
    mlp_norm: str | None = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gates first; only what goes up where an MLP has no gates."""
    down: str = "mlp.down_proj"
    mlp_added_norm: str | None = None
    """The norm of what the MLP adds."""

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms of the residual stream and of the outputs added to it."""
        declared = (self.input_norm, self.mixed_norm, self.mlp_norm, self.mlp_added_norm)
        return tuple(name for name in declared if name is not None)
