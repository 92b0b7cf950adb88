"""A GGUF model with the vision tower of its mmproj file: one config, one header. Imports no torch.

model.gguf ─▶ header ─┐
mmproj.gguf ─▶ header ┴─▶ GGUFModel: the text model with images, or in words why without
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from inference.loading.config.checked_config import check_tower
from inference.loading.config.hub_config import refuses_malformed
from inference.loading.gguf.config import gguf_keys, read_gguf_config
from inference.loading.gguf.header import GGUFHeader, read_header, read_headers
from inference.loading.sources.files import ModelFiles
from inference.models.config import ModelConfig
from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.limits import check_counts
from inference.models.families.projector_keys import SECTION
from inference.models.families.registry import family_of
from inference.models.families.tower_gguf import UNUSED_TENSORS, projector_problem, read_projector
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError, BadSourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFModel:
    config: ModelConfig
    header: GGUFHeader
    """The text model's metadata, and the tensors of all files."""
    projector: Path | None = None
    """The mmproj file whose tensors are among them."""
    no_images: str = ""
    """A sentence for people: why the tower of an mmproj file beside the weights is not computed."""


def read_gguf_model(files: ModelFiles, bounded: Callable[[ModelConfig], ModelConfig]) -> GGUFModel:
    """``bounded``: the config with the size of images that its device takes, or without a tower.
    Raises ``UnknownArchitectureError``, ``BadFileError``, ``MissingFileError``, and
    ``BadSourceError`` for an mmproj file that was named and cannot be used."""
    header = read_headers(files.weights)
    config = read_gguf_config(header)
    path = files.projector
    if path is None:
        return GGUFModel(config=config, header=header)
    tower = read_header(path)
    text = gguf_keys(header)
    if problem := projector_problem(tower.metadata, text, family_of(config)):
        problem = f"{path.name} is not used: {problem}"
        if files.is_projector_named:
            raise BadSourceError(problem)
        return GGUFModel(config=config, header=header, no_images=f"no images: {problem}")
    vision = _read_vision(tower, text)
    config = bounded(check_tower(replace(config, vision=vision)))
    if config.vision is None:
        return GGUFModel(config=config, header=header)
    return GGUFModel(config=config, header=_joined(header, tower), projector=path)


def _read_vision(tower: GGUFHeader, text: GGUFKeys) -> VisionConfig:
    """Raises ``BadFileError``."""
    with refuses_malformed(f"the metadata of {tower.path.name}"):
        check_counts(tower.metadata)
        return read_projector(gguf_keys(tower, SECTION), text)


def _joined(header: GGUFHeader, tower: GGUFHeader) -> GGUFHeader:
    """Raises ``BadFileError`` where both hold a tensor of one name."""
    of_tower = {name: info for name, info in tower.tensors.items() if name not in UNUSED_TENSORS}
    if both := header.tensors.keys() & of_tower.keys():
        raise BadFileError(
            f"{header.path.name} and {tower.path.name} both hold the tensor {min(both)}"
        )
    return replace(header, tensors={**header.tensors, **of_tower})
