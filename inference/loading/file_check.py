"""``python -m inference.loading.file_check`` reads a model's configs and file headers, as a load
does first, and reports what the load would refuse, or what the model's layers take.

A process of its own, so that it can be bounded in time and files that break it break nothing else.
Reads no weights, changes nothing on the disk and uses no network.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from inference.loading.progress import read_order, send
from inference.loading.sources.files import (
    ModelFiles,
    WantedFiles,
    gguf_variants,
    is_projector,
    is_safetensors,
    wanted_files,
)
from inference.loading.sources.sources import fetch_files, parse_source
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_report import LoadFailure, PackedCosts

if TYPE_CHECKING:
    from inference.models.config import ModelConfig


class FileCheckOrder(msgspec.Struct, frozen=True, kw_only=True):
    spec: LoadSpec
    weights: list[str]
    """Paths of the downloaded weights, the model's own first; empty for a ``path:`` source."""
    free_memory_bytes: int
    weighs: bool = False
    """Requests the layers' costs instead of a check."""


class FileCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    failure: LoadFailure | None
    costs: PackedCosts | None = None


decode_order = msgspec.json.Decoder(FileCheckOrder).decode
decode_result = msgspec.json.Decoder(FileCheckResult).decode


def main() -> NoReturn:
    send(check(decode_order(read_order())))
    os._exit(0)


def check(order: FileCheckOrder) -> FileCheckResult:
    try:
        if order.weighs:
            return FileCheckResult(failure=None, costs=_costs(order))
        _check_files(order)
    except LoadError as error:
        return FileCheckResult(failure=error.failure)
    return FileCheckResult(failure=None)


def _costs(order: FileCheckOrder) -> PackedCosts:
    from inference.loading.model_costs import packed
    from inference.loading.read_costs import read_costs

    paths = [Path(path) for path in order.weights]
    return packed(read_costs(_model_files(order.spec, paths, order.free_memory_bytes), order.spec))


def _check_files(order: FileCheckOrder) -> None:
    # The neuron imports this module for its messages: readers are imported where they are used.
    from inference.loading.described import check_draft_config, takes_draft_model

    spec, paths = order.spec, [Path(path) for path in order.weights]
    own = _model_files(spec, paths, order.free_memory_bytes)
    config, drafting = _checked_config(own, spec), draft_spec(spec)
    if drafting is None or config is None or not takes_draft_model(config):
        return
    others = [path for path in paths if path not in own.all_weights]
    if others or parse_source(drafting.source).path is not None:
        draft = _model_files(drafting, others, order.free_memory_bytes)
        if (draft_config := _checked_config(draft, drafting)) is not None:
            check_draft_config(draft_config, drafting.source)


def _checked_config(files: ModelFiles, spec: LoadSpec) -> ModelConfig | None:
    from inference.loading.described import describe_model
    from inference.loading.embedding_loader import check_embedding_tensors
    from inference.loading.hub_config import read_embedding_config

    if not files.is_gguf and (embedding := read_embedding_config(files.directory)) is not None:
        check_embedding_tensors(files, embedding)
        return None
    device_type = spec.devices[0].partition(":")[0] if spec.devices else "cpu"
    described = describe_model(files, device_type)
    described.files.close()
    return described.config


def _model_files(spec: LoadSpec, paths: Sequence[Path], free_memory_bytes: int) -> ModelFiles:
    if parse_source(spec.source).path is not None:
        # A hash would read the weights.
        spec = msgspec.structs.replace(spec, sha256=None)
        return fetch_files(spec, Path(), free_memory_bytes, lambda _: None)
    return _first_model(paths, wanted_files(spec.file))


def _first_model(paths: Sequence[Path], wanted: WantedFiles) -> ModelFiles:
    """Several models may lie in one directory as GGUF. An mmproj file is among ``paths`` where a
    load reads one."""
    first = paths[0]
    beside = {path.name: path for path in paths if path.parent == first.parent}
    if not is_safetensors(first.name):
        variants = gguf_variants(dict.fromkeys(beside, 0))
        names = next(one.names for one in variants if first.name in one.names)
    else:
        names = tuple(name for name in beside if name.endswith(first.suffix))
    return ModelFiles(
        directory=first.parent,
        weights=tuple(beside[name] for name in names),
        projector=next((path for path in paths if is_projector(path.name)), None),
        wanted=wanted,
    )


if __name__ == "__main__":
    main()
