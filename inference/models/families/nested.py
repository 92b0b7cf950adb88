"""Checkpoints that nest a text model beside towers for images or audio, read as the text model:
config.json has it under ``text_config``, and its tensors are called ``language_model.*``."""

from __future__ import annotations

from typing import Any

from inference.models.families.hub_config import Json

OUTER = ("eos_token_id", "bos_token_id", "tie_word_embeddings")
"""Keys of the outer config that hold for the text model."""
NESTED = ("language_model.model.", "model.language_model.", "model.text_model.")
"""What the text model's names begin with, in older and newer checkpoints, and in Idefics3's."""
LEFT_OUT = {
    f"{prefix}{name}.": purpose
    for prefix in ("", "model.")
    for name, purpose in (
        ("vision_tower", "images"),
        ("vision_model", "images"),
        ("vision_encoder", "images"),
        ("multi_modal_projector", "images"),
        ("embed_vision", "images"),
        ("vision_embedder", "images"),
        ("audio_tower", "audio"),
        ("audio_encoder", "audio"),
        ("embed_audio", "audio"),
    )
}


def hub_name(name: str) -> str:
    for nested in NESTED:
        if name.startswith(nested):
            return "model." + name.removeprefix(nested)
    return name.removeprefix("language_model.")


def text_config(config: Json, defaults: Json) -> dict[str, Any]:
    """The text model's config, of a checkpoint with or without towers. ``defaults``: those of the
    library that wrote it, which leaves out equal values."""
    if "text_config" not in config:
        return dict(config)
    ends = {key: config[key] for key in OUTER if key in config}
    return {**defaults, **ends, **config["text_config"]}
