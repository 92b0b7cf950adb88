"""Idefics3 and SmolVLM of a few numbers, as transformers builds them and as llama.cpp's converter
writes them."""

from __future__ import annotations

import functools
from dataclasses import replace

import gguf
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from tests.inference.models.vision import tiny_images, tiny_mmproj
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN, Grid, TinyModel, seeded

IMAGE_PX, PATCH_PX, MERGE = 13, 2, 2
"""A tile's last row and column of pixels belong to no patch, as in SmolVLM's 384."""
LONGEST_PX = 30
SIDE = IMAGE_PX // PATCH_PX
TILE_TOKENS = (SIDE // MERGE) ** 2
AROUND, WHOLE = 121, 122
PLACES = 100
"""The first of the tokens that name a tile's row and column."""
NAMED = {IMAGE_TOKEN: "<image>", AROUND: "<fake_token_around_image>", WHOLE: "<global-img>"}
VISION = tiny_images.TOWER | {"image_size": IMAGE_PX, "patch_size": PATCH_PX}
TEXT = tiny_images.TEXT_MODEL | {
    "model_type": "llama",
}
PROCESSOR = tiny_images.NORMALISED | {
    "size": {"longest_edge": LONGEST_PX},
    "max_image_size": {"longest_edge": IMAGE_PX},
    "do_image_splitting": True,
    "do_resize": True,
    "resample": 1,
}


@functools.cache
def reference_of(model_type: str) -> PreTrainedModel:
    """SmolVLM has the embeddings as its head."""
    torch.manual_seed(17)
    config = AutoConfig.for_model(
        model_type,
        text_config=TEXT,
        vision_config=VISION,
        scale_factor=MERGE,
        image_token_id=IMAGE_TOKEN,
        pad_token_id=0,
        tie_word_embeddings=model_type == "smolvlm",
        attn_implementation="eager",
    )
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    return tiny_images.amplify(reference, ("vision_model", "connector"), {"embed_tokens": 3})


idefics3 = functools.partial(reference_of, "idefics3")


def _written(rows: int, columns: int) -> tuple[list[int], Grid]:
    """``rows`` and ``columns``: of its tiles; none where it is not cut."""
    tile = [IMAGE_TOKEN] * TILE_TOKENS
    token_ids = []
    for row in range(rows):
        for column in range(columns):
            token_ids += [AROUND, PLACES + row * columns + column, *tile]
        token_ids.append(10)
    return [*token_ids, AROUND, WHOLE, *tile, AROUND], (rows * columns + 1, SIDE, SIDE)


def _projector(reference: PreTrainedModel) -> tiny_mmproj.Projector:
    own = {
        "projector_type": gguf.VisionProjectorType.IDEFICS3,
        "use_gelu": True,
        "vision.projector.scale_factor": MERGE,
        "vision.preproc_image_size": LONGEST_PX,
    }
    return tiny_mmproj.metadata_of(reference, PROCESSOR, **own), tiny_mmproj.tower_of(reference)


IDEFICS3 = TinyModel(
    make=idefics3,
    processor=PROCESSOR,
    sizes=((2, 1), (0, 0), (1, 3)),
    written=_written,
    pixels_of=lambda data, grid: seeded(data, grid[0], 3, IMAGE_PX, IMAGE_PX),
    inputs_of=lambda pixels, grids: {"pixel_values": torch.cat(pixels)[None]},
    merges=(PATCH_PX, MERGE),
    projector=_projector,
    named=NAMED,
)
SMOLVLM = replace(IDEFICS3, make=functools.partial(reference_of, "smolvlm"))
