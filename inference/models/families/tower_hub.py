"""Vision towers as config.json describes them, without their processors' image sizes. Readers take
the outer config and the decoder's part."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

from inference.models.families.hub_config import (
    Json,
    check_activation,
    optional_size,
    positive_integer,
    rope_parameters,
)
from inference.models.families.tower import NORM_EPS, ROPE_THETA, checked_tower
from inference.models.vision_config import ImageText, VisionConfig
from inference.protocol.load_errors import BadFileError

ACTIVATION = "gelu_pytorch_tanh"
AXES = 3
"""The axes of a position: time, height and width."""
QWEN_SIZES = "depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size"
QWEN_REQUIRED = frozenset({*QWEN_SIZES, "patch_size", "spatial_merge_size"})
SIGLIP_REQUIRED = frozenset(
    {
        *("hidden_size", "image_size", "intermediate_size", "num_attention_heads"),
        *("num_hidden_layers", "patch_size"),
    }
)


def read_vision(config: Json, text: Json) -> VisionConfig | None:
    """For Qwen3-VL and Qwen3.5. A tower that is not whole is ``None``: the model is read as a text
    model."""
    own = {"num_position_embeddings", "temporal_patch_size"}
    tower = _whole_qwen_tower(config, text, QWEN_REQUIRED | own)
    if tower is None:
        return None
    if not rope_parameters(text).get("mrope_interleaved", True):
        raise BadFileError("image rotary frequencies in blocks are not supported with this tower")
    _check_gelu(tower)
    return _qwen_tower(
        *(config, tower, text),
        num_position_embeddings=positive_integer(tower, "num_position_embeddings"),
        deepstack_layers=tuple(map(int, tower.get("deepstack_visual_indexes") or ())),
    )


def read_windowed_vision(config: Json, text: Json) -> VisionConfig | None:
    """For Qwen2.5-VL, most of whose blocks see a window of the image."""
    own = {"fullatt_block_indexes", "window_size"}
    tower = _whole_qwen_tower(config, text, QWEN_REQUIRED | own)
    if tower is None:
        return None
    check_activation(tower, "silu")
    return _qwen_tower(
        *(config, tower, text),
        kind="qwen2_5_vl",
        window_px=positive_integer(tower, "window_size"),
        full_attention_layers=tuple(map(int, tower["fullatt_block_indexes"])),
        is_mrope_interleaved=False,
    )


def _whole_qwen_tower(config: Json, text: Json, required: frozenset[str]) -> Json | None:
    tower = config.get("vision_config")
    if not isinstance(tower, dict) or not tower.keys() >= required:
        return None
    if not isinstance(config.get("image_token_id"), int):
        return None
    return tower if "mrope_section" in rope_parameters(text) else None


def _qwen_tower(config: Json, tower: Json, text: Json, **own: Any) -> VisionConfig:
    section = rope_parameters(text)["mrope_section"]
    if not isinstance(section, list | tuple) or len(section) != AXES:
        raise BadFileError(f"mrope_section is {section!r}, not three numbers")
    time, height, width = map(int, section)
    sizes: dict[str, Any] = {name: positive_integer(tower, name) for name in QWEN_SIZES}
    vision = VisionConfig(
        **sizes,
        image_token_id=config["image_token_id"],
        patch_px=positive_integer(tower, "patch_size"),
        merge=positive_integer(tower, "spatial_merge_size"),
        temporal_patch=positive_integer({"temporal_patch_size": 2, **tower}, "temporal_patch_size"),
        num_channels=int(tower.get("in_channels") or tower.get("in_chans") or 3),
        min_pixels=0,
        max_pixels=0,
        rope_theta=float((tower.get("rope_parameters") or {}).get("rope_theta", ROPE_THETA)),
        mrope_section=(time, height, width),
        **own,
    )
    return checked_tower(vision, positive_integer(text, "hidden_size"))


def _check_gelu(tower: Json) -> None:
    if (activation := tower.get("hidden_act", ACTIVATION)) != ACTIVATION:
        raise BadFileError(f"vision_config: hidden_act {activation!r} is not {ACTIVATION}")


def _encoder_fields(tower: Json, text: Json) -> dict[str, Any]:
    return {
        "depth": positive_integer(tower, "num_hidden_layers"),
        "hidden_size": positive_integer(tower, "hidden_size"),
        "intermediate_size": positive_integer(tower, "intermediate_size"),
        "num_heads": positive_integer(tower, "num_attention_heads"),
        "out_hidden_size": positive_integer(text, "hidden_size"),
    }


SOFT_TOKEN, SOFT_TOKEN_ID = "<image_soft_token>", 262_144
NUM_TOKENS = 256
"""Gemma 3's, where its config has none."""


def soft_text(image_token: str) -> ImageText:
    start = "<start_of_image>"
    return ImageText(start, f"\n\n{start}{image_token}<end_of_image>\n\n")


