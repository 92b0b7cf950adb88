"""The shape of a decoder, filled from config.json or GGUF; of an embedding model, or of one that
scores pairs of texts. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.models.layer_configs import (
    DeltaConfig,
    ExpertsConfig,
    LatentConfig,
    MambaConfig,
    ModuleCache,
    ShortConvConfig,
    StateShape,
)
from inference.models.vision_config import KEPT_ROWS_BYTES, VisionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Hugging Face ``rope_scaling``. ``llama3`` is Llama 3.1's; ``yarn`` is Peng et al. 2023,
    arXiv:2309.00071; ``longrope`` is Ding et al. 2024, arXiv:2402.13753."""

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncates: bool = True
    """Whether yarn's ramp begins and ends at whole dimensions."""
    short_divisors: tuple[float, ...] = ()
    """longrope's divisors where no position is beyond the trained length."""
    long_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGrowth:
    """Multiplies queries by ``1 + beta * log(1 + (position + offset) // positions)``."""

    beta: float
    positions: int
    offset: int = 0
    of_unrotated: bool = False
    """Whether only the queries of ``unrotated`` layers grow."""


MixerKind = Literal[
    "attention", "sliding", "chunked", "unrotated", "latent", "delta", "conv", "mamba", "none"
]
"""``chunked``: within the row's chunk of ``chunk_tokens``; ``unrotated``: without rotary embedding;
``latent``: multi-head latent attention. ``delta`` (Gated DeltaNet), ``conv`` and ``mamba`` keep a
state instead of keys and values. ``none``: the layer is an MLP alone."""
ATTENTION_KINDS: frozenset[MixerKind] = frozenset(
    {"attention", "sliding", "chunked", "unrotated", "latent"}
)
STATE_KINDS: frozenset[MixerKind] = frozenset({"delta", "conv", "mamba"})
MlpKind = Literal["dense", "sparse", "none"]
"""``none``: the layer is a mixer alone."""
NormKind = Literal["rms", "rms_plus_one", "layer"]
"""``rms_plus_one``: the files hold a norm's weight less one."""
Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]
"""``relu2``: ``relu(x) ** 2``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes count elements; ``head_dim`` may differ from ``hidden_size // num_heads``."""

    architecture: str
    """Hugging Face ``model_type``, also of a GGUF."""
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
    layer_kv: tuple[tuple[int, int], ...] = ()
    """(heads, width) of each layer's KV; no heads: it reads another layer's. Empty: all alike."""
    qk_norm: bool = False
    is_qk_norm_wide: bool = False
    """Whether that norm is of all heads together."""
    has_plain_qk_norm: bool = False
    """Whether rotated queries and keys are normed without weights."""
    is_qk_norm_after_rotation: bool = False
    sliding_window: int | None = None
    """If it is set and ``mixers`` is empty, all layers are ``sliding``."""
    chunk_tokens: int | None = None
    mixers: tuple[MixerKind, ...] = ()
    """Empty: all attention."""
    latent: LatentConfig | None = None
    """If set, all layers are ``latent``, with one KV head: latent and rotated key."""
    delta: DeltaConfig | None = None
    short_conv: ShortConvConfig | None = None
    mamba: MambaConfig | None = None
    has_output_gate: bool = False
    """Each head's queries are followed by a gate, whose sigmoid weighs its output."""
    has_sinks: bool = False
    """Whether each head's softmax has one more score, which adds nothing to the sum."""
    mlps: tuple[MlpKind, ...] = ()
    """Empty: all dense."""
    experts: ExpertsConfig | None = None
    norm: NormKind = "rms"
    """``rms_norm_eps`` is the epsilon of every kind."""
    has_norm_bias: bool = False
    is_parallel: bool = False
    """Whether mixer and MLP read the same norm and are added together."""
    activation: Activation = "silu"
    is_gated: bool = True
    """``down(activation(gate) * up)``, else ``down(activation(up))``."""
    rotary_dim: int | None = None
    """Features of each head that are rotated, the first ones; ``None``: all."""
    is_rope_interleaved: bool = False
    """Whether neighbours are rotated together, instead of halves of a head."""
    sliding_rope_theta: float | None = None
    """The base of ``sliding`` layers, where they have one of their own, and no scaling."""
    attention_scale: float | None = None
    """Multiplies scores; ``None``: one over the root of ``head_dim``."""
    query_growth: QueryGrowth | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    """``cap * tanh(x / cap)``, of scores and of logits."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Multiplies the output of each mixer and MLP before it is added."""
    logit_multiplier: float = 1.0
    has_predictor: bool = False
    """Whether multi-token prediction is computed as well: see ``families.decoder_tensors``."""
    vision: VisionConfig | None = None
    module_config: Mapping[str, Any] | None = None
    """config.json, of a model that the transformers backend computes."""
    module_cache: ModuleCache | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation_defaults: dict[str, float | int] = field(default_factory=dict)
    """Sampling defaults of generation_config.json, by SamplingOptions field name."""
    unused_defaults: tuple[str, ...] = ()
    """Those that no sampler here computes, with their values."""

    @property
    def num_query_groups(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """(heads, width) of keys and values, one a layer."""
        return self.layer_kv or ((self.num_kv_heads, self.head_dim),) * self.num_layers

    @property
    def kv_vectors(self) -> int:
        """Vectors of a head that are kept of a token: a key and a value, or a latent alone."""
        return 2 if self.latent is None else 1

    @property
    def state(self) -> StateShape | None:
        """All layers with a state are of one kind."""
        return self.delta or self.short_conv or self.mamba

    @property
    def kept_rows_bytes(self) -> int:
        return 0 if self.vision is None else KEPT_ROWS_BYTES

    @property
    def mixer_kinds(self) -> tuple[MixerKind, ...]:
        if self.mixers:
            return self.mixers
        return ("attention" if self.sliding_window is None else "sliding",) * self.num_layers

    @property
    def mlp_kinds(self) -> tuple[MlpKind, ...]:
        if self.mlps:
            return self.mlps
        kind: MlpKind = "dense"
        return (kind,) * self.num_layers

    @property
    def widest_window(self) -> int | None:
        """``None`` where a layer sees all, or keeps a state."""
        return self.sliding_window if set(self.mixer_kinds) == {"sliding"} else None

    def window_of(self, kind: MixerKind) -> int | None:
        """Tokens that a row sees at most, itself included; ``None``: all before it."""
        return {"sliding": self.sliding_window, "chunked": self.chunk_tokens}.get(kind)

    def grows_queries(self, kind: MixerKind) -> bool:
        growth = self.query_growth
        return growth is not None and (kind == "unrotated" or not growth.of_unrotated)


Pooling = Literal["cls", "mean", "max", "last"]
ScoreActivation = Literal["sigmoid", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    max_input_tokens: int
    """Special tokens included: the model's positions, or a lower limit of its files."""
    pad_token_id: int
    pooling: Pooling
    normalize: bool
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    """Empty: any number."""
    activation: ScoreActivation | None = None
    """Turns a pair's logit into a score; ``None``: the model makes vectors."""
    separator_token_id: int | None = None
    """Between the texts of a pair, where the model has segment ids for them."""
    prompt_names: tuple[str, ...] = ()
    """Prompts that the model declares. They are not applied: clients write them."""

    @property
    def dimensions(self) -> int:
        return self.hidden_size if self.activation is None else 1

    def describe(self) -> str:
        if self.activation is not None:
            return f"one score for a pair ({self.activation})"
        words = f"{self.pooling} pooling"
        if self.normalize:
            words += ", normalised"
        if self.prompt_names:
            names = ", ".join(self.prompt_names)
            words += f"; its prompts ({names}) are left to clients to write before their inputs"
        return words
