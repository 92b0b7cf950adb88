"""The vision tower of Idefics3 and SmolVLM in an mmproj file: how its metadata describe it, and its
names."""

from __future__ import annotations

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.idefics3_tower import (
    AROUND,
    IMAGE_TOKEN,
    check_idefics3_vision,
    tile_fields,
)
from inference.models.families.projector_keys import (
    NORM_EPS_KEY,
    check_activation,
    check_square,
    common_fields,
    vocabulary,
)
from inference.models.families.tower import NORM_EPS
from inference.models.vision_config import VisionConfig
from inference.protocol.images import LONGEST_SIDE_PX
from inference.protocol.load_errors import BadFileError

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
