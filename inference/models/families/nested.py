"""Checkpoints that nest a text model beside towers for pictures or sounds, read as the text model:
config.json has it under ``text_config``, and its tensors are called ``language_model.*``."""

from __future__ import annotations

from typing import Any

from inference.models.families.hub_config import Json

OUTER = ("eos_token_id", "bos_token_id", "tie_word_embeddings")
"""What holds for the text model where the outer config says it."""
NESTED = ("language_model.model.", "model.language_model.")
"""What the text model's names begin with, in older and newer checkpoints."""
LEFT_OUT = {
    f"{prefix}{name}.": purpose
    for prefix in ("", "model.")
    for name, purpose in (
        ("vision_tower", "pictures"),
        ("vision_model", "pictures"),
        ("vision_encoder", "pictures"),
        ("multi_modal_projector", "pictures"),
        ("embed_vision", "pictures"),
        ("vision_embedder", "pictures"),
        ("audio_tower", "sounds"),
        ("audio_encoder", "sounds"),
        ("embed_audio", "sounds"),
    )
}


def hub_name(name: str) -> str:
    for nested in NESTED:
        if name.startswith(nested):
            return "model." + name.removeprefix(nested)
    return name.removeprefix("language_model.")


def text_config(config: Json, defaults: Json) -> dict[str, Any]:
    """The text model's config, of a checkpoint with or without towers. ``defaults``: those of the
    library that wrote it, which leaves out what is like them."""
    if "text_config" not in config:
        return dict(config)
    ends = {key: config[key] for key in OUTER if key in config}
    return {**defaults, **ends, **config["text_config"]}
