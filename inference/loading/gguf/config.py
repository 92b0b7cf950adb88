"""``ModelConfig`` from GGUF headers, with the vision tower of an mmproj file. Imports no torch, but
for a file of the transformers backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf.constants import GGMLQuantizationType

from inference.loading.checked_config import check_config, check_counts, check_tower
from inference.loading.gguf.header import GGUFHeader, read_header, read_headers
from inference.loading.hub_config import learnt_config, refuses_malformed
from inference.loading.sources.files import ModelFiles
from inference.models.config import ModelConfig
from inference.models.families.gguf_keys import ROPE_FREQUENCIES, GGUFKeys, text_facts
from inference.models.families.gguf_numbers import read_gguf
from inference.models.families.registry import check_gguf_architecture, family_of
from inference.models.families.tower_gguf import (
    SECTION,
    UNUSED_TENSORS,
    projector_problem,
    read_projector,
)
from inference.models.families.transformers_modules import MODULES, check_module_keys
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError, BadSourceError

TABLE = "token_embd.weight"
LISTS = {"tokens": str, "merges": str, "token_type": int, "scores": float}
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding")


def read_gguf_config(header: GGUFHeader) -> ModelConfig:
    """Imports torch for a model of the transformers backend."""
    with refuses_malformed(f"the metadata of {header.path.name}"):
        check_counts(header.metadata)
        return check_config(_read(header))


def _read(header: GGUFHeader) -> ModelConfig:
    family = check_gguf_architecture(header.architecture)
    if family.uses_transformers:
        from inference.loading.gguf.module import read_module_config  # imports transformers

        read = family.read_config(read_module_config(header, MODULES[header.architecture]), {})
        check_module_keys(gguf_keys(header), read)
        return learnt_config(check_config(replace(read, **text_facts(header.metadata))))
    return read_gguf(family, gguf_keys(header))


def gguf_keys(header: GGUFHeader, section: str | None = None) -> GGUFKeys:
    """``section``: the keys' prefix, by default the architecture. Raises ``BadFileError``."""
    shapes = {name: info.shape for name, info in header.tensors.items()}
    return GGUFKeys(header.metadata, section or header.architecture, shapes, _rope_divisors(header))


def _rope_divisors(header: GGUFHeader) -> list[float] | None:
    info = header.tensors.get(ROPE_FREQUENCIES)
    if info is None:
        return None
    if info.type != GGMLQuantizationType.F32:
        raise BadFileError(f"{ROPE_FREQUENCIES} is stored as {info.type.name}; F32 is read")
    return [float(divisor) for divisor in info.floats()]


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFModel:
    config: ModelConfig
    header: GGUFHeader
    """The text model's metadata, and the tensors of all files."""
    projector: Path | None = None
    no_images: str = ""


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
        if files.wanted.names_projector:
            raise BadSourceError(problem)
        return GGUFModel(config=config, header=header, no_images=f"no images: {problem}")
    vision = _read_vision(tower, text)
    config = bounded(check_tower(replace(config, vision=vision)))
    if config.vision is None:
        return GGUFModel(config=config, header=header)
    return GGUFModel(config=config, header=_joined(header, tower), projector=path)


def _read_vision(tower: GGUFHeader, text: GGUFKeys) -> VisionConfig:
    with refuses_malformed(f"the metadata of {tower.path.name}"):
        check_counts(tower.metadata)
        return read_projector(gguf_keys(tower, SECTION), text)


def _joined(header: GGUFHeader, tower: GGUFHeader) -> GGUFHeader:
    of_tower = {name: info for name, info in tower.tensors.items() if name not in UNUSED_TENSORS}
    if both := header.tensors.keys() & of_tower.keys():
        raise BadFileError(
            f"{header.path.name} and {tower.path.name} both hold the tensor {min(both)}"
        )
    return replace(header, tensors={**header.tensors, **of_tower})


def check_vocabulary(header: GGUFHeader) -> None:
    """A file without one passes: its tokenizer is elsewhere. Raises ``BadFileError``."""
    metadata, start = header.metadata, "tokenizer.ggml."
    if f"{start}tokens" not in metadata:
        return
    lists = {key: _list(metadata, f"{start}{key}", kind) for key, kind in LISTS.items()}
    num_tokens, table = len(lists["tokens"] or ()), header.tensors.get(TABLE)
    if table is not None and table.shape[0] != num_tokens:
        raise BadFileError(
            f"the vocabulary has {num_tokens} tokens, and the embedding {TABLE} has "
            f"{table.shape[0]} rows"
        )
    for key in ("token_type", "scores"):
        listed = lists[key]
        if listed is not None and len(listed) != num_tokens:
            raise BadFileError(f"{start}{key} has {len(listed)} entries for {num_tokens} tokens")
    for special in SPECIAL:
        key = f"{start}{special}_token_id"
        token_id = metadata.get(key, 0)
        if not isinstance(token_id, int) or not 0 <= token_id < num_tokens:
            raise BadFileError(
                f"{key} is {token_id!r}, which is outside the vocabulary of {num_tokens} tokens"
            )


def _list(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any] | None:
    listed = metadata.get(key)
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(item, kind) for item in listed):
        raise BadFileError(f"{key} is no list of {kind.__name__} values")
    return listed
