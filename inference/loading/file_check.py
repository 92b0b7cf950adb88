"""``python -m inference.loading.file_check`` reads a model's configs and file headers, as a load
does first, and reports what the load would refuse.

    stdin: one ``FileCheckOrder``, then nothing; its end means that the parent has gone
    stdout: one ``FileCheckResult``

A process of its own, so that it can be bounded in time and files that break it break nothing else.
Reads no weights, changes nothing on the disk and asks no network. torch is imported only for an
architecture of which transformers' own module decides.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from inference.loading.order_child import read_order, send
from inference.loading.sources.files import ModelFiles, gguf_variants
from inference.loading.sources.sources import fetch_files, parse_source
from inference.protocol.load import LoadFailure, LoadSpec
from inference.protocol.load_errors import LoadError


class FileCheckOrder(msgspec.Struct, frozen=True, kw_only=True):
    spec: LoadSpec
    weights: list[str]
    """Paths of the downloaded weight files, the model's own before its draft model's; empty for a
    ``path:`` source."""
    free_memory_bytes: int
    """That a choice among several quants must fit."""


class FileCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    failure: LoadFailure | None
    """``None``: nothing speaks against the files."""


decode_order = msgspec.json.Decoder(FileCheckOrder).decode
decode_result = msgspec.json.Decoder(FileCheckResult).decode


def main() -> NoReturn:
    send(check(decode_order(read_order())))
    os._exit(0)


def check(order: FileCheckOrder) -> FileCheckResult:
    try:
        check_files(_model_files(order))
    except LoadError as error:
        return FileCheckResult(failure=error.failure)
    return FileCheckResult(failure=None)


def check_files(files: ModelFiles) -> None:
    """Raises ``LoadError``: that of the load."""
    if files.is_gguf:
        _check_gguf(files)
    else:
        _check_safetensors(files)


def _check_gguf(files: ModelFiles) -> None:
    # The neuron imports this module for its messages: readers are imported where they are used.
    from inference.loading.gguf.config import read_gguf_config
    from inference.loading.gguf.header import read_headers
    from inference.loading.gguf.vocabulary import check_vocabulary

    header = read_headers(files.weights)
    read_gguf_config(header)
    if not (files.directory / "tokenizer.json").is_file():
        check_vocabulary(header)


def _check_safetensors(files: ModelFiles) -> None:
    from inference.loading.embedding.embedding_config import check_directory_config
    from inference.loading.safetensors.header import open_checked

    check_directory_config(files.directory)
    for path in files.weights:
        open_checked(path, framework="numpy")


def _model_files(order: FileCheckOrder) -> ModelFiles:
    """The files of the model itself: whether a draft model is used, only the load decides. Raises
    ``LoadError``."""
    if parse_source(order.spec.source).scheme == "path":
        # A hash would read the weights.
        spec = msgspec.structs.replace(order.spec, sha256=None)
        return fetch_files(spec, Path(), order.free_memory_bytes, lambda _: None)
    return _own_files([Path(path) for path in order.weights])


def _own_files(weights: Sequence[Path]) -> ModelFiles:
    """The first model's of ``weights``. Several models may lie in one directory as GGUF."""
    first = weights[0]
    beside = {path.name: path for path in weights if path.parent == first.parent}
    if first.suffix == ".gguf":
        variants = gguf_variants(dict.fromkeys(beside, 0))
        names = next(one.names for one in variants if first.name in one.names)
    else:
        names = tuple(name for name in beside if name.endswith(first.suffix))
    return ModelFiles(directory=first.parent, weights=tuple(beside[name] for name in names))


if __name__ == "__main__":
    main()
