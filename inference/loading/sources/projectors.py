"""The files of a source that make up one model, with the mmproj file that goes with a GGUF: its
vision tower. Pure: names and sizes in, names out.

    file                        weights                     images
    (empty)                     the best that fit           by the mmproj file beside them
    Q4_K_M                      of that quant               by the mmproj file beside them
    Q4_K_M+mmproj-F16.gguf      of that quant               by that file
    Q4_K_M+none                 of that quant               none
    /models/mmproj-F16.gguf     the best that fit           by that file, of this disk

Beside the weights: in their folder, else in one above it. Of several the one that is named like the
weights, then the one that names no model; of several types BF16, F16, Q8_0, F32, then the smallest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from inference.loading.sources.files import (
    PROJECTOR_MARK,
    SHARD,
    ModelFiles,
    check_shards,
    choose_weights,
    gguf_stem,
    gguf_variants,
    is_projector,
    is_safetensors,
    quant_of,
)
from inference.protocol.load import NO_PROJECTOR
from inference.protocol.load_errors import BadSourceError, QuantizationNotFoundError

JOINED_BY = "+"
PREFERRED_TYPES = ("BF16", "F16", "Q8_0", "F32")


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """What a load's ``file`` names."""

    weights: str | None
    """A file's name or a quant; ``None``: the best that fit."""
    projector: str | None
    """An mmproj file's name, or ``NO_PROJECTOR``; ``None``: the one beside the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenFiles:
    weights: tuple[str, ...]
    projector: str | None = None
    is_projector_named: bool = False
    is_text_only: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.weights if self.projector is None else (*self.weights, self.projector)

    def at(self, directory: Path, path_of: Callable[[str], Path]) -> ModelFiles:
        """``directory``: of the config and the tokenizer. ``path_of``: where a file lies."""
        return ModelFiles(
            directory=directory,
            weights=tuple(path_of(name) for name in self.weights),
            projector=None if self.projector is None else path_of(self.projector),
            is_projector_named=self.is_projector_named,
            is_text_only=self.is_text_only,
        )


def wanted_files(file: str | None) -> WantedFiles:
    """A file that is named by its path alone is an mmproj file. Raises ``BadSourceError``."""
    if file is not None and file.startswith("/") and is_projector(file):
        return WantedFiles(None, file)
    parts = [] if file is None else file.split(JOINED_BY)
    projectors = [part for part in parts if part == NO_PROJECTOR or is_projector(part)]
    if len(projectors) > 1:
        raise BadSourceError(
            f"{file!r} names {len(projectors)} mmproj files; a model is read with one, or with none"
        )
    weights = JOINED_BY.join(part for part in parts if part not in projectors)
    return WantedFiles(weights or None, projectors[0] if projectors else None)


def choose_files(
    sizes: Mapping[str, int], wanted: WantedFiles, free_bytes: int, *, reads_images: bool = True
) -> ChosenFiles:
    """The files to open, of those that a source holds (name -> bytes). ``reads_images``: ``False``
    where the model is known to read none, so that an mmproj file is of no use. Raises
    ``BadSourceError``, ``MissingFileError``, ``QuantizationNotFoundError``."""
    chosen = _chosen(sizes, wanted, free_bytes, reads_images)
    if wanted.weights is None and chosen.projector is not None:
        left_bytes = free_bytes - sizes[chosen.projector]
        chosen = _chosen(sizes, wanted, left_bytes, reads_images)
    check_shards(chosen.weights)
    return chosen


def _chosen(
    sizes: Mapping[str, int], wanted: WantedFiles, free_bytes: int, reads_images: bool
) -> ChosenFiles:
    weights = choose_weights(sizes, wanted.weights, free_bytes)
    if wanted.projector == NO_PROJECTOR:
        return ChosenFiles(weights=weights, is_text_only=True)
    if wanted.projector is not None:
        name = _named_projector(sizes, weights, wanted.projector)
        return ChosenFiles(weights=weights, projector=name, is_projector_named=True)
    found = projector_beside(sizes, weights) if reads_images else None
    return ChosenFiles(weights=weights, projector=found)


def projector_beside(sizes: Mapping[str, int], weights: Sequence[str]) -> str | None:
    """The mmproj file that goes with GGUF files; ``None``: there is none, or ``weights`` are
    safetensors."""
    if is_safetensors(weights[0]):
        return None
    by_folder = {PurePosixPath(name).parent: True for name in sizes if is_projector(name)}
    folders = PurePosixPath(weights[0]).parents
    folder = next((one for one in folders if one in by_folder), None)
    there = [name for name in sizes if is_projector(name) and PurePosixPath(name).parent == folder]
    own = _of_model(there, weights[0], sizes)
    return min(own, key=lambda name: (_rank(name), sizes[name], name), default=None)


def _of_model(there: Sequence[str], weights: str, sizes: Mapping[str, int]) -> list[str]:
    subjects = {name: _subject(name) for name in there}
    model = _subject(weights)
    like_it = [name for name, subject in subjects.items() if subject and model.startswith(subject)]
    if like_it:
        longest = max(len(subjects[name]) for name in like_it)
        return [name for name in like_it if len(subjects[name]) == longest]
    if of_any := [name for name, subject in subjects.items() if not subject]:
        return of_any
    models = {_subject(variant.names[0]) for variant in gguf_variants(sizes)}
    return list(there) if len(models) == 1 else []


def _subject(name: str) -> str:
    """The model that a file is named after, in small letters and digits alone: empty for
    ``mmproj-model-f16.gguf``."""
    stem = SHARD.sub("", gguf_stem(PurePosixPath(name).name))
    if quant := quant_of(stem):
        stem = stem[: -len(quant)]
    plain = re.sub(r"[^a-z0-9]", "", stem.lower().replace(PROJECTOR_MARK, ""))
    return "" if plain == "model" else plain


def _rank(name: str) -> int:
    quant = (quant_of(gguf_stem(name)) or "").replace("FP", "F")
    return PREFERRED_TYPES.index(quant) if quant in PREFERRED_TYPES else len(PREFERRED_TYPES)


def _named_projector(sizes: Mapping[str, int], weights: Sequence[str], wanted: str) -> str:
    """Raises ``BadSourceError``, ``QuantizationNotFoundError``."""
    if is_safetensors(weights[0]):
        raise BadSourceError(f"{wanted} goes with GGUF weights, and these are safetensors")
    there = sorted(name for name in sizes if is_projector(name))
    if wanted in there:
        return wanted
    known = ", ".join(there) or "no mmproj file at all"
    raise QuantizationNotFoundError(f"{wanted!r} is not in the source; it holds {known}", there)
