"""Locates a model's prefixes on disk, and computes a fingerprint of the model they belong to."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.cache.prefix_files import PrefixFiles
from inference.loading.loader import OpenedModel
from inference.models.backend import AnyModel
from inference.protocol.load import LoadSpec

LAYOUT = 1
"""The version of how blocks are laid out: raised when the same numbers come to lie elsewhere."""


def open_prefix_files(spec: LoadSpec, data_dir: Path) -> PrefixFiles | None:
    """The prefix files of the catalogue model. ``None`` where it has none configured; the files of
    previous instances are deleted then."""
    directory = data_dir / "prefixes" / re.sub(r"[^A-Za-z0-9._-]", "_", spec.model)
    if spec.prefix_disk_bytes is None:
        shutil.rmtree(directory, ignore_errors=True)
        return None
    return PrefixFiles(directory, spec.prefix_disk_bytes)


def prefix_fingerprint(opened: OpenedModel, model: AnyModel, execution: str) -> str:
    """A digest of all that decides what a block holds beside its tokens and its salt: the weights'
    files (by name, size and time of change), what became of them while loading, the code that
    computes, and what keys and values are stored as."""
    files = [
        (path.name, status.st_size, status.st_mtime_ns)
        for path in (*opened.weight_paths, opened.projector)
        if path is not None
        for status in [path.stat()]
    ]
    parts = (
        LAYOUT,
        files,
        model.config,
        opened.weights.report(),
        str(model.dtype),
        model.device.type,
        model.kv_format,
        DEFAULT_BLOCK_TOKENS,
        execution,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
