"""Shapes of layers other than plain attention, and of what they keep for a sequence beside keys and
values. Imports no torch: memory is planned with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]
"""softmax: over all experts, then the best are chosen (qwen, mixtral, olmoe); sigmoid: of each
expert alone; softmax_of_chosen: over the best (gpt-oss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    num_experts: int
    experts_per_token: int
    intermediate_size: int
    scoring: Scoring = "softmax"
    normalizes: bool = False
    """``norm_topk_prob``: the weights of a token's experts add up to one."""
    shared_intermediate_size: int | None = None
    gates_shared: bool = True
    """Whether a sigmoid of the row weighs the shared expert's output."""
    is_gated: bool = True
    """Else experts are ``down(relu(up(x)) ** 2)``."""
    shared_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    shared_down: str = "down_proj"
    has_choice_bias: bool = False
    """Whether a bias ranks each expert, without changing its weight."""
    num_groups: int = 1
    """Neighbouring experts form a group. A row's experts are in its best groups alone."""
    groups_per_token: int = 1
    group_experts: int = 2
    """The number of best experts whose sum ranks a group."""
    weight_scale: float = 1.0
    weighs_inputs: bool = False
    """Whether weights multiply experts' inputs, and not their outputs."""
    has_bias: bool = False
    """The router and every expert's projections have biases."""
    swish_gain: float = 1.0
    """The gate is ``gate * sigmoid(gain * gate)``."""
    held: tuple[int, int] | None = None
    """``[first, last)``: the experts of this rank; ``None``: all."""
    limit: float | None = None
    """Clamps gates from above, ``up`` from both sides, then adds 1 to ``up``; ``None``: none."""

    @property
    def gate_up(self) -> tuple[str, ...]:
        return ("gate_proj", "up_proj") if self.is_gated else ("up_proj",)

    @property
    def experts_per_group(self) -> int:
        return self.num_experts // self.num_groups

    @property
    def held_experts(self) -> range:
        return range(self.num_experts) if self.held is None else range(*self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434). Widths count features.

    hidden ─▶ kv_a ─▶ latent (kv_rank) | rotary key (rotary_dim), one of each a token
    latent ─▶ kv_b ─▶ of each head: plain key (plain_dim) | value (value_dim)
    hidden ─▶ q, or q_a ─▶ norm ─▶ q_b ─▶ of each head: plain query | rotary query
    """

    kv_rank: int
    rotary_dim: int
    plain_dim: int
    """The unrotated width of a head's query and key."""
    value_dim: int
    query_rank: int | None = None
    """``None``: queries are not compressed."""
    is_up_split: bool = False
    """Whether the files hold the projection to keys, transposed, apart from the one to values."""

    @property
    def cached_features(self) -> int:
        return self.kv_rank + self.rotary_dim

    @property
    def query_dim(self) -> int:
        return self.plain_dim + self.rotary_dim

    @property
    def up_features(self) -> int:
        return self.plain_dim + self.value_dim


STATE_ELEMENT_BYTES = 4
"""States are float32, whatever the model computes in: they are summed over a whole sequence."""
NEGATIVE_RATE = "negative_decay_rate"
"""The tensor's name in files that hold the negated rate; other files hold its logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    channels: int
    kernel: int
    """The convolution's inputs, the row's own included."""
    has_bias: bool = False

    @property
    def conv_shape(self) -> tuple[int, int]:
        """(rows, channels): earlier inputs of the convolution, oldest first."""
        return self.kernel - 1, self.channels

    @property
    def recurrent_shape(self) -> tuple[int, ...]:
        """Has a 0 in it: there is no such state."""
        return (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNames:
    """By the names after ``linear_attn.``. A joint projection goes from key head to key head, with
    what belongs to each; separate ones have all heads in order."""

    qkvz: tuple[str, ...] = ("in_proj_qkv", "in_proj_z")
    ba: tuple[str, ...] = ("in_proj_b", "in_proj_a")
    decay: str = "A_log"
    """The logarithm of the rate, or ``NEGATIVE_RATE``."""

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
    """The convolution's inputs, the row's own included."""
    are_value_heads_tiled: bool = False
    """Whether value head ``i`` belongs to key head ``i % num_key_heads``, as in some GGUF files."""
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
        return self.conv_kernel - 1, self.conv_channels

    @property
    def recurrent_shape(self) -> tuple[int, int, int]:
        return self.num_value_heads, self.key_head_dim, self.value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    num_heads: int
    head_dim: int
    num_groups: int
    """Heads of a group share keys and queries."""
    state_size: int
    conv_kernel: int
    has_conv_bias: bool = True
    has_bias: bool = False
    step_limit: tuple[float, float] = (0.0, math.inf)
    prefix: str = "mamba"
    """The layer's name after ``model.layers.N.``."""
    decay: str = "A_log"

    @property
    def features(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def group_features(self) -> int:
        """The width of all groups' keys, or of their queries."""
        return self.num_groups * self.state_size

    @property
    def conv_channels(self) -> int:
        """Values, keys and queries, side by side."""
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


StateShape = ShortConvConfig | DeltaConfig | MambaConfig


def state_bytes(shape: StateShape) -> int:
    return STATE_ELEMENT_BYTES * (math.prod(shape.conv_shape) + math.prod(shape.recurrent_shape))


ATTENTION_PART, INDEXER_PART = "attention", "indexer"
OWN_KIND = "own"
"""States that a module keeps outside the layers of transformers' cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    layer: int
    part: str
    key_shape: tuple[int, int]
    """(heads, width)"""
    value_shape: tuple[int, int]
    """(0, 0) of a key alone."""

    @property
    def has_values(self) -> bool:
        return self.value_shape != (0, 0)

    @property
    def is_even(self) -> bool:
        return self.key_shape == self.value_shape

    @property
    def kv_shape(self) -> tuple[int, int]:
        """Keys and values of different shapes lie one after the other, as one head."""
        if self.is_even:
            return self.key_shape
        return 1, -(-(math.prod(self.key_shape) + math.prod(self.value_shape)) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    layer: int
    """0: the module's own."""
    kind: str
    index: int
    """Among several of the layer, or of the module's own."""
    shape: tuple[int, ...]
    """One sequence's."""
    dtype: str | None
    """The module's own, by torch's name; ``None``: the activations'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCache:
    tokens: tuple[TokenEntry, ...]
    states: tuple[StateEntry, ...]

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """(1, 1) of a module that keeps nothing of a token: blocks still name its prefixes."""
        return tuple(entry.kv_shape for entry in self.tokens) or ((1, 1),)

    @property
    def state_layers(self) -> tuple[int, ...]:
        return tuple(sorted({entry.layer for entry in self.states}))

    @property
    def state_bytes(self) -> int:
        return STATE_ELEMENT_BYTES * sum(math.prod(entry.shape) for entry in self.states)
