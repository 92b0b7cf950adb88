"""``huggingface:org/name``: the files of one model out of a hub repository, through its cache.

The cache is the user's own (HF_HUB_CACHE, HF_HOME) where it is set, else under our data directory.
Downloads resume; what is cached needs no network, and with HF_HUB_OFFLINE none is tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from huggingface_hub import HfApi, constants, errors, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inference.loading.errors import BadSourceError, DownloadFailedError, LoadError
from inference.loading.files import (
    SAFETENSORS_INDEX,
    TEXT_FILES,
    ModelFiles,
    check_shards,
    choose_weights,
)
from inference.loading.watched import bytes_under, run_watched
from inference.protocol.load import LoadProgress, LoadStage

# The base of its HTTP client's errors: the client itself is huggingface_hub's own affair.
TransportError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryListing:
    commit: str
    sizes: Mapping[str, int]
    """File name -> bytes."""


class Hub(Protocol):
    """What we ask of the hub. Raises huggingface_hub's errors."""

    def list_files(self, repo: str, revision: str | None) -> RepositoryListing: ...

    def fetch(self, repo: str, revision: str, name: str, cache_dir: Path) -> Path: ...


class HuggingFaceHub:
    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint

    def list_files(self, repo: str, revision: str | None) -> RepositoryListing:
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
        info = HfApi(endpoint=self._endpoint).model_info(
            repo, revision=revision, files_metadata=True
        )
        siblings = info.siblings or []
        return RepositoryListing(
            commit=info.sha or revision or "main",
            sizes={sibling.rfilename: sibling.size or 0 for sibling in siblings},
        )

    def fetch(self, repo: str, revision: str, name: str, cache_dir: Path) -> Path:
        path = hf_hub_download(
            repo, name, revision=revision, cache_dir=cache_dir, endpoint=self._endpoint
        )
        return Path(path)


def hub_cache_dir(cache_dir: Path) -> Path:
    """Read from the environment now: huggingface_hub's own constants are read at import."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return cache_dir / "huggingface"


def download(
    repo: str,
    *,
    revision: str | None,
    wanted: str | None,
    cache_dir: Path,
    free_bytes: int,
    on_progress: Callable[[LoadProgress], None],
    hub: Hub | None = None,
) -> ModelFiles:
    """Raises ``LoadError``. ``wanted`` and ``free_bytes`` as in ``choose_weights``."""
    hub = hub or HuggingFaceHub()
    hub_dir = hub_cache_dir(cache_dir)
    try:
        listing = hub.list_files(repo, revision)
    except (HfHubHTTPError, HFValidationError) as error:
        raise _named(repo, revision, error) from error
    except (OfflineModeIsEnabled, TransportError) as error:
        return _from_cache(repo, revision, wanted, hub_dir, free_bytes, error)
    weights = choose_weights(listing.sizes, wanted, free_bytes)
    check_shards(weights)
    names = [*(name for name in TEXT_FILES if name in listing.sizes), *weights]
    if len(weights) > 1 and SAFETENSORS_INDEX in listing.sizes:
        names.append(SAFETENSORS_INDEX)
    try:
        paths = _fetch_all(hub, repo, listing, names, hub_dir, on_progress)
        # By name this time: so the cache learns which commit the name means, for days offline.
        hub.fetch(repo, revision or "main", names[0], hub_dir)
    except (TransportError, LocalEntryNotFoundError, OSError) as error:
        raise _named(repo, revision, error) from error
    directory = paths[weights[0]].parents[weights[0].count("/")]
    return ModelFiles(directory=directory, weights=tuple(paths[name] for name in weights))


def download_tokenizer(
    repo: str,
    cache_dir: Path,
    on_progress: Callable[[LoadProgress], None],
    hub: Hub | None = None,
) -> Path:
    """The folder of a repository's texts (tokenizer, templates, configs), without its weights.
    Raises ``LoadError``."""
    hub = hub or HuggingFaceHub()
    hub_dir = hub_cache_dir(cache_dir)
    try:
        listing = hub.list_files(repo, None)
        names = [name for name in TEXT_FILES if name in listing.sizes]
        if not names:
            raise DownloadFailedError(f"{repo} has no tokenizer")
        paths = _fetch_all(hub, repo, listing, names, hub_dir, on_progress)
        hub.fetch(repo, "main", names[0], hub_dir)  # the cache learns what the name means
    except (OfflineModeIsEnabled, TransportError, LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, HfHubHTTPError):
            raise _named(repo, None, error) from error
        return _cached_snapshot(repo, None, hub_dir, error)
    except HFValidationError as error:
        raise _named(repo, None, error) from error
    return paths[names[0]].parent


def _fetch_all(
    hub: Hub,
    repo: str,
    listing: RepositoryListing,
    names: Sequence[str],
    hub_dir: Path,
    on_progress: Callable[[LoadProgress], None],
) -> dict[str, Path]:
    total = sum(listing.sizes[name] for name in names)
    blobs_dir = hub_dir / f"models--{repo.replace('/', '--')}" / "blobs"
    finished: dict[str, Path] = {}
    bytes_before = bytes_under(blobs_dir)

    def fetch() -> None:
        for name in names:
            finished[name] = hub.fetch(repo, listing.commit, name, hub_dir)

    def tell() -> None:
        # What came of earlier downloads (other quants too) is not this one's progress, except in
        # files that are finished without a transfer.
        transferred = bytes_under(blobs_dir) - bytes_before
        known = sum(listing.sizes[name] for name in list(finished))
        done = min(total, max(transferred, known))
        on_progress(LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail=repo))

    run_watched(fetch, tell)
    return finished


def _from_cache(
    repo: str,
    revision: str | None,
    wanted: str | None,
    hub_dir: Path,
    free_bytes: int,
    cause: Exception,
) -> ModelFiles:
    snapshot = _cached_snapshot(repo, revision, hub_dir, cause)
    sizes = {
        path.relative_to(snapshot).as_posix(): path.stat().st_size
        for path in snapshot.rglob("*")
        if path.is_file()
    }
    weights = choose_weights(sizes, wanted, free_bytes)
    check_shards(weights)
    return ModelFiles(directory=snapshot, weights=tuple(snapshot / name for name in weights))


def _cached_snapshot(repo: str, revision: str | None, hub_dir: Path, cause: Exception) -> Path:
    """The newest that an earlier download left."""
    try:
        return Path(
            snapshot_download(repo, revision=revision, cache_dir=hub_dir, local_files_only=True)
        )
    except (LocalEntryNotFoundError, HFValidationError):
        raise DownloadFailedError(
            f"{repo} is not in the cache and the hub cannot be asked: {_first_line(cause)}"
        ) from cause


def _named(repo: str, revision: str | None, error: Exception) -> LoadError:
    """What went wrong in the operator's words; the cause keeps the hub's."""
    if isinstance(error, HFValidationError):
        return BadSourceError(f"{repo!r} is not a repository name; write huggingface:org/name")
    if isinstance(error, GatedRepoError):
        return DownloadFailedError(
            f"{repo} is gated: accept its terms on the hub and set HF_TOKEN on this host"
        )
    if isinstance(error, RevisionNotFoundError):
        return BadSourceError(f"{repo} has no revision {revision!r}")
    if isinstance(error, RepositoryNotFoundError):
        return BadSourceError(
            f"the hub has no repository {repo}, or it is private and HF_TOKEN may not read it"
        )
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return DownloadFailedError(f"{repo}: a listed file is gone: {_first_line(error)}")
    return DownloadFailedError(f"{repo} could not be downloaded: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
