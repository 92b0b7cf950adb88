"""Qwen's models with a tower as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import hybrid_gguf, tiny_gguf
from tests.inference.models.vision import tiny_mmproj

VISUAL = "model.visual."
VL_ARCHITECTURES = {
    "qwen2_5_vl": gguf.MODEL_ARCH.QWEN2VL,
    "qwen3_vl": gguf.MODEL_ARCH.QWEN3VL,
}
NESTED = "model.language_model."
BLOCK = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MERGER = {
    "norm": "v.post_ln",
    "linear_fc1": "mm.0",
    "linear_fc2": "mm.2",
    "ln_q": "v.post_ln",
    "mlp.0": "mm.0",
    "mlp.2": "mm.2",
}
DEEPSTACK = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}


def projector(reference: PreTrainedModel, *, processor: dict[str, Any]) -> tiny_mmproj.Projector:
    vision = reference.config.vision_config
    taken = getattr(vision, "deepstack_visual_indexes", None) or []
    is_windowed = hasattr(vision, "window_size")
    own = {
        "vision.image_size": 5 * vision.patch_size,
        "vision.block_count": vision.depth,
        "vision.attention.head_count": vision.num_heads,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_min_pixels": processor["size"]["shortest_edge"],
        "vision.image_max_pixels": processor["size"]["longest_edge"],
        **(_qwen2_5_keys(vision) if is_windowed else _qwen3_keys(vision, taken)),
    }
    tensors = _tower_tensors(reference, taken, is_split=is_windowed)
    return tiny_mmproj.metadata_of(reference, processor, **own), tensors


def _qwen3_keys(vision: Any, taken: list[int]) -> dict[str, Any]:
    return {
        "projector_type": gguf.VisionProjectorType.QWEN3VL,
        "use_gelu": True,
        "vision.spatial_merge_size": vision.spatial_merge_size,
        "vision.is_deepstack_layers": [index in taken for index in range(vision.depth)],
    }


def _qwen2_5_keys(vision: Any) -> dict[str, Any]:
    """llama.cpp's converter writes no side of windows: published towers have one."""
    return {
        "projector_type": gguf.VisionProjectorType.QWEN25VL,
        "use_silu": True,
        "vision.n_wa_pattern": vision.fullatt_block_indexes[0] + 1,
        "vision.window_size": vision.window_size,
    }


def _tower_tensors(
    reference: PreTrainedModel, taken: list[int], *, is_split: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in reference.state_dict().items():
        if name.startswith(VISUAL):
            yield from _as_written(name.removeprefix(VISUAL), tensor, taken, is_split=is_split)


def _as_written(
    name: str, tensor: torch.Tensor, taken: list[int], *, is_split: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    stem, _, kind = name.rpartition(".")
    first, _, rest = stem.partition(".")
    if stem == "patch_embed.proj" and kind == "weight":
        yield "v.patch_embd.weight", tensor[:, :, 0]
        yield "v.patch_embd.weight.1", tensor[:, :, 1]
    elif stem == "patch_embed.proj":
        yield "v.patch_embd.bias", tensor
    elif stem == "pos_embed":
        yield "v.position_embd.weight", tensor
    elif first == "merger":
        yield f"{MERGER[rest]}.{kind}", tensor
    elif rest.endswith("attn.qkv") and is_split:
        for part, values in zip("qkv", tensor.chunk(3), strict=True):
            yield f"v.blk.{rest.partition('.')[0]}.attn_{part}.{kind}", values
    else:
        index, _, inner = rest.partition(".")
        if first == "blocks":
            yield f"v.blk.{index}.{BLOCK[inner]}.{kind}", tensor
        else:
            yield f"v.deepstack.{taken[int(index)]}.{DEEPSTACK[inner]}.{kind}", tensor


def save_text(reference: PreTrainedModel, path: Path, named: dict[int, str]) -> Path:
    """Its vocabulary has the token that the model's config names, and no other of ``named``."""
    assert not named
    if architecture := VL_ARCHITECTURES.get(reference.config.model_type):
        return _save_vl(reference, path, architecture)
    return hybrid_gguf.save_gguf(reference, path)


def _save_vl(reference: PreTrainedModel, path: Path, kind: gguf.MODEL_ARCH) -> Path:
    text, config = reference.config.get_text_config(), reference.config
    tensors = (
        (name.replace(NESTED, "model."), tensor)
        for name, tensor in reference.state_dict().items()
        if not name.startswith(VISUAL)
    )
    own = {"expert_weights_norm": None, "attention.sliding_window": None}
    named = {config.image_token_id: "<|image_pad|>"}
    return tiny_gguf.write(path, kind, text, tensors, own, named=named)
