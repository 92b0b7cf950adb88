"""The vision tower of Gemma 3, which is SigLIP's over a square of one size: how config.json,
preprocessor_config.json and an mmproj file's metadata describe it, its names, and its tensors.

    mm.input_projection.weight    (hidden_size, out_hidden_size), as in safetensors
    mm.soft_emb_norm.weight       with one added to it, unlike there
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.hub_config import Json, positive_integer
from inference.models.families.projector_keys import (
    check_computed,
    check_square,
    common_fields,
    tensor_shape,
    vocabulary,
)
from inference.models.families.roles import TensorRole
from inference.models.families.tower import (
    ACTIVATION,
    NORM_EPS,
    TOWER,
    block_tensors,
    check_equal_heads,
    check_row_size,
    encoder_fields,
    norm_tensors,
    tower_tensor,
)
from inference.models.vision_config import ImageText, VisionConfig
from inference.protocol.load_errors import BadFileError

REQUIRED = frozenset(
    {
        "hidden_size",
        "image_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "patch_size",
    }
)
NUM_TOKENS = 256
IMAGE_TOKEN, IMAGE_TOKEN_ID = "<image_soft_token>", 262_144
"""Facts of Gemma 3, where its config has none."""
_ALONE = {
    "embeddings.patch_embedding.weight": "patch_embed.proj.weight",
    "embeddings.patch_embedding.bias": "patch_embed.proj.bias",
    "embeddings.position_embedding.weight": "pos_embed.weight",
    "post_layernorm.weight": "post_norm.weight",
    "post_layernorm.bias": "post_norm.bias",
}
_PROJECTOR = {
    "mm_input_projection_weight": "merger.proj.weight",
    "mm_soft_emb_norm.weight": "merger.norm.weight",
}
_BLOCK = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "self_attn.out_proj": "attn.proj",
    "mlp.fc1": "mlp.linear_fc1",
    "mlp.fc2": "mlp.linear_fc2",
}
_PARTS_OF_QKV = {"self_attn.q_proj": 0, "self_attn.k_proj": 1, "self_attn.v_proj": 2}
_OF_TOWER = re.compile(r"(?:model\.)?vision_tower\.(?:vision_model\.)?(.+)")
_OF_PROJECTOR = re.compile(r"(?:model\.)?multi_modal_projector\.(.+)")
_OF_BLOCK = re.compile(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")


def tower_hub_name(name: str) -> str | None:
    """The model's name of a tensor of the tower or its projector in a safetensors file; ``None``
    for any other, and for SigLIP's head, which is not computed with."""
    if match := _OF_PROJECTOR.fullmatch(name):
        found = _PROJECTOR.get(match[1])
    elif match := _OF_TOWER.fullmatch(name):
        found = siglip_name(match[1])
    else:
        return None
    return found and TOWER + found


def siglip_name(name: str) -> str | None:
    """The name within the model's tower of a tensor by its name within SigLIP; ``None`` for one
    that is not computed with."""
    if found := _ALONE.get(name):
        return found
    match = _OF_BLOCK.fullmatch(name)
    if match is None:
        return None
    index, inner, kind = match.groups()
    if (part := _PARTS_OF_QKV.get(inner)) is not None:
        return f"blocks.{index}.attn.qkv.{kind}.{part}"
    return f"blocks.{index}.{_BLOCK[inner]}.{kind}" if inner in _BLOCK else None


def image_text(image_token: str) -> ImageText:
    """``image_token``: the vocabulary's token for each row of an image."""
    start = "<start_of_image>"
    return ImageText(start, f"\n\n{start}{image_token}<end_of_image>\n\n")


def read_siglip_vision(config: Json, text: Json) -> VisionConfig | None:
    """The tower that config.json describes. ``text``: the decoder's part. ``None`` where there is
    none, or none that is whole. Raises ``BadFileError`` for one that would be computed wrongly."""
    tower = config.get("vision_config")
    if not isinstance(tower, dict) or not tower.keys() >= REQUIRED:
        return None
    activation, eps = tower.get("hidden_act", ACTIVATION), tower.get("layer_norm_eps", NORM_EPS)
    if activation != ACTIVATION:
        raise BadFileError(f"vision_config: hidden_act {activation!r} is not {ACTIVATION}")
    if eps != NORM_EPS:
        raise BadFileError(f"vision_config: layer_norm_eps is {eps!r}, not {NORM_EPS:g}")
    image_px = positive_integer(tower, "image_size")
    patch_px = positive_integer(tower, "patch_size")
    num_tokens = int(config.get("mm_tokens_per_image", NUM_TOKENS))
    token_id = config.get("image_token_index", config.get("image_token_id", IMAGE_TOKEN_ID))
    hidden_size = positive_integer(text, "hidden_size")
    vision = VisionConfig(
        **square_fields(image_px, patch_px, merge_of(image_px // patch_px, num_tokens)),
        image_token_id=int(token_id),
        text=image_text(IMAGE_TOKEN),
        num_channels=int(tower.get("num_channels", 3)),
        **encoder_fields(tower, text),
        has_norm_plus_one=True,
    )
    check_siglip_vision(vision, hidden_size)
    return vision


def merge_of(patches_per_side: int, num_tokens: int) -> int:
    """The patches each way that become one of an image's ``num_tokens``. Raises
    ``BadFileError``."""
    tokens_per_side = math.isqrt(num_tokens)
    if not 0 < tokens_per_side <= patches_per_side or tokens_per_side**2 != num_tokens:
        raise BadFileError(
            f"{num_tokens} tokens are no square of an image of {patches_per_side} patches each way"
        )
    return patches_per_side // tokens_per_side


def square_fields(image_px: int, patch_px: int, merge: int) -> dict[str, Any]:
    """The fields of a ``VisionConfig`` that follow from the one size of its images."""
    return {
        "kind": "gemma3",
        "image_px": image_px,
        "min_pixels": image_px**2,
        "max_pixels": image_px**2,
        "patch_px": patch_px,
        "merge": merge,
        "temporal_patch": 1,
        "num_position_embeddings": (image_px // patch_px) ** 2,
        "is_bidirectional": True,
    }


def check_siglip_vision(vision: VisionConfig, text_hidden_size: int) -> None:
    """Raises ``BadFileError`` for a tower that cannot be computed or does not fit its decoder."""
    if vision.image_px % (vision.patch_px * vision.merge):
        raise BadFileError(
            f"images of {vision.image_px} pixels each way are no whole number of "
            f"{vision.merge} x {vision.merge} patches of {vision.patch_px}"
        )
    check_equal_heads(vision)
    check_row_size(vision, text_hidden_size)


def siglip_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """The tensors of Gemma 3's tower and its projector."""
    yield from encoder_tensors(vision)
    yield tower_tensor("merger.norm.weight", vision.hidden_size)
    yield tower_tensor("merger.proj.weight", vision.hidden_size, vision.out_hidden_size)


def encoder_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """SigLIP's own. Dense whatever the decoder's become: a small part of the whole, and it is run
    seldom."""
    size, patch = vision.hidden_size, vision.patch_px
    yield tower_tensor("patch_embed.proj.weight", size, vision.num_channels, patch, patch)
    yield tower_tensor("patch_embed.proj.bias", size)
    yield tower_tensor("pos_embed.weight", vision.num_position_embeddings, size)
    yield from block_tensors(vision)
    yield from norm_tensors("post_norm", size)


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
    """The token for each row of an image, its id and its text: converters may cut the vocabulary in
    front of its own token, and then it is the last of the tokens that are kept for such uses."""
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
