"""Gemma 3 with its vision tower, of a few numbers, as transformers builds it and as llama.cpp's
converter writes it."""

from __future__ import annotations

import functools

import gguf
import torch
from transformers import PreTrainedModel
from transformers.models.gemma3 import Gemma3Config, Gemma3ForConditionalGeneration

from tests.inference.models.families import tiny_hybrid as hybrid
from tests.inference.models.families.rows import Row
from tests.inference.models.vision import tiny_images, tiny_mmproj
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN, TinyModel, seeded

IMAGE_PX, PATCH_PX, MERGE = 12, 2, 2
SIDE = IMAGE_PX // PATCH_PX
NUM_TOKENS = (SIDE // MERGE) ** 2
START_TOKEN, END_TOKEN = 121, 122
WINDOW = 6
"""Fewer tokens than an image has."""
VISION = tiny_images.TOWER | {"image_size": IMAGE_PX, "patch_size": PATCH_PX}
TEXT = tiny_images.TEXT_MODEL | {
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 16,
    "sliding_window": WINDOW,
}
PROCESSOR = tiny_images.NORMALISED | {
    "size": {"height": IMAGE_PX, "width": IMAGE_PX},
    "do_pan_and_scan": None,
    "do_resize": True,
    "resample": 2,
    "image_seq_length": NUM_TOKENS,
}
OLD_NAMES = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
"""An MLP's projections called by each other's names, as by earlier converters."""


@functools.cache
def gemma3() -> PreTrainedModel:
    return gemma3_of(hybrid.VOCAB_SIZE, IMAGE_TOKEN, START_TOKEN, END_TOKEN)


def gemma3_of(
    vocab_size: int, image_token: int, start_token: int, end_token: int
) -> PreTrainedModel:
    """Makes a model whose sixth layer sees the whole context."""
    torch.manual_seed(12)
    config = Gemma3Config(
        text_config=TEXT | {"vocab_size": vocab_size},
        vision_config=VISION | {"vision_use_head": False},
        mm_tokens_per_image=NUM_TOKENS,
        image_token_index=image_token,
        boi_token_index=start_token,
        eoi_token_index=end_token,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    reference = Gemma3ForConditionalGeneration(config)
    return tiny_images.amplify(reference, ("vision_tower", "multi_modal"), {"mlp": 0.3}, _is_offset)


def _is_offset(norm: str) -> bool:
    is_text = "language_model" in norm and "q_norm" not in norm and "k_norm" not in norm
    return is_text or "soft_emb" in norm


def _projector(reference: PreTrainedModel) -> tiny_mmproj.Projector:
    own = {
        "projector_type": gguf.VisionProjectorType.GEMMA3,
        "use_gelu": True,
        "vision.projector.scale_factor": MERGE,
    }
    tensors = tiny_mmproj.tower_of(reference, _as_published)
    return tiny_mmproj.metadata_of(reference, PROCESSOR, **own), tensors


def _as_published(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    published = name.removeprefix("model.").replace("_weight", ".weight")
    published = published.replace("vision_tower.", "vision_tower.vision_model.")
    return published, tensor + 1 if "soft_emb_norm" in name else tensor


OFFSET = Row(architecture="gemma3", norm_offset=1.0)
GEMMA3 = TinyModel(
    make=gemma3,
    processor=PROCESSOR,
    sizes=((), (), ()),
    written=lambda: ([START_TOKEN, *[IMAGE_TOKEN] * NUM_TOKENS, END_TOKEN], (1, SIDE, SIDE)),
    pixels_of=lambda data, grid: seeded(data, 3, IMAGE_PX, IMAGE_PX),
    inputs_of=lambda pixels, grids: {"pixel_values": torch.stack(pixels)},
    merges=(PATCH_PX, MERGE),
    token_types="token_type_ids",
    projector=_projector,
    save_text=functools.partial(tiny_mmproj.save_text, own=OFFSET, control=("[",)),
    named={IMAGE_TOKEN: "<image_soft_token>"},
)
