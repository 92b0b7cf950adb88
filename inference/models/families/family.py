"""The declaration of a family of decoders. All else derives from it: which files can be loaded,
which tensors they must hold, which weights are quantised, and the builder of the model.

    config.json ─┐                    ┌─ tensors ─▶ preflight, quantising, splits
    GGUF keys ───┴─▶ ModelConfig ─────┴─ builder ─▶ the model, on torch operators
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.models.config import ModelConfig
from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.layer_names import LayerNames

Json = Mapping[str, Any]

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
"""What ranks share out. ``inner``: features of an MLP; ``shared_inner``: of the expert that every
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

Feature = Literal["prefix_reuse", "vision"]


@dataclass(frozen=True, slots=True)
class TensorRole:
    """One tensor that a model computes with."""

    name: str
    """Hugging Face's, with ``.weight`` or ``.bias``."""
    role: Role
    shape: tuple[int, ...]
    parts: tuple[str, ...] = ()
    """Names of the tensors that files may hold instead: this one, cut along its first axis."""
    sections: tuple[Section, ...] = ()
    """What lies along the axis that ranks split: the last one of a row, else the first. None: the
    tensor is the same on every rank."""
    is_optional: bool = False
    """Whether the model does without it where the files lack it."""
    may_be_folded: bool = False
    """Whether files may hold the numbers of a vector along two axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFNames:
    """Hugging Face's names by GGUF's, all without ``.weight`` and ``.bias``. A tensor whose name
    ends in neither stands here under its whole name."""

    model: Mapping[str, str] = field(default_factory=dict)
    layer: Mapping[str, str] = field(default_factory=dict)
    """Names within a layer: after ``blk.N.`` and ``model.layers.N.``."""
    folded: frozenset[str] = frozenset()
    """The names of ``layer`` whose tensors have the heads' axis and their features' as one here."""

    def hugging_face(self, name: str) -> str | None:
        """``blk.0.attn_q.weight`` -> ``model.layers.0.self_attn.q_proj.weight``; ``None`` for a
        tensor that the family does not compute with."""
        match = _LAYER_NAME.fullmatch(name)
        known, inner = (self.layer, match[2]) if match else (self.model, name)
        stem, _, kind = inner.rpartition(".")
        found = known.get(inner)
        if found is None and (by_stem := known.get(stem)) is not None:
            found = f"{by_stem}.{kind}"
        if found is None or match is None:
            return found
        return f"model.layers.{match[1]}.{found}"

    def is_folded(self, name: str) -> bool:
        match = _LAYER_NAME.fullmatch(name)
        return match is not None and match[2].rpartition(".")[0] in self.folded


_LAYER_NAME = re.compile(r"blk\.(\d+)\.(.+)")


def _own_name(name: str) -> str:
    return name


def _natural_order(name: str, config: ModelConfig) -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    """The name for people, in docs and messages."""
    model_types: tuple[str, ...]
    """``model_type`` of config.json."""
    gguf_architectures: tuple[str, ...] = ()
    """``general.architecture`` of GGUF files; none where they are not read."""
    gguf_shared: tuple[str, ...] = ()
    """Names that another family's files have too; that family decides between the two."""
    read_config: Callable[[Json, Json], ModelConfig]
    """Reads config.json and generation_config.json, parsed. Raises ``BadFileError`` for what the
    family would compute wrongly."""
    read_gguf: Callable[[GGUFKeys], ModelConfig] | None = None
    """Raises ``BadFileError``."""
    tensors: Callable[[ModelConfig], Iterable[TensorRole]]
    """All that a model of this config computes with."""
    layer_names: LayerNames = field(default_factory=LayerNames)
    hub_name: Callable[[str], str] = _own_name
    """What the model calls a tensor of a safetensors file."""
    has_transposed_experts: bool = False
    """Whether safetensors may stack experts with their inputs first."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of names in safetensors files that the model does not compute with, and in words
    what they are for."""
    predictor_name: Callable[[str, ModelConfig], str] | None = None
    """What a tensor of a safetensors file, by its ``hub_name``, is called as part of what
    ``families.predictor`` declares; ``None`` where the family knows no such layer."""
    gguf_names: GGUFNames = field(default_factory=GGUFNames)
    interleaved_heads: Callable[[str, ModelConfig], int | None] = _natural_order
    """How many heads' rows stand in GGUF's interleaved rotary order in the tensor of this Hugging
    Face name; ``None`` where rows are in their natural order."""
    gguf_projectors: tuple[str, ...] = ()
    """The ``clip.projector_type`` of mmproj files whose towers it computes."""
    features: frozenset[Feature] = frozenset({"prefix_reuse"})
    uses_transformers: bool = False
    """Whether transformers' own modules compute it, which read their files' tensors themselves."""
    learns: str = ""
    """``module:name`` of a function ``ModelConfig -> ModelConfig`` that completes a config by
    inspecting transformers' module without its weights. Imported when a model is opened. Raises
    ``UnsupportedModuleError``. Empty: config.json is complete."""
    builder: str
    """``module:name`` of what builds the model on torch operators, imported when one is built:
    ``(config, weights, context_tokens, kv_format) -> Model``."""
