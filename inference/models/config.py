"""The shape of a decoder, as every family here understands it. Filled from config.json or GGUF."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from inference.models.experts_config import ExpertsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How positions beyond the trained length are mapped (Hugging Face ``rope_scaling``).

    ``linear`` divides positions by ``factor``; ``llama3`` is the frequency-banded rule of Llama 3.1
    and uses the three fields below it; ``yarn`` is Peng et al. 2023, arXiv:2309.00071.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


MlpKind = Literal["dense", "sparse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes count elements; ``head_dim`` may differ from ``hidden_size // num_heads``."""

    architecture: str
    """Hugging Face ``model_type``, also of a GGUF: see ``families.registry``."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias on the attention output projection (llama ``attention_bias`` sets both)."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm on each head of q and k before the rotation (qwen3)."""
    sliding_window: int | None = None
    mlps: tuple[MlpKind, ...] = ()
    """Of each layer; empty: all dense."""
    experts: ExpertsConfig | None = None
    """Of the layers that are sparse."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation_defaults: dict[str, float | int] = field(default_factory=dict)
    """Sampling defaults of generation_config.json, by SamplingOptions field name."""

    @property
    def num_query_groups(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_elements_per_token(self) -> int:
        """Key plus value elements that one token adds over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def mlp_kinds(self) -> tuple[MlpKind, ...]:
        """One a layer."""
        dense: tuple[MlpKind, ...] = ("dense",)
        return self.mlps or dense * self.num_layers
