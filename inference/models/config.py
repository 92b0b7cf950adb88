"""The shape of a decoder, as every family here understands it. Filled from config.json or GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.models.delta_config import DeltaConfig
from inference.models.experts_config import ExpertsConfig
from inference.models.vision_config import VisionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How positions beyond the trained length are mapped (Hugging Face ``rope_scaling``).

    ``linear`` divides positions by ``factor``; ``llama3`` is the frequency-banded rule of Llama 3.1
    and uses the three fields below it; ``yarn`` is Peng et al. 2023, arXiv:2309.00071; ``longrope``
    is Ding et al. 2024, arXiv:2402.13753, with a divisor for each frequency.
    """

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
    """Of longrope, where no position is beyond the trained length."""
    long_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGrowth:
    """Queries are multiplied by ``1 + beta * log(1 + position // positions)``: the longer the
    context, the sharper its scores."""

    beta: float
    positions: int


MixerKind = Literal["attention", "sliding", "unrotated", "delta"]
"""
attention    over the whole context
sliding      attention within ``sliding_window``
unrotated    attention over the whole context, without rotary embedding
delta        Gated DeltaNet: a state instead of keys and values
"""
MlpKind = Literal["dense", "sparse"]
NormKind = Literal["rms", "rms_plus_one", "layer"]
"""``rms_plus_one``: the files hold a norm's weight less one."""
Activation = Literal["silu", "gelu", "gelu_tanh"]


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
    layer_kv: tuple[tuple[int, int], ...] = ()
    """Of each layer, how many heads its keys and values have, and how wide they are: no heads where
    a layer reads another's. Empty: all have ``num_kv_heads`` of ``head_dim``."""
    qk_norm: bool = False
    """RMS norm of q and k before the rotation, of each head."""
    is_qk_norm_wide: bool = False
    """Whether that norm is of all heads together."""
    sliding_window: int | None = None
    """Of the layers that are ``sliding``: all of them where ``mixers`` says nothing."""
    mixers: tuple[MixerKind, ...] = ()
    """Of each layer; empty: all attention."""
    delta: DeltaConfig | None = None
    """Of the layers that are ``delta``."""
    has_output_gate: bool = False
    """Whether attention's queries come with a gate as wide, whose sigmoid weighs what was
    attended to. Head by head: a head's queries, then its gate."""
    has_sinks: bool = False
    """Whether each head of attention has a score of its own that takes weight from the context and
    adds nothing."""
    mlps: tuple[MlpKind, ...] = ()
    """Of each layer; empty: all dense."""
    experts: ExpertsConfig | None = None
    """Of the layers that are sparse."""
    norm: NormKind = "rms"
    """With ``rms_norm_eps``, whichever it is."""
    has_norm_bias: bool = False
    is_parallel: bool = False
    """Whether mixer and MLP read the same norm and are added together."""
    activation: Activation = "silu"
    is_gated: bool = True
    """Whether the MLP has gates: ``down(activation(gate) * up)``, else ``down(activation(up))``."""
    rotary_dim: int | None = None
    """How many features of each head are rotated, the first ones; ``None``: all."""
    is_rope_interleaved: bool = False
    """Whether neighbours are rotated together, and not halves of a head."""
    sliding_rope_theta: float | None = None
    """Where ``sliding`` layers have a base of their own, and no scaling."""
    attention_scale: float | None = None
    """Of scores; ``None``: one over the root of ``head_dim``."""
    query_growth: QueryGrowth | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    """``cap * tanh(x / cap)``, of scores and of logits."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Of what a mixer or an MLP adds."""
    logit_multiplier: float = 1.0
    has_predictor: bool = False
    """Whether the layer that foresees the token after the next (multi-token prediction) is computed
    as well: see ``families.predictor``."""
    vision: VisionConfig | None = None
    """Of a model that is given pictures; ``None``: it reads text alone."""
    module_config: Mapping[str, Any] | None = None
    """config.json, of a model that transformers' own module computes."""
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
        kinds = zip(self.kv_shapes, self.mixer_kinds, strict=True)
        return sum(2 * heads * width for (heads, width), kind in kinds if kind != "delta")

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """Heads of keys and values and their width, one a layer."""
        return self.layer_kv or ((self.num_kv_heads, self.head_dim),) * self.num_layers

    @property
    def mixer_kinds(self) -> tuple[MixerKind, ...]:
        """One a layer."""
        if self.mixers:
            return self.mixers
        return ("attention" if self.sliding_window is None else "sliding",) * self.num_layers

    @property
    def mlp_kinds(self) -> tuple[MlpKind, ...]:
        """One a layer."""
        if self.mlps:
            return self.mlps
        kind: MlpKind = "dense"
        return (kind,) * self.num_layers

    @property
    def widest_window(self) -> int | None:
        """How many tokens a row sees at most; ``None`` where a layer sees all, or keeps a state."""
        return self.sliding_window if set(self.mixer_kinds) == {"sliding"} else None

    def window_of(self, kind: MixerKind) -> int | None:
        return self.sliding_window if kind == "sliding" else None
