"""The tensors of a model as families declare them: names, roles, shapes, and how ranks split them;
and the names of a layer's parts in a family's files. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Role = Literal[
    "embedding",
    "norm",
    "column",
    "whole_column",
    "row",
    "row_bias",
    "head",
    "experts",
    "router",
    "up",
    "conv",
    "state",
    "tower",
]
"""
embedding, head   one row per token of the vocabulary; ranks split those rows
column            (out_features, in_features); ranks split the outputs, and its bias with them
whole_column      (out_features, in_features), and its bias; the same on every rank
row               (out_features, in_features); ranks split the inputs and add up the results
row_bias          (out_features,) of a row: one rank alone adds it
experts           (num_experts, out_features, in_features); ranks split the experts
up                what makes keys and values of latents, dense in memory; ranks split its heads
norm, conv, state     small; those of heads are split with them, all others on every rank
router, tower     the same on every rank
"""

SplitKind = Literal[
    "heads", "kv_heads", "inner", "shared_inner", "experts", "key_heads", "channels", "vocabulary"
]
"""Units that ranks share. ``inner``: features of an MLP; ``shared_inner``: of the expert that every
row goes through; ``key_heads``: of Gated DeltaNet, with the value heads that belong to each;
``channels``: of a short convolution."""


@dataclass(frozen=True, slots=True)
class Section:
    """Neighbours along the axis that ranks split: ``count`` units of ``width`` features each."""

    kind: SplitKind
    count: int
    width: int = 1

    @property
    def features(self) -> int:
        return self.count * self.width


MATRIX_ROLES: frozenset[Role] = frozenset({"column", "whole_column", "row", "experts"})
"""Weights of projections: the ones worth quantising."""
TABLE_ROLES: frozenset[Role] = frozenset({"embedding", "head"})


@dataclass(frozen=True, slots=True)
class TensorRole:
    name: str
    """Hugging Face's, with ``.weight`` or ``.bias``."""
    role: Role
    shape: tuple[int, ...]
    parts: tuple[str, ...] = ()
    """Names of the tensors that files may hold instead: this one, cut along its first axis."""
    sections: tuple[Section, ...] = ()
    """Along the axis that ranks split: a row's last, else the first. Empty: not split."""
    is_optional: bool = False
    may_be_folded: bool = False
    """Whether files may hold the numbers of a vector along two axes."""


def column(
    name: str, in_features: int, *sections: Section, has_bias: bool = False
) -> Iterator[TensorRole]:
    """``sections``: of the outputs."""
    role: Role = "column"
    features = sum(section.features for section in sections)
    yield TensorRole(f"{name}.weight", role, (features, in_features), sections=sections)
    if has_bias:
        yield TensorRole(f"{name}.bias", role, (features,), sections=sections)


def row(
    name: str, out_features: int, *sections: Section, has_bias: bool = False
) -> Iterator[TensorRole]:
    """``sections``: of the inputs."""
    features = sum(section.features for section in sections)
    yield TensorRole(f"{name}.weight", "row", (out_features, features), sections=sections)
    if has_bias:
        yield TensorRole(f"{name}.bias", "row_bias", (out_features,))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """Names after ``model.layers.N.``, without ``.weight``."""

    input_norm: str | None = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    """The whole name of the sinks' tensor, where attention has sinks."""
    output: str = "self_attn.o_proj"
    mixed_norm: str | None = None
    """The norm of the mixer's output."""
    mlp_norm: str | None = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gates first; only what goes up where an MLP has no gates."""
    down: str = "mlp.down_proj"
    mlp_added_norm: str | None = None

    @property
    def norms(self) -> tuple[str, ...]:
        declared = (self.input_norm, self.mixed_norm, self.mlp_norm, self.mlp_added_norm)
        return tuple(dict.fromkeys(name for name in declared if name is not None))
