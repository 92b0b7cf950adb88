"""The ``model_type`` of a config.json that lacks one, by the classes that it names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from inference.models.families.hub_config import Json
from inference.models.families.registry import nearest_words
from inference.protocol.load_errors import BadFileError

HEAD = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
"""``ForCausalLM``, ``ForSequenceClassification``: what follows the architecture's name."""


def with_model_type(config: Json, known: Iterable[str]) -> Json:
    """``config`` itself where it has a ``model_type``. Raises ``BadFileError`` where its
    ``architectures`` name none of ``known``."""
    if config.get("model_type") is not None:
        return config
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not architectures:
        raise BadFileError("config.json has neither model_type nor architectures")
    known = list(known)
    by_letters = {_letters(model_type): model_type for model_type in known}
    for name in architectures:
        if found := by_letters.get(_letters(HEAD.sub("", str(name)))):
            return {**config, "model_type": found}
    named = ", ".join(map(str, architectures))
    nearest = nearest_words(HEAD.sub("", str(architectures[0])).lower(), known)
    raise BadFileError(
        f"config.json has no model_type, and {named} is of none that this build runs. {nearest}"
    )


def _letters(name: str) -> str:
    return re.sub(r"[_-]", "", name.lower())
