"""Qwen's models with a tower of a few numbers, as transformers builds them and as llama.cpp's
converter writes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

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

from tests.inference.models.families import tiny_hybrid as hybrid
from tests.inference.models.vision import qwen_gguf
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
        projector=functools.partial(qwen_gguf.projector, processor=PROCESSOR),
        save_text=qwen_gguf.save_text,
    )


QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE = _model(qwen2_5_vl), _model(qwen3_vl), _model(qwen3_vl_moe)
QWEN3_5, QWEN3_5_MOE = _model(qwen3_5), _model(qwen3_5_moe)
