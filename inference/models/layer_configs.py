"""Shapes of layers other than plain attention, and of what they keep for a sequence beside keys and
values: states, and the cache of a module of the transformers backend, whose entries of each token
go into blocks and those of each sequence into a state slot. Imports no torch: memory is planned
with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]
"""The way from the router's logits to weights: softmax over all experts, then the best are taken
(qwen, mixtral, olmoe); each expert's sigmoid by itself; the best are taken, then a softmax over
those (gpt-oss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """The width of one expert."""
    scoring: Scoring = "softmax"
    normalizes: bool = False
    """Whether the weights of a token's experts are made to add up to one (``norm_topk_prob``)."""
    shared_intermediate_size: int | None = None
    """The width of the expert that every row goes through beside its own, where there is one."""
    gates_shared: bool = True
    """Whether a sigmoid of the row weighs the shared expert's output."""
    is_gated: bool = True
    """Whether experts have gates: else they are ``down(relu(up(x)) ** 2)``."""
    shared_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    shared_down: str = "down_proj"
    """The names of that expert's projections, gates first."""
    has_choice_bias: bool = False
    """Whether a bias of each expert is added to its score where the best are chosen, and not where
    they are weighed; of sigmoids, or of the softmax over all."""
    num_groups: int = 1
    """Neighbouring experts are a group, all groups of one size. Where there are several, a row's
    experts are of its best groups alone, by their scores with the number that is added."""
    groups_per_token: int = 1
    group_experts: int = 2
    """The number of best experts whose sum is a group's worth."""
    weight_scale: float = 1.0
    """Multiplies the weights of a token's experts."""
    weighs_inputs: bool = False
    """Whether weights multiply experts' inputs, and not their outputs."""
    has_bias: bool = False
    """Whether the router and each expert's projections have biases."""
    swish_gain: float = 1.0
    """The gain in the gate: ``gate * sigmoid(gain * gate)``."""
    held: tuple[int, int] | None = None
    """``[first, last)``: which of the experts this rank has; ``None``: all."""
    limit: float | None = None
    """Clamps gates from above and the up projection from both sides, which is then raised by one;
    ``None``: no clamp."""

    @property
    def gate_up(self) -> tuple[str, ...]:
        """The names of each expert's projections before ``down_proj``, gates first."""
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
    """The width of the part of a head's query and key that is not rotated."""
    value_dim: int
    query_rank: int | None = None
    """The width that queries are compressed to; ``None``: they are projected at once."""
    is_up_split: bool = False
    """Whether the files hold the projection to keys, transposed, apart from the one to values."""

    @property
    def cached_features(self) -> int:
        """Features that are kept of a token for all heads together."""
        return self.kv_rank + self.rotary_dim

    @property
    def query_dim(self) -> int:
        """The width of a head's query, and of its key."""
        return self.plain_dim + self.rotary_dim

    @property
    def up_features(self) -> int:
        """The features that a latent becomes for each head: a plain key and a value."""
        return self.plain_dim + self.value_dim


STATE_ELEMENT_BYTES = 4
"""States are float32, whatever the model computes in: they are summed over a whole sequence."""
NEGATIVE_RATE = "negative_decay_rate"
"""The name of the tensor of the negated rate at which each head forgets; other files hold the
rate's logarithm."""


class StateShape(Protocol):
    """The shape of one layer's state for one sequence."""

    @property
    def conv_shape(self) -> tuple[int, int]:
        """(rows, channels): the inputs that the next row's convolution looks back at, oldest
        first."""
        ...

    @property
    def recurrent_shape(self) -> tuple[int, ...]:
        """The sum over all earlier rows; with a 0 in it where a layer has no such state."""
        ...


def state_bytes(shape: StateShape) -> int:
    """Bytes of one layer's state for one sequence."""
    return STATE_ELEMENT_BYTES * (math.prod(shape.conv_shape) + math.prod(shape.recurrent_shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A gated convolution over a few rows."""

    channels: int
    kernel: int
    """The number of last inputs of the convolution, the row's own included."""
    has_bias: bool = False
    """Whether the convolution and the projections around it have biases."""

    @property
    def conv_shape(self) -> tuple[int, int]:
        return self.kernel - 1, self.channels

    @property
    def recurrent_shape(self) -> tuple[int, ...]:
        return (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNames:
    """A layer's tensors that not all files hold alike, by the names after ``linear_attn.``.

    Projections that files hold in one go from key head to key head, with what belongs to each; of
    those that they hold apart, each has all its heads in order.
    """

    qkvz: tuple[str, ...] = ("in_proj_qkv", "in_proj_z")
    ba: tuple[str, ...] = ("in_proj_b", "in_proj_a")
    decay: str = "A_log"
    """The tensor of each head's decay: the logarithm of the rate, or ``NEGATIVE_RATE``."""

    @property
    def is_qkvz_grouped(self) -> bool:
        return len(self.qkvz) == 1

    @property
    def is_ba_grouped(self) -> bool:
        return len(self.ba) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """A Gated DeltaNet layer."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    """The number of last inputs of the causal convolution, the row's own included."""
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
        return self.conv_kernel - 1, self.conv_channels

    @property
    def recurrent_shape(self) -> tuple[int, int, int]:
        return self.num_value_heads, self.key_head_dim, self.value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """A Mamba-2 layer."""

    num_heads: int
    head_dim: int
    num_groups: int
    """Heads of a group share keys and queries."""
    state_size: int
    """Features that a head keeps of each of its own."""
    conv_kernel: int
    """The number of last inputs of the causal convolution, the row's own included."""
    has_conv_bias: bool = True
    has_bias: bool = False
    """Whether the projections have biases."""
    step_limit: tuple[float, float] = (0.0, math.inf)
    """Clamps the lengths of steps."""
    prefix: str = "mamba"
    """The layer's name after ``model.layers.N.``."""
    decay: str = "A_log"
    """The tensor of each head's decay rate."""

    @property
    def features(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def group_features(self) -> int:
        """The width of the keys, or the queries, of all groups."""
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


ATTENTION_PART, INDEXER_PART = "attention", "indexer"
"""Parts of a layer that keep something of each token."""
OWN_KIND = "own"
"""The kind of states that a module keeps apart from the layers of transformers' cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """A part of a layer's entry of each token: a key and a value, or a key alone."""

    layer: int
    part: str
    key_shape: tuple[int, int]
    """Heads and their width."""
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
        """Heads and width of the pair that blocks hold. Keys and values of different shapes lie one
        after the other in it, as one head."""
        if self.is_even:
            return self.key_shape
        return 1, -(-(math.prod(self.key_shape) + math.prod(self.value_shape)) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    layer: int
    """0 for one that is the module's own."""
    kind: str
    """The layer's name for it."""
    index: int
    """Among several of the layer, or of the module's own."""
    shape: tuple[int, ...]
    """The shape of one sequence's state."""
    dtype: str | None
    """The dtype that the module keeps it in, by torch's name; ``None``: the activations'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCache:
    tokens: tuple[TokenEntry, ...]
    states: tuple[StateEntry, ...]

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of each entry. Blocks also name the prefixes of a module that keeps nothing of
        a token: then they hold one number of each."""
        return tuple(entry.kv_shape for entry in self.tokens) or ((1, 1),)

    @property
    def state_layers(self) -> tuple[int, ...]:
        return tuple(sorted({entry.layer for entry in self.states}))

    @property
    def state_bytes(self) -> int:
        return STATE_ELEMENT_BYTES * sum(math.prod(entry.shape) for entry in self.states)
