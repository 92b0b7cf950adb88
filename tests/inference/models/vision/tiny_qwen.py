"""Qwen's models with a tower of a few numbers, as transformers builds them and as llama.cpp's
converter writes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel
from transformers.models.qwen2_5_vl import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl_moe import (
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from tests.inference.models.families import hybrid_gguf, tiny_gguf
from tests.inference.models.families import tiny_hybrid as hybrid
from tests.inference.models.vision import tiny_mmproj
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN, Grid, Numbers, TinyModel, seeded

START_TOKEN, END_TOKEN = 121, 122
PATCH_PX, MERGE = 2, 2
PATCH_FEATURES = 3 * 2 * PATCH_PX**2
TOWER = {
    "depth": 3,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": PATCH_PX,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 25,
    "initializer_range": 0.4,
}
COMMON: dict[str, Any] = {
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 123,
    "vision_start_token_id": START_TOKEN,
    "vision_end_token_id": END_TOKEN,
}
VL_TEXT = {
    "vocab_size": hybrid.VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": hybrid.CONTEXT_TOKENS,
    "initializer_range": 0.3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
PROCESSOR = {
    "size": {"shortest_edge": 4 * PATCH_PX**2, "longest_edge": 100 * PATCH_PX**2},
    "patch_size": PATCH_PX,
    "merge_size": MERGE,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@functools.cache
def qwen2_5_vl() -> PreTrainedModel:
    """Makes a model whose second block sees the whole image."""
    torch.manual_seed(11)
    left_out = ("num_position_embeddings", "initializer_range")
    vision = {key: value for key, value in TOWER.items() if key not in left_out}
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 2, 2]}
    text = {key: value for key, value in VL_TEXT.items() if key != "head_dim"}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = Qwen2_5_VLConfig(
        text_config=text | heads | ends | {"rope_parameters": rope},
        vision_config=vision | {"window_size": 4 * PATCH_PX, "fullatt_block_indexes": [1]},
        **COMMON,
    )
    config.vision_config.initializer_range = 0.4
    return _loud(Qwen2_5_VLForConditionalGeneration(config), norms=(0.5, 1.5))


@functools.cache
def qwen3_vl() -> PreTrainedModel:
    torch.manual_seed(7)
    config = Qwen3VLConfig(
        text_config=VL_TEXT,
        vision_config=TOWER | {"deepstack_visual_indexes": [0, 1]},
        **COMMON,
    )
    return _loud(Qwen3VLForConditionalGeneration(config), norms=(0.5, 1.5))


@functools.cache
def qwen3_vl_moe() -> PreTrainedModel:
    torch.manual_seed(9)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    config = Qwen3VLMoeConfig(
        text_config=VL_TEXT | experts | {"tie_word_embeddings": False},
        vision_config=TOWER | {"deepstack_visual_indexes": [0, 1]},
        **COMMON,
    )
    return _loud(Qwen3VLMoeForConditionalGeneration(config), norms=(0.5, 1.5))


@functools.cache
def qwen3_5() -> PreTrainedModel:
    torch.manual_seed(7)
    config = Qwen3_5Config(
        text_config=hybrid.TEXT,
        vision_config=TOWER,
        **COMMON,
    )
    return _loud(Qwen3_5ForConditionalGeneration(config))


@functools.cache
def qwen3_5_moe() -> PreTrainedModel:
    torch.manual_seed(8)
    text = {key: value for key, value in hybrid.TEXT.items() if key != "intermediate_size"}
    config = Qwen3_5MoeConfig(
        text_config=text | hybrid.SPARSE,
        vision_config=TOWER,
        **COMMON,
    )
    return _loud(Qwen3_5MoeForConditionalGeneration(config))


def _loud(reference: PreTrainedModel, norms: tuple[float, float] = (-0.5, 0.5)) -> PreTrainedModel:
    """Amplified, so that its answers depend on an image's content and place. ``norms``: the range
    of norms' weights."""
    for name, parameter in reference.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, *norms)
        elif name.endswith("bias"):
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
        elif "embed_tokens" in name:
            with torch.no_grad():
                parameter.mul_(5)
    return reference.eval()


def _written(height: int, width: int) -> tuple[list[int], Grid]:
    """``height`` and ``width``: in rows of the decoder."""
    pads = [IMAGE_TOKEN] * (height * width)
    return [START_TOKEN, *pads, END_TOKEN], (1, MERGE * height, MERGE * width)


def _patches_of(data: bytes, grid: Grid) -> Numbers:
    """(num_patches, patch_features)."""
    return seeded(data, math.prod(grid), PATCH_FEATURES)


def _inputs_of(patches: list[torch.Tensor], grids: Sequence[Grid]) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


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


def projector(reference: PreTrainedModel) -> tiny_mmproj.Projector:
    vision = reference.config.vision_config
    taken = getattr(vision, "deepstack_visual_indexes", None) or []
    is_windowed = hasattr(vision, "window_size")
    own = {
        "vision.image_size": 5 * vision.patch_size,
        "vision.block_count": vision.depth,
        "vision.attention.head_count": vision.num_heads,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_min_pixels": PROCESSOR["size"]["shortest_edge"],
        "vision.image_max_pixels": PROCESSOR["size"]["longest_edge"],
        **(_qwen2_5_keys(vision) if is_windowed else _qwen3_keys(vision, taken)),
    }
    tensors = _tower_tensors(reference, taken, is_split=is_windowed)
    return tiny_mmproj.metadata_of(reference, PROCESSOR, **own), tensors


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


def _model(make: Callable[[], PreTrainedModel]) -> TinyModel:
    return TinyModel(
        make=make,
        processor=PROCESSOR,
        one=(3, 5),
        several=((3, 5), (6, 2), (1, 1)),
        last=(6, 2),
        grid=(1, 4, 6),
        written=_written,
        pixels_of=_patches_of,
        inputs_of=_inputs_of,
        token_types="mm_token_type_ids",
        projector=projector,
        save_text=save_text,
    )


QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE = _model(qwen2_5_vl), _model(qwen3_vl), _model(qwen3_vl_moe)
QWEN3_5, QWEN3_5_MOE = _model(qwen3_5), _model(qwen3_5_moe)
