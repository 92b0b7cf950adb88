"""The shape of a model: of a decoder, as every family here understands it, filled from config.json
or GGUF; of an embedding model, or of one that scores pairs of texts. Imports no torch."""

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
    """longrope's divisors where no position is beyond the trained length."""
    long_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGrowth:
    """Queries are multiplied by ``1 + beta * log(1 + (position + offset) // positions)``: the
    longer the context, the sharper its scores."""

    beta: float
    positions: int
    offset: int = 0
    of_unrotated: bool = False
    """Whether only the queries of ``unrotated`` layers grow."""


MixerKind = Literal[
    "attention", "sliding", "chunked", "unrotated", "latent", "delta", "conv", "mamba", "none"
]
"""
attention    over the whole context
sliding      attention within ``sliding_window``
chunked      attention within the row's chunk of ``chunk_tokens``, which begin with the sequence
unrotated    attention over the whole context, without rotary embedding
latent       multi-head latent attention, over the whole context
delta        Gated DeltaNet: a state instead of keys and values
conv         a gated convolution over a few rows: a state as well
mamba        Mamba-2: a state as well
none         the layer is an MLP alone
"""
ATTENTION_KINDS: frozenset[MixerKind] = frozenset(
    {"attention", "sliding", "chunked", "unrotated", "latent"}
)
"""Mixers that keep something of each token, in blocks: keys and values, or latents."""
STATE_KINDS: frozenset[MixerKind] = frozenset({"delta", "conv", "mamba"})
"""Mixers that keep a state."""
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
    """The heads of each layer's keys and values and their width: no heads where a
    layer reads another's. Empty: all have ``num_kv_heads`` of ``head_dim``."""
    qk_norm: bool = False
    """RMS norm of q and k, of each head."""
    is_qk_norm_wide: bool = False
    """Whether that norm is of all heads together."""
    has_plain_qk_norm: bool = False
    """Whether queries and keys that are rotated have such a norm without weights."""
    is_qk_norm_after_rotation: bool = False
    """Whether that norm is of rotated heads; else it comes before the rotation."""
    sliding_window: int | None = None
    """The window of ``sliding`` layers, which are all layers where ``mixers`` is empty."""
    chunk_tokens: int | None = None
    """Tokens of a chunk of ``chunked`` layers."""
    mixers: tuple[MixerKind, ...] = ()
    """Each layer's mixer; empty: all attention."""
    latent: LatentConfig | None = None
    """The shape of ``latent`` layers, which all are where one is. The model has then one head of
    keys, ``head_dim`` wide: a token's latent and rotated key, which all queries meet."""
    delta: DeltaConfig | None = None
    """The shape of ``delta`` layers."""
    short_conv: ShortConvConfig | None = None
    """The shape of ``conv`` layers."""
    mamba: MambaConfig | None = None
    """The shape of ``mamba`` layers."""
    has_output_gate: bool = False
    """Whether attention's queries come with a gate as wide, whose sigmoid weighs the attention's
    output. Head by head: a head's queries, then its gate."""
    has_sinks: bool = False
    """Whether each head of attention has a score of its own that takes weight from the context and
    adds nothing."""
    mlps: tuple[MlpKind, ...] = ()
    """Each layer's MLP; empty: all dense."""
    experts: ExpertsConfig | None = None
    """The experts of ``sparse`` layers."""
    norm: NormKind = "rms"
    """The kind of norm, with ``rms_norm_eps`` for either kind."""
    has_norm_bias: bool = False
    is_parallel: bool = False
    """Whether mixer and MLP read the same norm and are added together."""
    activation: Activation = "silu"
    is_gated: bool = True
    """Whether the MLP has gates: ``down(activation(gate) * up)``, else ``down(activation(up))``."""
    rotary_dim: int | None = None
    """Features of each head that are rotated, the first ones; ``None``: all."""
    is_rope_interleaved: bool = False
    """Whether neighbours are rotated together, and not halves of a head."""
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
    """Whether the layer that predicts the token after the next (multi-token prediction) is computed
    as well: see ``families.decoder_tensors``."""
    vision: VisionConfig | None = None
    """The vision tower of a model that accepts images; ``None``: it reads text alone."""
    module_config: Mapping[str, Any] | None = None
    """config.json, of a model that the transformers backend computes."""
    module_cache: ModuleCache | None = None
    """That module's cache, where it runs with one."""
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
        """Heads of keys and values and their width, one a layer."""
        return self.layer_kv or ((self.num_kv_heads, self.head_dim),) * self.num_layers

    @property
    def kv_vectors(self) -> int:
        """Vectors of a head that are kept of a token: a key and a value, or a latent alone."""
        return 2 if self.latent is None else 1

    @property
    def state(self) -> StateShape | None:
        """The state of each layer that keeps one: all are of one kind."""
        return self.delta or self.short_conv or self.mamba

    @property
    def kept_rows_bytes(self) -> int:
        """Bytes of image embeddings that a model may keep beside its keys and values."""
        return 0 if self.vision is None else KEPT_ROWS_BYTES

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
        """The most tokens that a row sees; ``None`` where a layer sees all, or keeps a state."""
        return self.sliding_window if set(self.mixer_kinds) == {"sliding"} else None

    def window_of(self, kind: MixerKind) -> int | None:
        """The most tokens that a row sees, its own among them; of ``chunked`` layers it sees
        fewer, as many as its chunk has up to it. ``None``: all before it."""
        return {"sliding": self.sliding_window, "chunked": self.chunk_tokens}.get(kind)

    def grows_queries(self, kind: MixerKind) -> bool:
        growth = self.query_growth
        return growth is not None and (kind == "unrotated" or not growth.of_unrotated)


Pooling = Literal["cls", "mean", "max", "last"]
"""Makes one vector of those of an input's tokens: the first token's, their mean, the largest value
of each dimension, or the last token's."""
ScoreActivation = Literal["sigmoid", "identity"]
"""Makes a score of the one number that a cross-encoder computes for a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    architecture: str
    """``model_type`` of config.json."""
    vocab_size: int
    hidden_size: int
    """The width of a token's vector, and so of an input's."""
    intermediate_size: int
    max_input_tokens: int
    """The most tokens of one input, special ones included: the model's positions, or fewer where
    its files declare a lower limit."""
    pad_token_id: int
    pooling: Pooling
    normalize: bool
    """Vectors are brought to length 1."""
    is_matryoshka: bool = False
    """The model declares that the leading dimensions of its vectors are of use alone."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """Their numbers, where it names them; empty: any number."""
    activation: ScoreActivation | None = None
    """The end of a model that scores pairs; ``None``: it makes vectors."""
    separator_token_id: int | None = None
    """The separator between the texts of a pair, where the model has segment ids for them;
    ``None``: it has none."""
    prompt_names: tuple[str, ...] = ()
    """Texts that the model knows to be put before inputs. They are not: clients write them."""

    @property
    def dimensions(self) -> int:
        """Numbers for one input."""
        return self.hidden_size if self.activation is None else 1

    def describe(self) -> str:
        """Describes the model's output, for people."""
        if self.activation is not None:
            return f"one score for a pair ({self.activation})"
        words = f"{self.pooling} pooling"
        if self.normalize:
            words += ", normalised"
        if self.prompt_names:
            names = ", ".join(self.prompt_names)
            words += f"; its prompts ({names}) are left to clients to write before their inputs"
        return words
