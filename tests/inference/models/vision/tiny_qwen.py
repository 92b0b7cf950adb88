"""Qwen's models with a tower of a few numbers, as transformers builds them and as llama.cpp's
converter writes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from tests.inference.models.families import hybrid_gguf, tiny_gguf
from tests.inference.models.families import tiny_hybrid as hybrid
from tests.inference.models.families.rows import Row
from tests.inference.models.vision import tiny_images, tiny_mmproj
from tests.inference.models.vision.tiny_gemma3 import GEMMA3
from tests.inference.models.vision.tiny_idefics3 import IDEFICS3, SMOLVLM
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN, Grid, TinyModel, seeded
from tests.inference.models.vision.tiny_pixtral import MISTRAL3, PIXTRAL

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
}
COMMON: dict[str, Any] = {
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 123,
    "vision_start_token_id": START_TOKEN,
    "vision_end_token_id": END_TOKEN,
}
ROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 2, 2]}
VL_TEXT = tiny_images.TEXT_MODEL | {
    "rope_parameters": ROPE | {"mrope_interleaved": True},
}
PROCESSOR = {
    "size": {"shortest_edge": 4 * PATCH_PX**2, "longest_edge": 100 * PATCH_PX**2},
    "patch_size": PATCH_PX,
    "merge_size": MERGE,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


OF_2_5 = {"num_attention_heads": 2, "num_key_value_heads": 1, "rope_parameters": ROPE}
WINDOWS = {"window_size": 4 * PATCH_PX, "fullatt_block_indexes": [1]}
"""The second block sees the whole image."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
DEEPSTACK = TOWER | {"deepstack_visual_indexes": [0, 1]}
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": (
        {key: VL_TEXT[key] for key in VL_TEXT if key != "head_dim"} | OF_2_5,
        {key: TOWER[key] for key in TOWER if key != "num_position_embeddings"} | WINDOWS,
    ),
    "qwen3_vl": (VL_TEXT, DEEPSTACK),
    "qwen3_vl_moe": (VL_TEXT | EXPERTS | {"tie_word_embeddings": False}, DEEPSTACK),
    "qwen3_5": (hybrid.TEXT, TOWER),
    "qwen3_5_moe": (hybrid.SPARSE_TEXT, TOWER),
}
"""Of the text model and of the tower, by model type."""


@functools.cache
def reference_of(model_type: str) -> PreTrainedModel:
    """Amplified, so that its answers depend on an image's content and place."""
    torch.manual_seed(8)
    text, vision = CONFIGS[model_type]
    config = AutoConfig.for_model(model_type, text_config=text, vision_config=vision, **COMMON)
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    is_offset = model_type in ("qwen3_5", "qwen3_5_moe")
    return tiny_images.amplify(reference, ("visual",), {"embed_tokens": 5}, lambda _: is_offset)


def _written(height: int, width: int) -> tuple[list[int], Grid]:
    """``height`` and ``width``: in rows of the decoder."""
    pads = [IMAGE_TOKEN] * (height * width)
    return [START_TOKEN, *pads, END_TOKEN], (1, MERGE * height, MERGE * width)


def _inputs_of(patches: list[torch.Tensor], grids: Sequence[Grid]) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


VL_ARCHITECTURES = {"qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl"}
MERGER = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}


def _projector(reference: PreTrainedModel) -> tiny_mmproj.Projector:
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
    }
    # llama.cpp's converter writes no side of windows: published towers have one.
    own |= (
        {
            "projector_type": gguf.VisionProjectorType.QWEN25VL,
            "use_silu": True,
            "vision.n_wa_pattern": vision.fullatt_block_indexes[0] + 1,
            "vision.window_size": vision.window_size,
        }
        if is_windowed
        else {
            "projector_type": gguf.VisionProjectorType.QWEN3VL,
            "use_gelu": True,
            "vision.spatial_merge_size": vision.spatial_merge_size,
            "vision.is_deepstack_layers": [index in taken for index in range(vision.depth)],
        }
    )
    tensors = _tower_tensors(reference, taken, is_split=is_windowed)
    return tiny_mmproj.metadata_of(reference, PROCESSOR, **own), tensors


def _tower_tensors(
    reference: PreTrainedModel, taken: list[int], *, is_split: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in reference.state_dict().items():
        if not name.startswith("model.visual."):
            continue
        stem, _, kind = name.removeprefix("model.").rpartition(".")
        *_, part, inner = stem.split(".")
        if stem == "visual.patch_embed.proj" and kind == "weight":
            yield "v.patch_embd.weight", tensor[:, :, 0]
            yield "v.patch_embd.weight.1", tensor[:, :, 1]
        elif part == "merger" and inner in MERGER:
            yield f"{MERGER[inner]}.{kind}", tensor
        elif "deepstack" in stem:
            written = inner.removeprefix("linear_")
            yield f"v.deepstack.{taken[int(part)]}.{written}.{kind}", tensor
        else:
            known = tiny_gguf.name_of(tiny_mmproj.NAMES, f"{stem}.{kind}")
            parts = "qkv" if is_split and inner == "qkv" else ["qkv"]
            for part, values in zip(parts, tensor.chunk(len(parts)), strict=True):
                yield known.replace("attn_qkv", f"attn_{part}"), values


def _save_text(reference: PreTrainedModel, path: Path, named: dict[int, str]) -> Path:
    """Its vocabulary has the token that the model's config names, and no other of ``named``."""
    assert not named
    architecture = VL_ARCHITECTURES.get(reference.config.model_type)
    if architecture is None:
        return hybrid_gguf.save_gguf(reference, path)
    keys = {"expert_weights_norm": None, "attention.sliding_window": None}
    row = Row(architecture=architecture, keys=keys)
    tokens = {reference.config.image_token_id: "<|image_pad|>"}
    return tiny_mmproj.save_text(reference, path, tokens, row)


QWEN = {
    model_type: TinyModel(
        make=functools.partial(reference_of, model_type),
        processor=PROCESSOR,
        sizes=((3, 5), (6, 2), (1, 1)),
        written=_written,
        pixels_of=lambda data, grid: seeded(data, math.prod(grid), PATCH_FEATURES),
        inputs_of=_inputs_of,
        token_types="mm_token_type_ids",
        projector=_projector,
        save_text=_save_text,
    )
    for model_type in CONFIGS
}
QWEN3_VL = QWEN["qwen3_vl"]
IMAGE_MODELS: dict[str, TinyModel] = {
    "gemma3": GEMMA3,
    "idefics3": IDEFICS3,
    "llava": PIXTRAL,
    "mistral3": MISTRAL3,
    **QWEN,
    "smolvlm": SMOLVLM,
}
"""All tiny models with images, by the type of their checkpoints."""
