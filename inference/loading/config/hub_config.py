"""``ModelConfig`` from a Hugging Face directory: config.json, generation_config.json, and
preprocessor_config.json of a model with image input.

The family that config.json names reads them, and refuses what it would compute wrongly; nothing in
a config that changes the result is passed over. Imports no torch.
"""

from __future__ import annotations

import json
from pathlib import Path

from inference.loading.config.checked_config import check_config
from inference.loading.config.malformed import refuses_malformed
from inference.loading.config.model_type import with_model_type
from inference.models.config import ModelConfig
from inference.models.families.hub_config import Json
from inference.models.families.limits import check_counts
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import check_architecture, known_model_types
from inference.models.families.tower import with_pixels
from inference.protocol.load_errors import BadFileError, MissingFileError

PROCESSOR = "preprocessor_config.json"
"""How an image is prepared for the vision tower."""


def read_directory_config(directory: Path) -> ModelConfig:
    """Raises ``MissingFileError``, ``BadFileError``, ``UnknownArchitectureError``."""
    config = read_json(directory / "config.json")
    generation_path = directory / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    processor_path = directory / PROCESSOR
    processor = read_json(processor_path) if processor_path.is_file() else None
    read = parse_config(config, generation)
    with refuses_malformed(PROCESSOR):
        return with_pixels(read, processor)


def read_json(path: Path) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"{path.name} is not in {path.parent}") from None
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadFileError(f"{path} does not hold a JSON object")
    return content


def parse_config(config: Json, generation: Json) -> ModelConfig:
    """``config`` and ``generation`` are config.json and generation_config.json, parsed. Raises
    ``BadFileError``, ``UnknownArchitectureError``."""
    config = with_model_type(config, known_model_types())
    family = check_architecture(str(config["model_type"]))
    with refuses_malformed("config.json"):
        check_counts(config)
        read_quantization(config)
        return check_config(family.read_config(config, generation))
