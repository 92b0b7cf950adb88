"""The layer that predicts the token after the next (multi-token prediction): its tensors, and the
config by which it is a layer like the others.

    mtp.embed_tokens ─▶ mtp.pre_fc_norm_embedding ─┐
                                                   ├─ mtp.fc ─▶ layer ─▶ mtp.norm ─▶ mtp.head
                        mtp.pre_fc_norm_hidden ────┘

The layer is attention, with an MLP of the model's kind. Inside it is called as if it were the
model's last layer, ``model.layers.{num_layers}``. Files that lack the table or the head mean the
model's own.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from inference.models.config import MlpKind, ModelConfig

PREDICTOR = "mtp."
PREDICTOR_TABLE = f"{PREDICTOR}embed_tokens"
PREDICTOR_HEAD = f"{PREDICTOR}head"
_LAYER = f"{PREDICTOR}layers.0."
_NEXTN_NAMES = {
    "embed_tokens": PREDICTOR_TABLE,
    "enorm": f"{PREDICTOR}pre_fc_norm_embedding",
    "hnorm": f"{PREDICTOR}pre_fc_norm_hidden",
    "eh_proj": f"{PREDICTOR}fc",
    "shared_head.norm": f"{PREDICTOR}norm",
    "shared_head.head": PREDICTOR_HEAD,
}


def mtp_name(name: str, config: ModelConfig) -> str:
    """The name inside of a tensor of files whose names of this layer begin with ``mtp.``."""
    if not name.startswith(_LAYER):
        return name
    return f"model.layers.{config.num_layers}.{name.removeprefix(_LAYER)}"


def nextn_name(name: str, config: ModelConfig) -> str:
    """The name inside of a tensor of files that have this layer behind the model's own ones."""
    layer = f"model.layers.{config.num_layers}."
    stem, _, kind = name.removeprefix(layer).rpartition(".")
    if not name.startswith(layer) or stem not in _NEXTN_NAMES:
        return name
    return f"{_NEXTN_NAMES[stem]}.{kind}"


def gguf_nextn_name(name: str, config: ModelConfig) -> str | None:
    """``blk.{num_layers}.nextn.eh_proj.weight`` -> ``mtp.fc.weight``; ``None`` for any other tensor
    of a GGUF file: those of the layer itself are called like those of the layers before it."""
    start = f"blk.{config.num_layers}.nextn."
    stem, _, kind = name.removeprefix(start).rpartition(".")
    own = _NEXTN_NAMES.get(stem.replace("shared_head_", "shared_head."))
    return f"{own}.{kind}" if own is not None and name.startswith(start) else None


def has_gguf_predictor(config: ModelConfig, names: Container[str]) -> bool:
    """``names``: of a GGUF file's tensors. Files may count the layer by a key and lack it."""
    return f"blk.{config.num_layers}.nextn.eh_proj.weight" in names


def with_layer(config: ModelConfig) -> ModelConfig:
    """The model as if it had that layer behind its own."""
    return replace(
        config,
        num_layers=config.num_layers + 1,
        mixers=(*config.mixer_kinds, "attention"),
        mlps=(*config.mlp_kinds, "dense" if config.experts is None else "sparse"),
    )


def lone_layer(config: ModelConfig) -> ModelConfig:
    """A model of nothing but that layer."""
    mlp: MlpKind = "dense" if config.experts is None else "sparse"
    return replace(config, num_layers=1, mixers=("attention",), mlps=(mlp,), delta=None)
