"""The paths of huggingface_hub's cache. Kept apart from that library, because importing it takes
long."""

from __future__ import annotations

import os
from pathlib import Path

from inference.settings.neuron import HF_CACHE

REPOSITORY_PREFIX = "models--"


def hub_cache_dir(cache_dir: Path) -> Path:
    """Read from the environment now: huggingface_hub's own constants are read at import."""
    if chosen := HF_CACHE.read(os.environ):
        return Path(chosen).expanduser()
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return cache_dir / "huggingface"


def repository_dir(hub_dir: Path, repo: str) -> Path:
    """Returns the directory in which the cache keeps a repository: ``blobs``, ``snapshots``,
    ``refs``; and ``pending``, which is ours."""
    return hub_dir / (REPOSITORY_PREFIX + repo.replace("/", "--"))
