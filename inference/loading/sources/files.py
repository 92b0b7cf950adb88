"""Which files of a source make up one model: its weights, and for a GGUF the mmproj file of its
vision tower. Pure: names and sizes in, names out.

    file                        weights                     images
    (empty)                     the best that fit           by the mmproj file beside them
    Q4_K_M                      of that quant               by the mmproj file beside them
    Q4_K_M+mmproj-F16.gguf      of that quant               by that file
    Q4_K_M+none                 of that quant               none
    /models/mmproj-F16.gguf     the best that fit           by that file, of this disk

An mmproj file is looked for in the folder of the weights, else in one above it. Of several, the one
named like the weights is chosen, then the one that names no model; of several types BF16, F16,
Q8_0, F32, then the smallest.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from inference.protocol.load import NO_PROJECTOR
from inference.protocol.load_errors import (
    BadSourceError,
    MissingFileError,
    QuantizationNotFoundError,
)

CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)
TEXT_FILES = (
    *CONFIG_FILES,
    "tokenizer.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "vocab.txt",
)
SENTENCE_CONFIG, TOKENIZER = "sentence_bert_config.json", "tokenizer.json"
SAFETENSORS_INDEX = "model.safetensors.index.json"
SAFETENSORS_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")

SAFETENSORS, GGUF_SUFFIX = ".safetensors", ".gguf"
PROJECTOR_MARK = "mmproj"
MIN_PART = 4
"""A shorter part of a name is ignored."""
SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(r"(?:^|[.\-_/])((?:I|T)?Q\d[A-Z0-9_]*|(?:MX|NV)FP4|BF16|F16|FP16|F32)$")
JOINED_BY = "+"
PREFERRED_TYPES = ("BF16", "F16", "Q8_0", "F32")


@dataclass(frozen=True, slots=True)
class WantedFiles:
    weights: str | None = None
    """A file's name or a quant; ``None``: the best that fit."""
    projector: str | None = None
    """An mmproj file's name, or ``NO_PROJECTOR``; ``None``: the one beside the weights."""

    @property
    def is_text_only(self) -> bool:
        return self.projector == NO_PROJECTOR

    @property
    def names_projector(self) -> bool:
        return self.projector not in (None, NO_PROJECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenFiles:
    weights: tuple[str, ...]
    projector: str | None
    wanted: WantedFiles

    @property
    def names(self) -> tuple[str, ...]:
        return self.weights if self.projector is None else (*self.weights, self.projector)

    def at(self, directory: Path, path_of: Callable[[str], Path]) -> ModelFiles:
        return ModelFiles(
            directory=directory,
            weights=tuple(map(path_of, self.weights)),
            projector=None if self.projector is None else path_of(self.projector),
            wanted=self.wanted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Files on this disk, complete. ``weights`` are all GGUF or all .safetensors, in order."""

    directory: Path
    """Where config.json and the tokenizer lie, when the source has them."""
    weights: tuple[Path, ...]
    projector: Path | None = None
    wanted: WantedFiles = WantedFiles()

    @property
    def all_weights(self) -> tuple[Path, ...]:
        return self.weights if self.projector is None else (*self.weights, self.projector)

    @property
    def is_gguf(self) -> bool:
        """Everything but .safetensors: Ollama's blobs have no suffix."""
        return not is_safetensors(self.weights[0].name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFVariant:
    """One GGUF model of a source: a file, or its shards in order."""

    stem: str
    names: tuple[str, ...]
    num_bytes: int

    @property
    def quant(self) -> str | None:
        return quant_of(self.stem)


def quant_of(stem: str) -> str | None:
    """Like ``Q4_K_M``; ``None``: the name ends with no quant."""
    match = _QUANT.search(stem.upper())
    return match and match[1]


def config_files(names: Collection[str]) -> tuple[str, ...]:
    """Includes an embedding model's tokenizer, which states its lower-casing."""
    wanted = (*CONFIG_FILES, TOKENIZER) if SENTENCE_CONFIG in names else CONFIG_FILES
    return tuple(name for name in wanted if name in names)


def choose_weights(
    sizes: Mapping[str, int], wanted: str | None, free_bytes: int
) -> tuple[str, ...]:
    """``sizes``: name -> bytes. ``wanted``: a file name or a GGUF quant. Without one: the
    safetensors, else the only GGUF, else the largest GGUF that fits ``free_bytes`` with a tenth to
    spare."""
    dense = tuple(sorted(n for n in sizes if SAFETENSORS_NAME.fullmatch(n)))
    variants = gguf_variants(sizes)
    if wanted is not None:
        return _named(wanted, dense, variants)
    if dense:
        return dense
    if not variants:
        raise MissingFileError("the source holds neither model.safetensors nor a .gguf file")
    fitting = [v for v in variants if v.num_bytes * 1.1 <= free_bytes]
    smallest_first = sorted(variants, key=lambda v: v.num_bytes)
    return max(fitting, key=lambda v: v.num_bytes, default=smallest_first[0]).names


def gguf_variants(sizes: Mapping[str, int]) -> list[GGUFVariant]:
    shards: dict[str, list[str]] = {}
    for name in sorted(sizes):
        if is_gguf_name(name) and not is_projector(name):
            shards.setdefault(SHARD.sub("", gguf_stem(name)), []).append(name)
    return [
        GGUFVariant(stem=stem, names=tuple(names), num_bytes=sum(sizes[name] for name in names))
        for stem, names in shards.items()
    ]


def is_gguf_name(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() == GGUF_SUFFIX


def is_safetensors(name: str) -> bool:
    return name.endswith(SAFETENSORS)


def gguf_stem(name: str) -> str:
    return name[: -len(GGUF_SUFFIX)] if is_gguf_name(name) else name


def is_projector(name: str) -> bool:
    return is_gguf_name(name) and PROJECTOR_MARK in PurePosixPath(name).name.lower()


def check_shards(names: Sequence[str]) -> None:
    """Raises ``MissingFileError``."""
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        if match := SHARD.search(stem):
            prefix, total = stem[: match.start()], int(match[2])
            expected = [f"{prefix}-{i:05d}-of-{match[2]}{dot}{suffix}" for i in range(1, total + 1)]
            if missing := [shard for shard in expected if shard not in names]:
                raise MissingFileError(f"{missing[0]} is not there, one of {total} parts")


def _named(wanted: str, dense: tuple[str, ...], variants: Sequence[GGUFVariant]) -> tuple[str, ...]:
    if wanted in dense:
        return dense
    for variant in variants:
        if wanted in variant.names or wanted == variant.stem:
            return variant.names
    matches = _of_quant(wanted, variants)
    if len(matches) == 1:
        return matches[0].names
    if matches:
        choices = [match.names[0] for match in matches]
        names = ", ".join(choices)
        raise QuantizationNotFoundError(f"{wanted!r} is ambiguous; name one of {names}", choices)
    raise _not_found(wanted, dense, variants)


def _of_quant(wanted: str, variants: Sequence[GGUFVariant]) -> list[GGUFVariant]:
    """``q4k`` means Q4_K_M, as llama.cpp reads Q4_K."""
    squeezed = wanted.upper().replace("_", "")
    for name in (squeezed, f"{squeezed}M"):
        found = [v for v in variants if v.quant and v.quant.replace("_", "") == name]
        if found:
            return found
    return [v for v in variants if len(squeezed) >= MIN_PART and wanted.upper() in v.stem.upper()]


def _not_found(
    wanted: str, dense: tuple[str, ...], variants: Sequence[GGUFVariant]
) -> QuantizationNotFoundError:
    choices = [v.quant or v.names[0] for v in variants] + list(dense)
    is_file = wanted.lower().endswith((GGUF_SUFFIX, SAFETENSORS))
    pool = [name for v in variants for name in v.names] if is_file else choices
    by_upper = {name.upper(): name for name in pool}
    near = difflib.get_close_matches(wanted.upper(), list(by_upper), n=1, cutoff=0.0)
    nearest = by_upper[near[0]] if near else None
    there = ", ".join(choices) or "no weight files at all"
    hint = f"; the nearest is {nearest}" if nearest else ""
    return QuantizationNotFoundError(
        f"{wanted!r} is not in the source{hint}; it holds {there}", choices, nearest
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
    """``sizes``: name -> bytes. ``reads_images``: ``False`` looks for no mmproj file. Raises
    ``BadSourceError``, ``MissingFileError``, ``QuantizationNotFoundError``."""
    projector = None
    for _ in range(2):  # the mmproj file takes memory, too, and goes with the weights
        left_bytes = free_bytes - sizes.get(projector or "", 0)
        weights = choose_weights(sizes, wanted.weights, left_bytes)
        if wanted.names_projector:
            projector = _named_projector(sizes, weights, str(wanted.projector))
        elif reads_images and not wanted.is_text_only:
            projector = projector_beside(sizes, weights)
    check_shards(weights)
    return ChosenFiles(weights=weights, projector=projector, wanted=wanted)


def projector_beside(sizes: Mapping[str, int], weights: Sequence[str]) -> str | None:
    if is_safetensors(weights[0]):
        return None
    by_folder: dict[PurePosixPath, list[str]] = {}
    for name in filter(is_projector, sizes):
        by_folder.setdefault(PurePosixPath(name).parent, []).append(name)
    folders = PurePosixPath(weights[0]).parents
    there = next((by_folder[folder] for folder in folders if folder in by_folder), [])
    own = _of_model(there, weights[0], sizes)
    return min(own, key=lambda name: (_rank(name), sizes[name], name), default=None)


def _of_model(there: Sequence[str], weights: str, sizes: Mapping[str, int]) -> list[str]:
    subjects, model = {name: _subject(name) for name in there}, _subject(weights)
    like_it = {subject for subject in subjects.values() if subject and model.startswith(subject)}
    if like_it or "" in subjects.values():
        wanted = max(like_it, key=len, default="")
        return [name for name, subject in subjects.items() if subject == wanted]
    models = {_subject(variant.names[0]) for variant in gguf_variants(sizes)}
    return list(there) if len(models) == 1 else []


def _subject(name: str) -> str:
    """The model that a file is named after, in lower case; empty for ``mmproj-model-f16.gguf``."""
    stem = SHARD.sub("", gguf_stem(PurePosixPath(name).name))
    if quant := quant_of(stem):
        stem = stem[: -len(quant)]
    plain = re.sub(r"[^a-z0-9]", "", stem.lower().replace(PROJECTOR_MARK, ""))
    return "" if plain == "model" else plain


def _rank(name: str) -> int:
    quant = (quant_of(gguf_stem(name)) or "").replace("FP", "F")
    return PREFERRED_TYPES.index(quant) if quant in PREFERRED_TYPES else len(PREFERRED_TYPES)


def _named_projector(sizes: Mapping[str, int], weights: Sequence[str], wanted: str) -> str:
    if is_safetensors(weights[0]):
        raise BadSourceError(f"{wanted} goes with GGUF weights, and these are safetensors")
    there = sorted(name for name in sizes if is_projector(name))
    if wanted in there:
        return wanted
    known = ", ".join(there) or "no mmproj file at all"
    raise QuantizationNotFoundError(f"{wanted!r} is not in the source; it holds {known}", there)
