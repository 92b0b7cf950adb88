"""The vision tower of Pixtral and Mistral Small 3, whose images have any shape and whose rows of
tokens are apart: how config.json and an mmproj file's metadata describe it, its names, and its
tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, cast

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.hub_config import (
    Json,
    optional_size,
    positive_integer,
    rope_parameters,
)
from inference.models.families.projector_keys import (
    NORM_EPS_KEY,
    PATCHES,
    check_activation,
    common_fields,
    tensor_shape,
    vocabulary,
)
from inference.models.families.roles import TensorRole
from inference.models.families.tower import (
    ROPE_THETA,
    TOWER,
    check_rotated_heads,
    check_row_size,
    encoder_fields,
    gated_block_tensors,
    tower_tensor,
)
from inference.models.vision_config import ImageText, VisionConfig
from inference.protocol.load_errors import BadFileError

NORM_EPS = 1e-5
IMAGE_TOKEN, BREAK_TOKEN, END_TOKEN = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}
"""The values of keys that a tower's config leaves out."""
_OF_TOWER = re.compile(r"(?:model\.)?vision_tower\.(.+)")
_OF_PROJECTOR = re.compile(r"(?:model\.)?multi_modal_projector\.(.+)")
_OF_BLOCK = re.compile(r"transformer\.layers\.(\d+)\.(.+)\.weight")
_ALONE = {"patch_conv.weight": "patch_embed.proj.weight", "ln_pre.weight": "pre_norm.weight"}
_BLOCK = {
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "attention.o_proj": "attn.proj",
    "feed_forward.gate_proj": "mlp.gate_proj",
    "feed_forward.up_proj": "mlp.up_proj",
    "feed_forward.down_proj": "mlp.down_proj",
}
_PARTS_OF_QKV = {"attention.q_proj": 0, "attention.k_proj": 1, "attention.v_proj": 2}
_ROTATED = re.compile(rf"{re.escape(TOWER)}blocks\.\d+\.attn\.qkv\.weight\.[01]")
_MERGING = "patch_merger.merging_layer.weight"


def pixtral_tower_name(name: str) -> str | None:
    """The model's name of a tensor of the tower or its projector in a safetensors file; ``None``
    for any other."""
    if match := _OF_PROJECTOR.fullmatch(name):
        inner = match[1]
        return f"{TOWER}merger.{'merging.weight' if inner == _MERGING else inner}"
    match = _OF_TOWER.fullmatch(name)
    return match and TOWER + (_ALONE.get(match[1]) or _in_block(match[1]) or match[1])


def _in_block(name: str) -> str | None:
    match = _OF_BLOCK.fullmatch(name)
    if match is None:
        return None
    index, inner = match.groups()
    if (part := _PARTS_OF_QKV.get(inner)) is not None:
        return f"blocks.{index}.attn.qkv.weight.{part}"
    return f"blocks.{index}.{_BLOCK[inner]}.weight" if inner in _BLOCK else None


def is_rotated(name: str) -> bool:
    """Whether the tensor, by the model's name, is the queries or the keys of a block, whose rows
    llama.cpp's converter writes in pairs."""
    return _ROTATED.fullmatch(name) is not None


def pixtral_text() -> ImageText:
    """Each row of an image's tokens is followed by a token of its own."""
    whole = f"{IMAGE_TOKEN}{END_TOKEN}"
    return ImageText(
        IMAGE_TOKEN, whole, part=IMAGE_TOKEN, row_break=BREAK_TOKEN, parts_end=END_TOKEN
    )


def read_pixtral_vision(config: Json, text: Json, *, has_projector_bias: bool) -> VisionConfig:
    """The tower that config.json describes, without its processor's image sizes. ``text``: the
    decoder's part. ``has_projector_bias``: where the config does not name it. Raises
    ``BadFileError`` for one that would be computed wrongly."""
    tower = DEFAULTS | config["vision_config"]
    check_features(config)
    vision = VisionConfig(
        **row_fields(
            positive_integer(tower, "image_size"),
            positive_integer(tower, "patch_size"),
            positive_integer({"spatial_merge_size": 1, **config}, "spatial_merge_size"),
        ),
        image_token_id=positive_integer(
            {"image_token_index": config.get("image_token_id", 10), **config}, "image_token_index"
        ),
        num_channels=positive_integer(tower, "num_channels"),
        **encoder_fields(tower, text),
        rope_theta=float(rope_parameters(tower).get("rope_theta") or ROPE_THETA),
        activation=activation_of(str(tower["hidden_act"])),
        merger_eps=float(text.get("rms_norm_eps", 1e-6)),
        has_projector_bias=bool(config.get("multimodal_projector_bias", has_projector_bias)),
    )
    head_dim = vision.hidden_size // vision.num_heads
    if optional_size(tower, "head_dim", head_dim) != head_dim:
        raise BadFileError(f"vision_config: head_dim is {tower['head_dim']}, not {head_dim}")
    check_pixtral_vision(vision, positive_integer(text, "hidden_size"))
    return vision


def check_features(config: Json) -> None:
    """Raises ``BadFileError`` where a projector reads or computes something else."""
    for key, known in (
        ("vision_feature_layer", -1),
        ("vision_feature_select_strategy", "full"),
        ("projector_hidden_act", "gelu"),
    ):
        if (found := config.get(key, known)) != known:
            raise BadFileError(f"{key} is {found!r}, not {known!r}")


def activation_of(name: str) -> Literal["gelu", "silu"]:
    """Raises ``BadFileError``."""
    if name not in ("gelu", "silu"):
        raise BadFileError(f"vision_config: hidden_act {name!r} is neither gelu nor silu")
    return cast("Literal['gelu', 'silu']", name)


def row_fields(longest_px: int, patch_px: int, merge: int) -> dict[str, Any]:
    """The fields of a ``VisionConfig`` that follow from the longest side of an image, and of all
    such towers."""
    return {
        "kind": "pixtral",
        "division": "rows",
        "min_pixels": 0,
        "max_pixels": longest_px**2,
        "patch_px": patch_px,
        "merge": merge,
        "temporal_patch": 1,
        "norm_eps": NORM_EPS,
        "text": pixtral_text(),
    }


def check_pixtral_vision(vision: VisionConfig, text_hidden_size: int) -> None:
    """Raises ``BadFileError`` for a tower that cannot be computed or does not fit its decoder."""
    check_rotated_heads(vision)
    check_row_size(vision, text_hidden_size)


def pixtral_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """Dense whatever the decoder's become: a small part of the whole, and it is run seldom."""
    size, patch = vision.hidden_size, vision.patch_px
    yield tower_tensor("patch_embed.proj.weight", size, vision.num_channels, patch, patch)
    yield tower_tensor("pre_norm.weight", size)
    yield from gated_block_tensors(vision, has_bias=False)
    if vision.merge > 1:
        yield tower_tensor("merger.norm.weight", size)
        yield tower_tensor("merger.merging.weight", size, vision.merged_features)
    out = vision.out_hidden_size
    for name, inputs in (("linear_1", size), ("linear_2", out)):
        yield tower_tensor(f"merger.{name}.weight", out, inputs)
        if vision.has_projector_bias:
            yield tower_tensor(f"merger.{name}.bias", out)


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
