"""Reads an adapter's files, as PEFT writes them: names are the base model's, after
``base_model.model.``. What cannot be computed here is refused by name, from the headers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from inference.loading.checked_config import LARGEST_NUMBER
from inference.loading.progress import OnProgress
from inference.loading.sources.disk import check_sha256
from inference.loading.sources.sources import parse_source, repository_of
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.protocol.load import AdapterSpec
from inference.protocol.load_errors import (
    BadAdapterError,
    BadFileError,
    BadSourceError,
    MissingFileError,
    shape_in_words,
)

MOST_RANK = 512
REFUSED_FLAGS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "a bias in lora_B (lora_bias)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "modules_to_save": "whole modules beside the adapter (modules_to_save)",
    "trainable_token_indices": "trained rows of the embedding (trainable_token_indices)",
    "target_parameters": "parameters of experts (target_parameters)",
    "layer_replication": "replicated layers (layer_replication)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "arrow_config": "routing between adapters (arrow_config)",
}
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Beginnings of ``init_lora_weights`` by which training changes the base model, too."""
CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    rank: int
    alpha: float
    is_rank_stabilized: bool
    targets: tuple[str, ...] | str
    """Endings of names, or an expression that whole names match; ``all-linear``: all."""
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    changes_some_layers: bool

    def rank_of(self, name: str) -> int:
        return _matching(self.rank_pattern, name, self.rank)

    def scale_of(self, name: str) -> float:
        alpha = _matching(self.alpha_pattern, name, self.alpha)
        rank = self.rank_of(name)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)

    def is_target(self, name: str) -> bool:
        """``name`` as the base model's files have it, without ``.weight``."""
        if self.targets == "all-linear":
            return True
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in self.targets)


def read_adapter_config(document: object) -> AdapterConfig:
    if not isinstance(document, dict):
        raise BadAdapterError("adapter_config.json is not an object")
    _refuse_unsupported(document)
    targets = document.get("target_modules")
    if isinstance(targets, list) and targets and all(isinstance(t, str) for t in targets):
        targets = "all-linear" if targets == ["all-linear"] else tuple(targets)
    elif isinstance(targets, str):
        _check_expression("target_modules", targets)
    else:
        raise BadAdapterError("adapter_config.json names no target_modules")
    some_layers = ("layers_to_transform", "layers_pattern", "exclude_modules")
    return AdapterConfig(
        rank=_rank(document.get("r"), "r"),
        alpha=_number(document.get("lora_alpha"), "lora_alpha"),
        is_rank_stabilized=bool(document.get("use_rslora", False)),
        targets=targets,
        rank_pattern=_pattern(document, "rank_pattern", _rank),
        alpha_pattern=_pattern(document, "alpha_pattern", _number),
        changes_some_layers=any(document.get(name) for name in some_layers),
    )


def _refuse_unsupported(document: Mapping[str, Any]) -> None:
    kind = document.get("peft_type", "LORA")
    if kind != "LORA":
        raise BadAdapterError(f"the adapter is of the kind {kind!r}; LORA alone is supported")
    for name, words in REFUSED_FLAGS.items():
        if document.get(name):
            raise BadAdapterError(f"the adapter has {words}, which is not supported")
    bias = document.get("bias", "none")
    if bias != "none":
        raise BadAdapterError(f"the adapter has bias {bias!r}; only 'none' is supported")
    how = document.get("init_lora_weights", True)
    if isinstance(how, str) and how.lower().startswith(CHANGES_BASE):
        raise BadAdapterError(
            f"the adapter was begun with init_lora_weights {how!r}, which changes the base model; "
            "convert it to a plain LoRA when saving it"
        )


def _pattern(
    document: Mapping[str, Any], field: str, read: Callable[[object, str], Number]
) -> dict[str, Number]:
    pattern = document.get(field) or {}
    if not isinstance(pattern, dict):
        raise BadAdapterError(f"{field} of adapter_config.json is not an object")
    for name in pattern:
        _check_expression(field, name)
    return {name: read(value, f"{field} of {name}") for name, value in pattern.items()}


def _matching(pattern: Mapping[str, Number], name: str, otherwise: Number) -> Number:
    keys = (key for key in pattern if re.fullmatch(rf"(?:.*\.)?(?:{key})", name))
    return next((pattern[key] for key in keys), otherwise)


def _check_expression(field: str, expression: str) -> None:
    try:
        re.compile(expression)
    except re.error as error:
        raise BadAdapterError(f"{field} holds {expression!r}: {error}") from None


