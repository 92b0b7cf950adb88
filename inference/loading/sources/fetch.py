"""``python -m inference.loading.sources.fetch`` downloads a model's files. It reads a
``FetchOrder`` from stdin, whose end means that the parent has gone, and writes ``FetchMessage``
lines.

A process of its own: ending it cancels a download, which a thread does not allow. Downloaded bytes
stay, and the next download resumes them. Imports no torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import msgspec

from inference.loading.progress import OnProgress, read_order, send
from inference.loading.sources.cached import list_cached
from inference.loading.sources.disk import unwritten
from inference.loading.sources.sources import fetch_files
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_report import LoadFailure, LoadProgress


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    spec: LoadSpec
    cache_dir: str
    free_memory_bytes: int


class Fetching(msgspec.Struct, frozen=True, kw_only=True, tag="fetching"):
    progress: LoadProgress


class Fetched(msgspec.Struct, frozen=True, kw_only=True, tag="fetched"):
    weights: list[str]
    weight_bytes: int
    new_files: dict[str, list[str]] = {}
    """The files that were missing before: ``source@revision`` -> names, as in ``CachedModel``."""


class FetchFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    failure: LoadFailure
    new_files: dict[str, list[str]] = {}


FetchMessage = Fetching | Fetched | FetchFailed

decode_message = msgspec.json.Decoder(FetchMessage).decode
decode_order = msgspec.json.Decoder(FetchOrder).decode


def main() -> NoReturn:
    """Exit without waiting for the threads: one reads, another may still be downloading."""
    order = decode_order(read_order())
    outcome = fetch(order, lambda progress: send(Fetching(progress=progress)))
    send(outcome)
    os._exit(0 if isinstance(outcome, Fetched) else 1)


def fetch(order: FetchOrder, on_progress: OnProgress) -> Fetched | FetchFailed:
    cache_dir = Path(order.cache_dir)
    before = _cached_names(cache_dir, order.spec)
    try:
        files = fetch_files(order.spec, cache_dir, order.free_memory_bytes, on_progress)
    except (LoadError, OSError) as error:
        named = unwritten(error, cache_dir) if isinstance(error, OSError) else error
        new_files = _new_files(before, cache_dir, order.spec)
        return FetchFailed(failure=named.failure, new_files=new_files)
    return Fetched(
        weights=[str(path) for path in files.all_weights],
        weight_bytes=sum(path.stat().st_size for path in files.all_weights),
        new_files=_new_files(before, cache_dir, order.spec),
    )


def _cached_names(cache_dir: Path, spec: LoadSpec) -> dict[str, set[str]]:
    """Lists this source's files alone: others may be downloaded at the same time."""
    name = spec.source.partition("==")[0]
    return {
        f"{model.source}@{model.revision}": {file.name for file in model.files} | {*model.missing}
        for model in list_cached(cache_dir)
        if model.source == name or model.source.startswith(f"{name.lower()}-")
    }


def _new_files(
    before: dict[str, set[str]], cache_dir: Path, spec: LoadSpec
) -> dict[str, list[str]]:
    new = {
        key: sorted(names - before.get(key, set()))
        for key, names in _cached_names(cache_dir, spec).items()
    }
    return {key: names for key, names in new.items() if names}


if __name__ == "__main__":
    main()
