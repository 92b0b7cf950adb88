"""Mistral Small 3 and Pixtral of a few numbers, as transformers builds them and as llama.cpp's
converter writes them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gguf
import torch
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from tests.inference.models.families.tiny_gguf import in_pairs
from tests.inference.models.vision import tiny_images, tiny_mmproj
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN, Grid, TinyModel, seeded

PATCH_PX = 2
LONGEST_PX = 24
BREAK, END = 121, 122
NAMED = {IMAGE_TOKEN: "[IMG]", BREAK: "[IMG_BREAK]", END: "[IMG_END]"}
HEAD_DIM = 8
VISION = tiny_images.TOWER | {
    "model_type": "pixtral",
    "head_dim": HEAD_DIM,
    "image_size": LONGEST_PX,
    "patch_size": PATCH_PX,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
}
TEXT = tiny_images.TEXT_MODEL | {
    "model_type": "mistral",
    "sliding_window": None,
    "rms_norm_eps": 1e-5,
}
PROCESSOR = tiny_images.NORMALISED | {
    "size": {"longest_edge": LONGEST_PX},
    "patch_size": {"height": PATCH_PX, "width": PATCH_PX},
    "do_resize": True,
    "resample": 3,
}


OWN: dict[str, dict[str, Any]] = {
    # Four patches become a row.
    "mistral3": {"vision_config": VISION | {"hidden_act": "silu"}, "spatial_merge_size": 2},
    # Of Pixtral 12B's form: each patch is a row.
    "llava": {
        "vision_config": VISION | {"hidden_act": "gelu"},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "image_seq_length": 1,
    },
}


@functools.cache
def reference_of(model_type: str) -> PreTrainedModel:
    torch.manual_seed(19)
    config = AutoConfig.for_model(
        model_type,
        text_config=TEXT,
        image_token_index=IMAGE_TOKEN,
        tie_word_embeddings=False,
        attn_implementation="eager",
        **OWN[model_type],
    )
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    return tiny_images.amplify(reference, ("vision_tower", "multi_modal"), {"embed_tokens": 3})


mistral3 = functools.partial(reference_of, "mistral3")


def _inputs_of(pixels: list[torch.Tensor], grids: Sequence[Grid]) -> dict[str, torch.Tensor]:
    """What transformers' model takes: images of one size, and what of each counts."""
    sizes = torch.tensor([one.shape[1:] for one in pixels])
    height, width = sizes.amax(0).tolist()
    padded = [pad(one, (0, width - one.shape[2], 0, height - one.shape[1])) for one in pixels]
    return {"pixel_values": torch.stack(padded), "image_sizes": sizes}


def _projector(reference: PreTrainedModel) -> tiny_mmproj.Projector:
    own = {
        "projector_type": gguf.VisionProjectorType.PIXTRAL,
        f"use_{reference.config.vision_config.hidden_act}": True,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.spatial_merge_size": getattr(reference.config, "spatial_merge_size", None),
    }
    embeddings = reference.get_input_embeddings().weight
    tensors = [*tiny_mmproj.tower_of(reference, _as_published)]
    tensors.append(("v.token_embd.img_break", embeddings[BREAK].detach()))
    return tiny_mmproj.metadata_of(reference, PROCESSOR, **own), tensors


def _as_published(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    is_rotated = ".q_proj." in name or ".k_proj." in name
    return name.removeprefix("model."), in_pairs(tensor, HEAD_DIM) if is_rotated else tensor


def _model(model_type: str, merge: int) -> TinyModel:
    """``merge``: how many patches each way become a row."""

    def written(height: int, width: int) -> tuple[list[int], Grid]:
        """``height`` and ``width``: in tokens."""
        rows = [*[IMAGE_TOKEN] * width, BREAK] * height
        return [*rows[:-1], END], (1, height * merge, width * merge)

    return TinyModel(
        make=functools.partial(reference_of, model_type),
        processor=PROCESSOR,
        sizes=((3, 5), (1, 1), (4, 2)),
        written=written,
        pixels_of=lambda data, grid: seeded(data, 3, grid[1] * PATCH_PX, grid[2] * PATCH_PX),
        inputs_of=_inputs_of,
        merges=(PATCH_PX, merge),
        projector=_projector,
        named=NAMED,
    )


MISTRAL3, PIXTRAL = _model("mistral3", 2), _model("llava", 1)