def _rank(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_RANK:
        raise BadAdapterError(f"{field} is {value!r}; a rank is from 1 to {MOST_RANK}")
    return value


def _number(value: object, field: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(number := float(value)) <= LARGEST_NUMBER:  # type: ignore[arg-type]
        raise BadAdapterError(f"{field} is {value!r}, which is not a number")
    return number


@dataclass(frozen=True, slots=True)
class OpenedAdapter:
    weights: AdapterWeights
    fingerprint: str


def open_adapter(
    spec: AdapterSpec, config: ModelConfig, cache_dir: Path, on_progress: OnProgress
) -> OpenedAdapter:
    """Blocks while it downloads. Raises ``LoadError``."""
    directory = _fetch(spec, cache_dir, on_progress)
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if not (directory / name).is_file():
            raise MissingFileError(f"{spec.source} has no {name}")
    if spec.sha256 is not None:
        check_sha256(directory / WEIGHTS_NAME, spec.sha256)
    text = (directory / CONFIG_NAME).read_bytes()
    try:
        adapter = read_adapter_config(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadAdapterError(f"{CONFIG_NAME} is not JSON: {error}") from None
    weights = read_adapter(directory / WEIGHTS_NAME, adapter, config)
    return OpenedAdapter(weights, _fingerprint(text, directory / WEIGHTS_NAME))


def read_adapter(path: Path, adapter: AdapterConfig, config: ModelConfig) -> AdapterWeights:
    files = SafetensorsFiles([path])
    try:
        pairs = _pairs(files, config)
        _check(files, pairs, adapter, config)
        modules = {
            name: LowRank(
                down=files[pair.down].dense(),
                up=files[pair.up].dense(),
                scale=adapter.scale_of(pair.file_name),
            )
            for name, pair in pairs.items()
        }
    finally:
        files.close()
    for name, module in modules.items():
        if not (module.down.isfinite().all() and module.up.isfinite().all()):
            raise BadAdapterError(f"the adapter's weights for {name} are not all numbers")
    return AdapterWeights(modules)


class _Pair(NamedTuple):
    down: str
    up: str
    file_name: str


def _pairs(files: SafetensorsFiles, config: ModelConfig) -> Mapping[str, _Pair]:
    halves: dict[str, dict[str, str]] = {}
    for name in files:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise BadAdapterError(f"the adapter holds {name}, which is no part of a plain LoRA")
        halves.setdefault(match[1].removeprefix(_PREFIX), {})[match[2]] = name
    if not halves:
        raise BadAdapterError("the adapter's file is empty")
    hub_name, found = family_of(config).hub_name, {}
    for file_name, both in halves.items():
        for half in "AB":
            if half not in both:
                raise BadAdapterError(f"the adapter's file lacks lora_{half} of {file_name}")
        own_name = hub_name(f"{file_name}.weight").removesuffix(".weight")
        found[own_name] = _Pair(both["A"], both["B"], file_name)
    return found


def _check(
    files: SafetensorsFiles,
    pairs: Mapping[str, _Pair],
    adapter: AdapterConfig,
    config: ModelConfig,
) -> None:
    shapes = adaptable_shapes(config)
    for name, pair in pairs.items():
        if name not in shapes:
            raise BadAdapterError(
                f"the adapter changes {pair.file_name}, which {_why_not(name, config)}"
            )
        if not adapter.is_target(pair.file_name):
            raise BadAdapterError(f"{pair.file_name} is not among the adapter's target_modules")
        out_features, in_features = shapes[name]
        rank = adapter.rank_of(pair.file_name)
        for tensor, wanted in ((pair.down, (rank, in_features)), (pair.up, (out_features, rank))):
            if (shape := files[tensor].shape) != wanted:
                raise BadAdapterError(
                    f"{tensor} is {shape_in_words(shape)} and should be {shape_in_words(wanted)}: "
                    f"rank {rank}, for a base of {shape_in_words((out_features, in_features))}"
                )
    if not adapter.changes_some_layers and isinstance(adapter.targets, tuple):
        for name in shapes:
            if name not in pairs and adapter.is_target(name):
                raise BadAdapterError(f"the adapter's file lacks {name}, one of its target_modules")


def _why_not(name: str, config: ModelConfig) -> str:
    if "embed_tokens" in name or "lm_head" in name:
        return "is an embedding or an output head: those are not adapted"
    if ".mlp." in name and config.experts is not None:
        return "belongs to experts: those are not adapted"
    return f"is no projection of the base model ({config.architecture})"


def _fetch(spec: AdapterSpec, cache_dir: Path, on_progress: OnProgress) -> Path:
    source = parse_source(spec.source)
    if source.path is not None:
        if spec.revision is not None:
            raise BadSourceError("a revision has no meaning for path: sources")
        if not source.path.is_dir():
            raise MissingFileError(f"{source.path.absolute()} is no directory on this host")
        return source.path.absolute()
    if source.scheme == "pypi":
        raise BadSourceError("an adapter comes from a hub or path:")
    repository = repository_of(source, spec.revision, cache_dir, on_progress)
    folder = repository.download_folder((CONFIG_NAME, WEIGHTS_NAME))
    if folder is None:
        raise MissingFileError(f"{source.location} has neither {CONFIG_NAME} nor {WEIGHTS_NAME}")
    return folder


def _fingerprint(config_text: bytes, path: Path) -> str:
    try:
        with path.open("rb") as file:
            of_weights = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise BadFileError(f"{path} cannot be read: {error}") from None
    return hashlib.sha256(config_text + of_weights).hexdigest()
