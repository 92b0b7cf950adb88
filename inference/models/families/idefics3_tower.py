"""The vision tower of Idefics3 and SmolVLM, which is SigLIP's over squares of one size: an image,
or the tiles that it is cut into. How config.json and an mmproj file's metadata describe it, its
names, and its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.hub_config import Json, positive_integer
from inference.models.families.projector_keys import (
    NORM_EPS_KEY,
    check_activation,
    check_square,
    common_fields,
    vocabulary,
)
from inference.models.families.roles import TensorRole
from inference.models.families.siglip_tower import encoder_tensors, siglip_name, square_fields
from inference.models.families.tower import (
    ACTIVATION,
    NORM_EPS,
    TOWER,
    check_equal_heads,
    check_row_size,
    encoder_fields,
    tower_tensor,
)
from inference.models.vision_config import ImageText, VisionConfig
from inference.protocol.images import LONGEST_SIDE_PX
from inference.protocol.load_errors import BadFileError

DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": ACTIVATION,
    "layer_norm_eps": NORM_EPS,
}
"""The values of keys that a tower's config leaves out."""
IMAGE_TOKEN, IMAGE_TOKEN_ID = "<image>", 128_257
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
_OF_TOWER = re.compile(r"(?:model\.)?vision_model\.(.+)")
_OF_PROJECTOR = re.compile(r"(?:model\.)?connector\.(.+)")
_PROJECTION = "modality_projection.proj.weight"


def idefics3_tower_name(name: str) -> str | None:
    """The model's name of a tensor of the tower or its projector in a safetensors file; ``None``
    for any other."""
    if match := _OF_PROJECTOR.fullmatch(name):
        return TOWER + ("merger.proj.weight" if match[1] == _PROJECTION else match[1])
    match = _OF_TOWER.fullmatch(name)
    return match and TOWER + (siglip_name(match[1]) or match[1])


def idefics3_text() -> ImageText:
    """Tiles are named by row and column, and the whole image follows them."""
    whole = f"{AROUND}{WHOLE}{IMAGE_TOKEN}{AROUND}"
    return ImageText(
        IMAGE_TOKEN,
        whole,
        part=f"{AROUND}<row_{{row}}_col_{{column}}>{IMAGE_TOKEN}",
        row_break="\n",
        parts_end=f"\n\n{whole}",
    )


def read_idefics3_vision(config: Json, text: Json) -> VisionConfig | None:
    """The tower that config.json describes, without its processor's image sizes. ``text``: the
    decoder's part. ``None`` where there is none. Raises ``BadFileError`` for one that would be
    computed wrongly."""
    if not isinstance(declared := config.get("vision_config"), dict):
        return None
    tower = DEFAULTS | declared
    if (activation := tower["hidden_act"]) != ACTIVATION:
        raise BadFileError(f"vision_config: hidden_act {activation!r} is not {ACTIVATION}")
    vision = VisionConfig(
        **tile_fields(
            positive_integer(tower, "image_size"),
            positive_integer(tower, "patch_size"),
            positive_integer({"scale_factor": 2, **config}, "scale_factor"),
        ),
        image_token_id=int(config.get("image_token_id", IMAGE_TOKEN_ID)),
        num_channels=positive_integer(tower, "num_channels"),
        **encoder_fields(tower, text),
        norm_eps=float(tower["layer_norm_eps"]),
    )
    check_idefics3_vision(vision, positive_integer(text, "hidden_size"))
    return vision


def tile_fields(image_px: int, patch_px: int, merge: int) -> dict[str, Any]:
    """The fields of a ``VisionConfig`` that follow from the one size of its tiles. An image is one
    of them until its processor's sizes are known."""
    own = {"kind": "idefics3", "min_pixels": 0, "is_bidirectional": False, "text": idefics3_text()}
    return square_fields(image_px, patch_px, merge) | own


def check_idefics3_vision(vision: VisionConfig, text_hidden_size: int) -> None:
    """Raises ``BadFileError`` for a tower that cannot be computed or does not fit its decoder."""
    side = vision.image_px // vision.patch_px
    if side == 0 or side % vision.merge:
        raise BadFileError(
            f"tiles of {vision.image_px} pixels each way are no whole number of "
            f"{vision.merge} x {vision.merge} patches of {vision.patch_px}"
        )
    check_equal_heads(vision)
    check_row_size(vision, text_hidden_size)


def idefics3_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    yield from encoder_tensors(vision)
    yield tower_tensor("merger.proj.weight", vision.out_hidden_size, vision.merged_features)


IDEFICS3_PROJECTOR = "idefics3"
LONGEST_SIDE = "preproc_image_size"
"""The longest side that an image is scaled to; files without it do not cut images into tiles."""
STEMS = {"v.post_ln": "post_norm", "mm.model.fc": "merger.proj"}


def idefics3_problem(text: GGUFKeys) -> str | None:
    """Why the text model cannot have such a tower, in words; ``None``: it can."""
    tokens = vocabulary(text)
    lacks = next((token for token in (IMAGE_TOKEN, AROUND) if token not in tokens), None)
    return lacks and f"the text model's vocabulary has no {lacks}"


def read_idefics3(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    """``text`` has no ``idefics3_problem``. Raises ``BadFileError``."""
    check_activation(projector, "use_gelu")
    fields = common_fields(projector)
    merge = projector.integer("projector.scale_factor", 2)
    fields |= tile_fields(projector.integer("image_size"), fields["patch_px"], merge)
    if (longest_px := projector.find(LONGEST_SIDE)) is not None:
        if longest_px > LONGEST_SIDE_PX:
            raise BadFileError(f"images are scaled to {longest_px} pixels, over {LONGEST_SIDE_PX}")
        fields |= {"division": "tiles", "max_pixels": longest_px**2}
    vision = VisionConfig(
        **fields,
        image_token_id=vocabulary(text).index(IMAGE_TOKEN),
        norm_eps=projector.number(NORM_EPS_KEY, NORM_EPS),
    )
    check_square(projector, vision)
    check_idefics3_vision(vision, text.integer("embedding_length"))
    return vision
