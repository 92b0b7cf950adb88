"""``huggingface:org/name``: the files of one model out of a hub repository, through its cache.

The cache is the user's own (HF_HUB_CACHE, HF_HOME) where it is set, else under our data directory.
Cached files need no network, and with HF_HUB_OFFLINE none is tried. huggingface_hub never resumes a
file, so blobs are transferred by ``resumed`` and linked by huggingface_hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)
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
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from inference.loading.embedding.embedding_config import check_directory_config
from inference.loading.progress import OnProgress
from inference.loading.sources.deadline import DeadlineError, within
from inference.loading.sources.disk import check_disk, is_disk_full
from inference.loading.sources.files import (
    SAFETENSORS_INDEX,
    TEXT_FILES,
    ModelFiles,
    check_shards,
    choose_weights,
    config_files,
)
from inference.loading.sources.folders import bytes_under
from inference.loading.sources.hub_cache import hub_cache_dir, repository_dir
from inference.loading.sources.pending import PendingFile, pending_add, pending_remove
from inference.loading.sources.resumed import partial_of, transfer
from inference.loading.sources.watched import run_watched
from inference.models.families.registry import check_gguf_architecture
from inference.protocol.load import LoadProgress, LoadStage
from inference.protocol.load_errors import (
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    LoadError,
    MissingFileError,
    RepoFetchFailedError,
)

ANSWER_LIMIT_S = 10.0
"""Of each read."""
TOTAL_LIMIT_S = 30.0
"""Of a question that no process asks that is watched."""
SHA256 = re.compile(r"[0-9a-f]{64}")
"""The etag of a large file is its hash; that of a small one is git's."""
# The base of its HTTP client's errors: the client itself is huggingface_hub's own affair.
TransportError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryListing:
    commit: str
    sizes: Mapping[str, int]
    """File name -> bytes."""
    etags: Mapping[str, str] = field(default_factory=dict)
    """File name -> its blob's name, where the hub reports it."""
    gguf_architecture: str | None = None
    """The architecture of a repository of GGUF files, as the hub read it from one of them."""


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
            etags={
                sibling.rfilename: etag
                for sibling in siblings
                if (etag := sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)
            },
            gguf_architecture=(info.gguf or {}).get("architecture"),
        )

    def commit(self, repo: str, revision: str | None) -> str | None:
        """The commit that the revision is at now; ``None`` where the hub does not report it."""
        if constants.HF_HUB_OFFLINE:
            return None
        api = HfApi(endpoint=self._endpoint)
        try:
            return within(
                TOTAL_LIMIT_S,
                lambda: api.model_info(repo, revision=revision, timeout=ANSWER_LIMIT_S).sha,
            )
        except (HfHubHTTPError, HFValidationError, TransportError, OSError, DeadlineError):
            return None

    def fetch(self, repo: str, revision: str, name: str, cache_dir: Path) -> Path:
        cached = try_to_load_from_cache(repo, name, cache_dir=cache_dir, revision=revision)
        if not isinstance(cached, str) and not constants.HF_HUB_OFFLINE:
            self._transfer(repo, revision, name, cache_dir)
        path = hf_hub_download(
            repo, name, revision=revision, cache_dir=cache_dir, endpoint=self._endpoint
        )
        return Path(path)

    def _transfer(self, repo: str, revision: str, name: str, cache_dir: Path) -> None:
        """Leaves the file's blob in the cache, continuing what came of it before."""
        url = hf_hub_url(repo, name, revision=revision, endpoint=self._endpoint)
        headers = build_hf_headers()
        found = get_hf_file_metadata(url, headers=headers)
        if not found.etag or found.size is None:
            return
        blob = repository_dir(cache_dir, repo) / "blobs" / found.etag
        blob.parent.mkdir(parents=True, exist_ok=True)
        is_sha256 = SHA256.fullmatch(found.etag) is not None
        transfer(
            url,  # which redirects to a store of files, each time by another signed address
            blob,
            num_bytes=found.size,
            headers=headers,
            sha256=found.etag if is_sha256 else None,
        )


