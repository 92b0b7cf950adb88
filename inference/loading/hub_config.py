"""``ModelConfig`` from a Hugging Face directory: config.json, generation_config.json, and
preprocessor_config.json of a model with image input.

The family that config.json names reads them, and refuses what it would compute wrongly; nothing in
a config that changes the result is passed over. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from inference.loading.checked_config import check_config, check_counts
from inference.models.config import ModelConfig
from inference.models.errors import UnsupportedModuleError
from inference.models.families.hub_config import Json
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import (
    check_architecture,
    family_of,
    known_model_types,
    nearest_words,
)
from inference.models.families.tower import with_pixels
from inference.protocol.load_errors import BadFileError, MissingFileError, UnknownArchitectureError

PROCESSOR = "preprocessor_config.json"
"""How an image is prepared for the vision tower."""
HEAD = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
"""``ForCausalLM``, ``ForSequenceClassification``: what follows the architecture's name."""
MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def read_directory_config(directory: Path) -> ModelConfig:
    """Raises ``MissingFileError``, ``BadFileError``, ``UnknownArchitectureError``."""
    config = read_json(directory / "config.json")
    generation = read_json_if_there(directory / "generation_config.json")
    has_processor = (directory / PROCESSOR).is_file()
    read = parse_config(config, generation)
    with refuses_malformed(PROCESSOR):
        return with_pixels(read, read_json(directory / PROCESSOR) if has_processor else None)


def read_json(path: Path) -> Json:
    """Raises ``MissingFileError``, ``BadFileError``."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"{path.name} is not in {path.parent}") from None
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadFileError(f"{path} does not hold a JSON object")
    return content


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Empty where there is no such file. Raises ``BadFileError``."""
    return dict(read_json(path)) if path.is_file() else {}


def parse_config(config: Json, generation: Json) -> ModelConfig:
    """``config`` and ``generation`` are config.json and generation_config.json, parsed. Raises
    ``BadFileError``, ``UnknownArchitectureError``."""
    config = with_model_type(config, known_model_types())
    family = check_architecture(str(config["model_type"]))
    with refuses_malformed("config.json"):
        check_counts(config)
        read_quantization(config)
        return check_config(family.read_config(config, generation))


@contextmanager
def refuses_malformed(what: str) -> Iterator[None]:
    """Turns whatever a malformed file makes its readers stumble over into one refusal: families
    read dozens of keys, each in its own way, and check some by name. ``what``: the file that is
    read inside. Raises ``BadFileError``."""
    try:
        yield
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise BadFileError(f"{what} holds a value that cannot be read: {reason}") from error


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


def learnt_config(config: ModelConfig) -> ModelConfig:
    """Completes the config of a model that the transformers backend computes, from facts of the
    module without its weights that config.json lacks; others stay as they are. Raises
    ``UnknownArchitectureError``."""
    module, _, name = family_of(config).detector.partition(":")
    if not module:
        return config
    learn: Callable[[ModelConfig], ModelConfig] = getattr(import_module(module), name)
    try:
        return learn(config)
    except UnsupportedModuleError as error:
        raise UnknownArchitectureError(str(error)) from error
