"""The model's names of a vision tower's tensors: by those of safetensors files, and by those of
mmproj files, which llama.cpp's gguf-py/gguf/constants.py lists.

    vision_tower.encoder.layers.0.mlp.fc1.weight ─┐
    v.blk.0.ffn_up.weight ────────────────────────┴─▶ model.visual.blocks.0.mlp.linear_fc1.weight
"""

from __future__ import annotations

import re

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.hub_config import hub_name
from inference.models.families.predictor import gguf_nextn_name
from inference.models.families.tower import TOWER
from inference.models.vision_config import TowerKind, VisionConfig

_HUB_TOWER = re.compile(r"(?:model\.)?vision_(?:tower\.(?:vision_model\.)?|model\.)(.+)")
_HUB_PROJECTOR = re.compile(r"(?:model\.)?(?:multi_modal_projector|connector)\.(.+)")
_HUB_BLOCK = re.compile(r"(?:encoder|transformer)\.layers\.(\d+)\.(.+)\.(weight|bias)")
_HUB_ALONE = {
    "embeddings.patch_embedding.weight": "patch_embed.proj.weight",
    "embeddings.patch_embedding.bias": "patch_embed.proj.bias",
    "embeddings.position_embedding.weight": "pos_embed.weight",
    "post_layernorm.weight": "post_norm.weight",
    "post_layernorm.bias": "post_norm.bias",
    "patch_conv.weight": "patch_embed.proj.weight",
    "ln_pre.weight": "pre_norm.weight",
}
_HUB_PROJECTORS = {
    "mm_input_projection_weight": "proj.weight",
    "mm_soft_emb_norm.weight": "norm.weight",
    "modality_projection.proj.weight": "proj.weight",
    "patch_merger.merging_layer.weight": "merging.weight",
}
_HUB_BLOCKS = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "self_attn.out_proj": "attn.proj",
    "mlp.fc1": "mlp.linear_fc1",
    "mlp.fc2": "mlp.linear_fc2",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "attention.o_proj": "attn.proj",
    "feed_forward.gate_proj": "mlp.gate_proj",
    "feed_forward.up_proj": "mlp.up_proj",
    "feed_forward.down_proj": "mlp.down_proj",
}
"""SigLIP's names within a block, then Pixtral's. Those of Qwen's towers are the model's own."""
_HUB_QKV = re.compile(r"(?:self_attn|attention)\.([qkv])_proj")


def tower_hub_name(name: str) -> str | None:
    """The model's name of a tensor of a tower or its projector in a safetensors file; ``None`` for
    any other, and for SigLIP's head, which is not computed with."""
    if match := _HUB_PROJECTOR.fullmatch(name):
        return f"{TOWER}merger.{_HUB_PROJECTORS.get(match[1], match[1])}"
    match = _HUB_TOWER.fullmatch(name)
    if match is None or match[1].startswith("head."):
        return None
    return TOWER + (_HUB_ALONE.get(match[1]) or _in_block(match[1]))


def _in_block(name: str) -> str:
    match = _HUB_BLOCK.fullmatch(name)
    if match is None:
        return name
    index, inner, kind = match.groups()
    if part := _HUB_QKV.fullmatch(inner):
        return f"blocks.{index}.attn.qkv.{kind}.{'qkv'.index(part[1])}"
    return f"blocks.{index}.{_HUB_BLOCKS.get(inner, inner)}.{kind}"


def towered_name(name: str) -> str:
    """The ``Family.hub_name`` of a text model that may have SigLIP's tower or Pixtral's."""
    return tower_hub_name(name) or hub_name(name)