def read_siglip_vision(config: Json, text: Json) -> VisionConfig | None:
    """For Gemma 3. A tower that is not whole is ``None``."""
    tower = config.get("vision_config")
    if not isinstance(tower, dict) or not tower.keys() >= SIGLIP_REQUIRED:
        return None
    _check_gelu(tower)
    if (eps := tower.get("layer_norm_eps", NORM_EPS)) != NORM_EPS:
        raise BadFileError(f"vision_config: layer_norm_eps is {eps!r}, not {NORM_EPS:g}")
    image_px = positive_integer(tower, "image_size")
    patch_px = positive_integer(tower, "patch_size")
    num_tokens = int(config.get("mm_tokens_per_image", NUM_TOKENS))
    token_id = config.get("image_token_index", config.get("image_token_id", SOFT_TOKEN_ID))
    vision = VisionConfig(
        **square_fields(image_px, patch_px, merge_of(image_px // patch_px, num_tokens)),
        image_token_id=int(token_id),
        text=soft_text(SOFT_TOKEN),
        num_channels=int(tower.get("num_channels", 3)),
        **_encoder_fields(tower, text),
        has_norm_plus_one=True,
    )
    return checked_tower(vision, positive_integer(text, "hidden_size"))


def merge_of(patches_per_side: int, num_tokens: int) -> int:
    """Patches each way that become one token."""
    tokens_per_side = math.isqrt(num_tokens)
    if not 0 < tokens_per_side <= patches_per_side or tokens_per_side**2 != num_tokens:
        raise BadFileError(
            f"{num_tokens} tokens are no square of an image of {patches_per_side} patches each way"
        )
    return patches_per_side // tokens_per_side


def square_fields(image_px: int, patch_px: int, merge: int) -> dict[str, Any]:
    """Fields of ``VisionConfig`` that follow from the one size of Gemma 3's images."""
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


IDEFICS3_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": NORM_EPS,
}
TILE_TOKEN, TILE_TOKEN_ID = "<image>", 128_257
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
TILE_TEXT = ImageText(
    TILE_TOKEN,
    f"{AROUND}{WHOLE}{TILE_TOKEN}{AROUND}",
    part=f"{AROUND}<row_{{row}}_col_{{column}}>{TILE_TOKEN}",
    row_break="\n",
    parts_end=f"\n\n{AROUND}{WHOLE}{TILE_TOKEN}{AROUND}",
)
"""Tiles are named by row and column, and the whole image follows them."""


def read_idefics3_vision(config: Json, text: Json) -> VisionConfig | None:
    """For Idefics3 and SmolVLM: SigLIP's over squares, which are an image or its tiles."""
    if not isinstance(declared := config.get("vision_config"), dict):
        return None
    tower = IDEFICS3_DEFAULTS | declared
    _check_gelu(tower)
    vision = VisionConfig(
        **tile_fields(
            positive_integer(tower, "image_size"),
            positive_integer(tower, "patch_size"),
            positive_integer({"scale_factor": 2, **config}, "scale_factor"),
        ),
        image_token_id=int(config.get("image_token_id", TILE_TOKEN_ID)),
        num_channels=positive_integer(tower, "num_channels"),
        **_encoder_fields(tower, text),
        norm_eps=float(tower["layer_norm_eps"]),
    )
    return checked_tower(vision, positive_integer(text, "hidden_size"))


def tile_fields(image_px: int, patch_px: int, merge: int) -> dict[str, Any]:
    """An image is one tile until its processor's sizes are known."""
    own = {"kind": "idefics3", "min_pixels": 0, "is_bidirectional": False, "text": TILE_TEXT}
    return square_fields(image_px, patch_px, merge) | own


PIXTRAL_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}
PIXTRAL_EPS = 1e-5
ROW_TOKENS = ROW_TOKEN, BREAK_TOKEN, END_TOKEN = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
ROW_TEXT = ImageText(
    ROW_TOKEN,
    f"{ROW_TOKEN}{END_TOKEN}",
    part=ROW_TOKEN,
    row_break=BREAK_TOKEN,
    parts_end=END_TOKEN,
)
"""Each row of an image's tokens is followed by a token of its own."""


def read_pixtral_vision(config: Json, text: Json, *, has_projector_bias: bool) -> VisionConfig:
    """For Pixtral and Mistral Small 3. ``has_projector_bias``: default."""
    tower = PIXTRAL_DEFAULTS | config["vision_config"]
    for key, known in (
        ("vision_feature_layer", -1),
        ("vision_feature_select_strategy", "full"),
        ("projector_hidden_act", "gelu"),
    ):
        if (found := config.get(key, known)) != known:
            raise BadFileError(f"{key} is {found!r}, not {known!r}")
    if (activation := tower["hidden_act"]) not in ("gelu", "silu"):
        raise BadFileError(f"vision_config: hidden_act {activation!r} is neither gelu nor silu")
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
        **_encoder_fields(tower, text),
        rope_theta=float(rope_parameters(tower).get("rope_theta") or ROPE_THETA),
        activation=cast("Literal['gelu', 'silu']", activation),
        merger_eps=float(text.get("rms_norm_eps", 1e-6)),
        has_projector_bias=bool(config.get("multimodal_projector_bias", has_projector_bias)),
    )
    head_dim = vision.hidden_size // vision.num_heads
    if optional_size(tower, "head_dim", head_dim) != head_dim:
        raise BadFileError(f"vision_config: head_dim is {tower['head_dim']}, not {head_dim}")
    return checked_tower(vision, positive_integer(text, "hidden_size"))


def row_fields(longest_px: int, patch_px: int, merge: int) -> dict[str, Any]:
    return {
        "kind": "pixtral",
        "division": "rows",
        "min_pixels": 0,
        "max_pixels": longest_px**2,
        "patch_px": patch_px,
        "merge": merge,
        "temporal_patch": 1,
        "norm_eps": PIXTRAL_EPS,
        "text": ROW_TEXT,
    }
