"""The declaration of a family of decoders, from which all else derives: which files can be loaded,
which tensors they must hold, which weights are quantised, and the model's builder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import decoder_tensors, gguf_nextn_name
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import Json
from inference.models.families.roles import LayerNames, TensorRole
from inference.models.families.tower import tower_name

DECODER = "inference.models.decoder:DecoderModel"
MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
EXPERT_NAMES = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}


_LAYER_NAME = re.compile(r"blk\.(\d+)\.(.+)")


def gguf_layer_names(names: LayerNames) -> dict[str, str]:
    """``post_attention_norm`` is the norm before the MLP where the mixer's output has none."""
    qkv = ("attn_q", "attn_k", "attn_v") if len(names.qkv) == 3 else ("attn_qkv",)
    gate_up = ("ffn_gate", "ffn_up")[-len(names.gate_up) :]
    named: dict[str, str | None] = {
        "attn_norm": names.input_norm,
        **dict(zip(qkv, names.qkv, strict=True)),
        "attn_q_norm": names.query_norm,
        "attn_k_norm": names.key_norm,
        "attn_sinks.weight": names.sinks,
        "attn_output": names.output,
        "post_attention_norm": names.mixed_norm or names.mlp_norm,
        "ffn_norm": names.mlp_norm,
        **dict(zip(gate_up, names.gate_up, strict=True)),
        "ffn_down": names.down,
        "post_ffw_norm": names.mlp_added_norm,
        **EXPERT_NAMES,
    }
    return {theirs: ours for theirs, ours in named.items() if ours is not None}


def renaming(names: Mapping[str, str]) -> Callable[[str], str]:
    """A ``Family.hub_name`` that replaces parts of names, in this order."""

    def hub_name(name: str) -> str:
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        return name

    return hub_name


_OWN_NAMES = renaming({})


def _natural_order(name: str, config: ModelConfig) -> int | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Family:
    model_types: tuple[str, ...]
    gguf_architectures: tuple[str, ...] = ()
    """``general.architecture`` of GGUF files; none where they are not read."""
    read_config: Callable[[Json, Json], ModelConfig]
    """Reads config.json and generation_config.json, parsed. Raises ``BadFileError``."""
    read_gguf: Callable[[GGUFKeys, str], ModelConfig] = read_decoder_gguf
    """Is given the first of ``model_types``. Raises ``BadFileError``."""
    layer_names: LayerNames = field(default_factory=LayerNames)
    hub_name: Callable[[str], str] = _OWN_NAMES
    """Safetensors name -> the model's."""
    has_transposed_experts: bool = False
    """Whether safetensors may stack experts with their inputs first."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Prefixes of unused names in safetensors, with their purpose in words."""
    predictor_name: Callable[[str, ModelConfig], str] | None = None
    """``hub_name`` -> the name of multi-token prediction's tensor; ``None``: no such layer."""
    gguf_layer: Mapping[str, str] = field(default_factory=dict)
    """Hugging Face's names by GGUF's, within a layer, beside those of ``layer_names``; without
    ``.weight`` and ``.bias``, but a name that ends in neither stands here whole."""
    gguf_model: Mapping[str, str] = field(default_factory=dict)
    """The same around the layers, beside ``MODEL_NAMES``."""
    gguf_folded: frozenset[str] = frozenset()
    """GGUF's names within a layer of tensors whose axes of heads and of features are one here."""
    interleaved_heads: Callable[[str, ModelConfig], int | None] = _natural_order
    """How many heads of a tensor are in GGUF's rotary order; ``None``: in natural order."""
    gguf_projectors: tuple[str, ...] = ()
    """The ``clip.projector_type`` of mmproj files whose towers it computes."""
    uses_transformers: bool = False
    detector: str = ""
    """``module:name`` of a function that completes a config from transformers' module without its
    weights, imported when a model is opened. Raises ``UnsupportedModuleError``."""
    builder: str = DECODER
    """``module:name`` of what builds the model on torch operators, imported when one is built:
    ``(config, weights, context_tokens, kv_format) -> Model``."""

    @cached_property
    def _gguf_layer(self) -> Mapping[str, str]:
        return gguf_layer_names(self.layer_names) | dict(self.gguf_layer)

    def gguf_name(self, name: str) -> str | None:
        """``blk.0.attn_q.weight`` -> ``model.layers.0.self_attn.q_proj.weight``, or ``None``."""
        match = _LAYER_NAME.fullmatch(name)
        inner = name if match is None else match[2]
        known = MODEL_NAMES | dict(self.gguf_model) if match is None else self._gguf_layer
        stem, _, kind = inner.rpartition(".")
        found = known.get(inner)
        if found is None and (by_stem := known.get(stem)) is not None:
            found = f"{by_stem}.{kind}"
        if found is None or match is None:
            return found
        return f"model.layers.{match[1]}.{found}"

    def is_folded(self, gguf_name: str) -> bool:
        match = _LAYER_NAME.fullmatch(gguf_name)
        return match is not None and match[2].rpartition(".")[0] in self.gguf_folded

    def tensors(self, config: ModelConfig) -> Iterable[TensorRole]:
        return () if self.uses_transformers else decoder_tensors(config, self.layer_names)


def model_name(name: str, family: Family, config: ModelConfig) -> str | None:
    """Also of its mmproj file; ``None``: the model does not compute with it."""
    if config.vision is not None and (found := tower_name(name, config.vision)) is not None:
        return found
    if config.has_predictor and (found := gguf_nextn_name(name, config)) is not None:
        return found
    return family.gguf_name(name)