PATCHES, POSITIONS = "v.patch_embd.weight", "v.position_embd.weight"
PATCH_KERNEL = f"{TOWER}patch_embed.proj.weight"
FRAME_AXIS = 2
"""Along which its parts, one for each of two frames, are put together."""
_ROTATED = re.compile(rf"{re.escape(TOWER)}blocks\.\d+\.attn\.qkv\.weight\.[01]")
_STEMS: dict[TowerKind, dict[str, str]] = {
    "qwen3_vl": {
        "v.post_ln": "merger.norm",
        "mm.0": "merger.linear_fc1",
        "mm.2": "merger.linear_fc2",
    },
    "qwen2_5_vl": {
        "v.post_ln": "merger.ln_q",
        "mm.0": "merger.mlp.0",
        "mm.2": "merger.mlp.2",
    },
    "gemma3": {
        "v.post_ln": "post_norm",
        "mm.input_projection": "merger.proj",
        "mm.soft_emb_norm": "merger.norm",
    },
    "idefics3": {"v.post_ln": "post_norm", "mm.model.fc": "merger.proj"},
    "pixtral": {
        "v.pre_ln": "pre_norm",
        "mm.input_norm": "merger.norm",
        "mm.patch_merger": "merger.merging",
        "mm.1": "merger.linear_1",
        "mm.2": "merger.linear_2",
    },
}
_ATTENTION = {"ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj"}
_PLAIN = _ATTENTION | {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
_SWAPPED = _ATTENTION | {"ffn_down": "mlp.linear_fc1", "ffn_up": "mlp.linear_fc2"}
_GATED = _ATTENTION | {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
_PARTS_OF_QKV = {"attn_q": 0, "attn_k": 1, "attn_v": 2}
_DEEPSTACK = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_NUMBERED = re.compile(r"v\.(blk|deepstack)\.(\d+)\.(\w+)\.(weight|bias)")


def is_rotated(name: str) -> bool:
    """Whether the tensor, by the model's name, is the queries or the keys of a block, whose rows
    llama.cpp's converter writes in pairs for Pixtral."""
    return _ROTATED.fullmatch(name) is not None


def model_name(name: str, family: Family, config: ModelConfig) -> str | None:
    """The model's name of a tensor of its GGUF files, an mmproj file among them; ``None`` for one
    that it does not compute with."""
    if config.vision is not None and (found := tower_name(name, config.vision)) is not None:
        return found
    if config.has_predictor and (found := gguf_nextn_name(name, config)) is not None:
        return found
    return family.gguf_name(name)


def tower_name(name: str, vision: VisionConfig) -> str | None:
    """``v.blk.0.attn_qkv.weight`` -> ``model.visual.blocks.0.attn.qkv.weight``, and with a number
    at its end for a part of a tensor; ``None`` for a tensor that is not the tower's."""
    has_frames = vision.temporal_patch > 1
    alone = {
        PATCHES: f"{PATCH_KERNEL}.0" if has_frames else PATCH_KERNEL,
        "v.patch_embd.bias": f"{TOWER}patch_embed.proj.bias",
        POSITIONS: f"{TOWER}pos_embed.weight",
    }
    if has_frames:
        alone[f"{PATCHES}.1"] = f"{PATCH_KERNEL}.1"
    if name in alone:
        return alone[name]
    stem, _, kind = name.rpartition(".")
    if (found := _STEMS[vision.kind].get(stem)) and kind in ("weight", "bias"):
        return f"{TOWER}{found}.{kind}"
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return None
    group, index, inner, kind = match[1], int(match[2]), match[3], match[4]
    if group == "blk":
        if (part := _PARTS_OF_QKV.get(inner)) is not None:
            return f"{TOWER}blocks.{index}.attn.qkv.{kind}.{part}"
        plain = _SWAPPED if vision.has_swapped_mlp_names else _PLAIN
        found = (_GATED if vision.is_gated else plain).get(inner)
        return found and f"{TOWER}blocks.{index}.{found}.{kind}"
    if inner not in _DEEPSTACK or index not in vision.deepstack_layers:
        return None
    place = vision.deepstack_layers.index(index)
    return f"{TOWER}deepstack_merger_list.{place}.{_DEEPSTACK[inner]}.{kind}"
