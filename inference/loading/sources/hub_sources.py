"""The hubs that models come from: Hugging Face's, and those that ``HELEXA_SOURCES`` names.

    huggingface:org/name ─▶ HF_ENDPOINT, HF_TOKEN           <HF_HUB_CACHE, else <cache>/huggingface>
    helexa:org/name ──────▶ its endpoint, its token         <its cache, else <cache>/sources>/helexa

Each has a cache of its own, so that two sources never share files of one ``org/name``, and none is
sent another one's token. Imports neither torch nor huggingface_hub, which takes long.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from inference.settings.neuron import HF_CACHE
from inference.settings.storage import HUGGINGFACE, SOURCES, NamedSource

REPOSITORY_PREFIX = "models--"
NAMED_SOURCES = "sources"


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
    """Holds ``blobs``, ``snapshots`` and ``refs``; and ``pending``, which is ours."""
    return hub_dir / (REPOSITORY_PREFIX + repo.replace("/", "--"))


@dataclass(frozen=True, slots=True)
class HubSource:
    scheme: str = HUGGINGFACE
    endpoint: str | None = None
    """``None``: huggingface_hub's own, which ``HF_ENDPOINT`` names."""
    token: str | bool | None = field(default=None, repr=False)
    """As huggingface_hub takes it: ``None`` means its own token, ``False`` none at all."""
    token_words: str = "HF_TOKEN"
    """The variables that an operator sets for it, for "set … on this host"."""
    owner: str = "the hub"
    """Who answers, as the subject of a sentence."""
    cache: Path | None = None

    def directory(self, cache_dir: Path) -> Path:
        if self.scheme == HUGGINGFACE:
            return hub_cache_dir(cache_dir)
        return (self.cache or cache_dir / NAMED_SOURCES) / self.scheme


HUGGINGFACE_SOURCE = HubSource()


def _named(source: NamedSource) -> HubSource:
    variable = source.token_variable
    return HubSource(
        scheme=source.scheme,
        endpoint=source.endpoint,
        token=(os.environ.get(variable or "") or "").strip() or False,
        token_words=variable or f"token=VARIABLE for {source.scheme} in {SOURCES.name}",
        owner=f"the source {source.scheme}",
        cache=source.cache,
    )


def hub_sources() -> tuple[HubSource, ...]:
    """Hugging Face first. Read from the environment now."""
    named = SOURCES.read(os.environ).by_order
    return (HUGGINGFACE_SOURCE, *(_named(one) for one in named))


def hub_source(scheme: str) -> HubSource | None:
    return next((one for one in hub_sources() if one.scheme == scheme), None)


def is_of_hub(source: str) -> bool:
    return hub_source(source.partition(":")[0]) is not None


def is_downloaded(source: str) -> bool:
    return is_of_hub(source) or source.startswith("pypi:")


def hub_schemes() -> tuple[str, ...]:
    return tuple(one.scheme for one in hub_sources())


def default_scheme() -> str:
    """The source of a bare ``org/name``."""
    return SOURCES.read(os.environ).default_scheme


def hub_directories(cache_dir: Path) -> dict[str, Path]:
    """Includes caches of sources no longer named, so that they can be listed and deleted."""
    found = {one.scheme: one.directory(cache_dir) for one in hub_sources()}
    left = sorted((cache_dir / NAMED_SOURCES).glob("*"))
    return found | {path.name: path for path in left if path.name not in found and path.is_dir()}