def download(
    repo: str,
    *,
    revision: str | None,
    wanted: str | None,
    cache_dir: Path,
    free_bytes: int,
    on_progress: OnProgress,
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
    texts = [name for name in TEXT_FILES if name in listing.sizes]
    if len(weights) > 1 and SAFETENSORS_INDEX in listing.sizes:
        texts.append(SAFETENSORS_INDEX)
    try:
        _check_runs_here(hub, repo, listing, texts, weights, hub_dir)
        paths = _fetch_all(hub, repo, listing, [*texts, *weights], hub_dir, on_progress)
        # By name this time: so the cache learns which commit the name means, for days offline.
        hub.fetch(repo, revision or "main", [*texts, *weights][0], hub_dir)
    except (TransportError, LocalEntryNotFoundError, OSError) as error:
        raise _named(repo, revision, error) from error
    directory = paths[weights[0]].parents[weights[0].count("/")]
    return ModelFiles(directory=directory, weights=tuple(paths[name] for name in weights))


def _check_runs_here(
    hub: Hub,
    repo: str,
    listing: RepositoryListing,
    texts: Sequence[str],
    weights: Sequence[str],
    hub_dir: Path,
) -> None:
    """Before gigabytes are fetched, by files that are small. Raises ``LoadError``."""
    if weights[0].endswith(".gguf"):
        if listing.gguf_architecture is not None:
            check_gguf_architecture(listing.gguf_architecture)
        return
    if "config.json" not in texts:
        raise MissingFileError(f"{repo} has no config.json, which safetensors cannot do without")
    configs = {name: hub.fetch(repo, listing.commit, name, hub_dir) for name in config_files(texts)}
    check_directory_config(configs["config.json"].parent)


def download_tokenizer(
    repo: str,
    cache_dir: Path,
    on_progress: OnProgress,
    hub: Hub | None = None,
) -> Path:
    """The folder of a repository's texts (tokenizer, templates, configs), without its weights.
    Raises ``LoadError``."""
    folder = download_folder(repo, None, TEXT_FILES, cache_dir, on_progress, hub)
    if folder is None:
        raise DownloadFailedError(f"{repo} has no tokenizer")
    return folder


def download_folder(
    repo: str,
    revision: str | None,
    wanted: Sequence[str],
    cache_dir: Path,
    on_progress: OnProgress,
    hub: Hub | None = None,
) -> Path | None:
    """The folder with those files of ``wanted`` that the repository has; ``None``: it has none of
    them. Raises ``LoadError``."""
    hub = hub or HuggingFaceHub()
    hub_dir = hub_cache_dir(cache_dir)
    try:
        listing = hub.list_files(repo, revision)
        names = [name for name in wanted if name in listing.sizes]
        if not names:
            return None
        paths = _fetch_all(hub, repo, listing, names, hub_dir, on_progress)
        hub.fetch(repo, revision or "main", names[0], hub_dir)  # the cache learns what that means
    except (OfflineModeIsEnabled, TransportError, LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, HfHubHTTPError):
            raise _named(repo, revision, error) from error
        return _cached_snapshot(repo, revision, hub_dir, error)
    except HFValidationError as error:
        raise _named(repo, revision, error) from error
    return paths[names[0]].parent


def _fetch_all(
    hub: Hub,
    repo: str,
    listing: RepositoryListing,
    names: Sequence[str],
    hub_dir: Path,
    on_progress: OnProgress,
) -> dict[str, Path]:
    total = sum(listing.sizes[name] for name in names)
    repository = repository_dir(hub_dir, repo)
    blobs_dir = repository / "blobs"
    finished: dict[str, Path] = {}
    wanted = {
        name: PendingFile(num_bytes=listing.sizes[name], etag=listing.etags.get(name, ""))
        for name in names
    }
    pending_add(repository, listing.commit, wanted)
    resumed_bytes = _partial_bytes(blobs_dir, wanted.values())
    bytes_before = bytes_under(blobs_dir) - resumed_bytes
    missing = sum(
        listing.sizes[name] for name in names if not _is_cached(repo, listing, name, hub_dir)
    )
    check_disk(blobs_dir, missing - resumed_bytes, repo)

    def fetch() -> None:
        for name in names:
            finished[name] = hub.fetch(repo, listing.commit, name, hub_dir)
        pending_remove(repository, listing.commit, names)

    def report() -> None:
        # Bytes of earlier downloads (other quants too) are not this one's progress, except in files
        # that are finished without a transfer.
        transferred = bytes_under(blobs_dir) - bytes_before
        known = sum(listing.sizes[name] for name in list(finished))
        done = min(total, max(transferred, known))
        check_disk(blobs_dir, missing - transferred, repo)
        on_progress(LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail=repo))

    run_watched(fetch, report)
    return finished


def _is_cached(repo: str, listing: RepositoryListing, name: str, hub_dir: Path) -> bool:
    cached = try_to_load_from_cache(repo, name, cache_dir=hub_dir, revision=listing.commit)
    return isinstance(cached, str)


def _partial_bytes(blobs_dir: Path, files: Iterable[PendingFile]) -> int:
    """Bytes of these files from interrupted downloads, which are resumed."""
    partials = (partial_of(blobs_dir / file.etag) for file in files if file.etag)
    return sum(path.stat().st_size for path in partials if path.is_file())


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
    if is_disk_full(error):
        return DiskFullError(f"the disk was full before all of {repo} was downloaded: {error}")
    if isinstance(error, HFValidationError):
        return BadSourceError(f"{repo!r} is not a repository name; write huggingface:org/name")
    if isinstance(error, GatedRepoError):
        return RepoFetchFailedError(
            f"{repo} is gated: it needs a token that was granted access. Ask for access on the "
            "repository's page, and set HF_TOKEN on this host"
        )
    if isinstance(error, RevisionNotFoundError):
        return RepoFetchFailedError(f"{repo} has no revision {revision!r}")
    if isinstance(error, RepositoryNotFoundError):
        return RepoFetchFailedError(
            f"the hub has no repository {repo}, or it is private and HF_TOKEN may not read it"
        )
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return RepoFetchFailedError(f"{repo}: a listed file is gone: {_first_line(error)}")
    return DownloadFailedError(f"{repo} could not be downloaded: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
