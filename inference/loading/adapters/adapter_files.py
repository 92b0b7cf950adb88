"""An adapter's files: checked against its base model by their headers, and then read.

    adapter_config.json ──────────▶ AdapterConfig ─┐
    adapter_model.safetensors ─▶ names, shapes ────┴─▶ checks ─▶ AdapterWeights

Names in the file are the base model's own, after ``base_model.model.``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.loading.adapters.adapter_config import AdapterConfig, read_adapter_config
from inference.loading.progress import OnProgress
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.sources.disk import check_sha256
from inference.loading.sources.hub_sources import hub_source
from inference.loading.sources.sources import parse_source
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

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")


@dataclass(frozen=True, slots=True)
class OpenedAdapter:
    weights: AdapterWeights
    fingerprint: str
    """A digest of its files' bytes: two adapters of one fingerprint compute the same."""


def open_adapter(
    spec: AdapterSpec, config: ModelConfig, cache_dir: Path, on_progress: OnProgress
) -> OpenedAdapter:
    """Opens an adapter for a model of ``config``. Blocks for as long as a download takes. Raises
    ``LoadError``."""
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
    """Raises ``BadAdapterError`` and ``BadFileError``."""
    files = SafetensorsFiles([path])
    try:
        pairs = _pairs(files, config)
        _check(files, pairs, adapter, config)
        modules = {
            name: LowRank(
                down=files.dense(pair.down),
                up=files.dense(pair.up),
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


@dataclass(frozen=True, slots=True)
class _Pair:
    """Names of an adapted weight's two tensors, and of the weight in the base model's files."""

    down: str
    up: str
    file_name: str


def _pairs(files: SafetensorsFiles, config: ModelConfig) -> Mapping[str, _Pair]:
    """The adapter's pairs of matrices, by the model's names of the weights."""
    halves: dict[str, dict[str, str]] = {}
    for name in files.names:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise BadAdapterError(f"the adapter holds {name}, which is no part of a plain LoRA")
        halves.setdefault(match[1].removeprefix(_PREFIX), {})[match[2]] = name
    if not halves:
        raise BadAdapterError("the adapter's file is empty")
    hub_name = family_of(config).hub_name
    found = {}
    for file_name, both in halves.items():
        if len(both) < 2:
            lacking = "B" if "A" in both else "A"
            raise BadAdapterError(f"the adapter's file lacks lora_{lacking} of {file_name}")
        own_name = hub_name(f"{file_name}.weight").removesuffix(".weight")
        found[own_name] = _Pair(both["A"], both["B"], file_name)
    return found


def _check(
    files: SafetensorsFiles,
    pairs: Mapping[str, _Pair],
    adapter: AdapterConfig,
    config: ModelConfig,
) -> None:
    """Raises ``BadAdapterError``, naming the first that is wrong."""
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
            if (shape := files.shape_of(tensor)) != wanted:
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
    if source.scheme == "path":
        if spec.revision is not None:
            raise BadSourceError("a revision has no meaning for path: sources")
        directory = Path(source.location).expanduser().absolute()
        if not directory.is_dir():
            raise MissingFileError(f"{directory} is no directory on this host")
        return directory
    hub = hub_source(source.scheme)
    if hub is None:
        raise BadSourceError("an adapter comes from a hub or path:")
    from inference.loading.sources import huggingface

    folder = huggingface.download_folder(
        source.location,
        spec.revision,
        (CONFIG_NAME, WEIGHTS_NAME),
        cache_dir,
        on_progress,
        source=hub,
    )
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
