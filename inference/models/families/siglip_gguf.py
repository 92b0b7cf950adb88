"""The vision tower of Gemma 3 in an mmproj file: how its metadata describe it, and its names.

mm.input_projection.weight    (hidden_size, out_hidden_size), as in safetensors
mm.soft_emb_norm.weight       with one added to it, unlike there
"""

from __future__ import annotations

import re

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.projector_keys import (
    check_computed,
    check_square,
    common_fields,
    tensor_shape,
    vocabulary,
)
from inference.models.families.siglip_tower import (
    IMAGE_TOKEN,
    check_siglip_vision,
    image_text,
    square_fields,
)
from inference.models.vision_config import VisionConfig

GEMMA3_PROJECTOR = "gemma3"
MERGE = 4
"""The patches each way of a token, where the file names no other number."""
DOWN = "v.blk.0.ffn_down.weight"
STEMS = {
    "v.post_ln": "post_norm",
    "mm.input_projection": "merger.proj",
    "mm.soft_emb_norm": "merger.norm",
}
_UNUSED = re.compile(r"<unused\d+>")


def find_image_token(text: GGUFKeys) -> tuple[int, str] | None:
    """What stands for each row of an image: converters may cut the vocabulary in front of its own
    token, and then it is the last of the tokens that are kept for such uses."""
    tokens = vocabulary(text)
    if IMAGE_TOKEN in tokens:
        return tokens.index(IMAGE_TOKEN), IMAGE_TOKEN
    unused = (i for i in reversed(range(len(tokens))) if _UNUSED.fullmatch(str(tokens[i])))
    found = next(unused, None)
    return None if found is None else (found, str(tokens[found]))


def siglip_problem(text: GGUFKeys) -> str | None:
    """Why the text model cannot have such a tower, in words; ``None``: it can."""
    if find_image_token(text) is None:
        return f"the text model's vocabulary has neither {IMAGE_TOKEN} nor an unused token"
    return None


def read_siglip(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    """``text`` has no ``siglip_problem``. Raises ``BadFileError``."""
    check_computed(projector, "use_gelu")
    token = find_image_token(text)
    assert token is not None, "it was checked"
    fields = common_fields(projector)
    merge = projector.integer("projector.scale_factor", MERGE)
    square = square_fields(projector.integer("image_size"), fields["patch_px"], merge)
    vision = VisionConfig(
        **fields | square,
        image_token_id=token[0],
        text=image_text(token[1]),
        has_swapped_mlp_names=_are_names_swapped(projector, fields["hidden_size"]),
    )
    check_square(projector, vision)
    check_siglip_vision(vision, text.integer("embedding_length"))
    return vision


def _are_names_swapped(projector: GGUFKeys, hidden_size: int) -> bool:
    """Earlier converters called an MLP's projections by each other's names."""
    outputs, inputs = tensor_shape(projector, DOWN, 2)
    return inputs == hidden_size != outputs
