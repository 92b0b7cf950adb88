"""The vision tower of Pixtral and Mistral Small 3 in an mmproj file: how its metadata describe it,
and its names."""

from __future__ import annotations

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.pixtral_tower import (
    BREAK_TOKEN,
    END_TOKEN,
    IMAGE_TOKEN,
    NORM_EPS,
    check_pixtral_vision,
    row_fields,
)
from inference.models.families.projector_keys import (
    NORM_EPS_KEY,
    PATCHES,
    check_activation,
    common_fields,
    tensor_shape,
    vocabulary,
)
from inference.models.families.tower import ROPE_THETA
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError

PIXTRAL_PROJECTOR = "pixtral"
BREAK_ROW = "v.token_embd.img_break"
"""The text model's own embedding of the token between rows, once more: a prompt has that token."""
STEMS = {
    "v.pre_ln": "pre_norm",
    "mm.input_norm": "merger.norm",
    "mm.patch_merger": "merger.merging",
    "mm.1": "merger.linear_1",
    "mm.2": "merger.linear_2",
}


def pixtral_problem(text: GGUFKeys) -> str | None:
    """Why the text model cannot have such a tower, in words; ``None``: it can."""
    tokens = vocabulary(text)
    wanted = (IMAGE_TOKEN, BREAK_TOKEN, END_TOKEN)
    lacks = next((token for token in wanted if token not in tokens), None)
    return lacks and f"the text model's vocabulary has no {lacks}"


def read_pixtral(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    """``text`` has no ``pixtral_problem``. Raises ``BadFileError``."""
    is_silu = projector.metadata.get("clip.use_silu") is True
    if not is_silu:
        check_activation(projector, "use_gelu")
    fields = common_fields(projector)
    merge = projector.integer("spatial_merge_size", 1)
    vision = VisionConfig(
        **fields
        | row_fields(projector.integer("image_size"), fields["patch_px"], merge)
        | {"norm_eps": projector.number(NORM_EPS_KEY, NORM_EPS)},
        image_token_id=vocabulary(text).index(IMAGE_TOKEN),
        rope_theta=ROPE_THETA,
        activation="silu" if is_silu else "gelu",
        merger_eps=text.number("attention.layer_norm_rms_epsilon", NORM_EPS),
        has_projector_bias=projector.has_tensor("mm.1.bias"),
    )
    if (kernel := tensor_shape(projector, PATCHES, 4)[2:]) != (vision.patch_px, vision.patch_px):
        raise BadFileError(
            f"{PATCHES} is of {kernel} pixels, and the metadata declare patches of "
            f"{vision.patch_px} pixels"
        )
    check_pixtral_vision(vision, text.integer("embedding_length"))
    return vision
