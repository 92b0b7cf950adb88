"""``huggingface:org/name``: the files of one model out of a hub repository, through its cache.
Named sources are read the same way, each from its endpoint and through its own cache.

Hugging Face's cache is the user's own (HF_HUB_CACHE, HF_HOME) where it is set, else under our data
directory. Cached files need no network, and with HF_HUB_OFFLINE none is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
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

from inference.loading.embedding.embedding_config import check_directory_config
from inference.loading.progress import OnProgress, run_watched
from inference.loading.sources.disk import bytes_under, check_disk, is_disk_full
from inference.loading.sources.files import (
    SAFETENSORS_INDEX,
    TEXT_FILES,
    ModelFiles,
    choose_files,
    config_files,
    is_safetensors,
    wanted_files,
)
from inference.loading.sources.hub import HuggingFaceHub, RepositoryListing, TransportError
from inference.loading.sources.hub_sources import HUGGINGFACE_SOURCE, HubSource, repository_dir
from inference.loading.sources.resumed import (
    PendingFile,
    partial_bytes,
    pending_add,
    pending_remove,
)
from inference.models.families.registry import check_gguf_architecture, may_read_images
from inference.protocol.load_errors import (
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    LoadError,
    MissingFileError,
    RepoFetchFailedError,
)
from inference.protocol.load_progress import LoadProgress, LoadStage


def download(
    repo: str,
    *,
    revision: str | None,
    wanted: str | None,
    cache_dir: Path,
    free_bytes: int,
    on_progress: OnProgress,
    source: HubSource = HUGGINGFACE_SOURCE,
    hub: HuggingFaceHub | None = None,
) -> ModelFiles:
    """Raises ``LoadError``. ``wanted``: a load's ``file``. ``free_bytes``: what a choice among
    several quants must fit."""
    hub = hub or HuggingFaceHub(source.endpoint, source.token)
    hub_dir = source.directory(cache_dir)
    try:
        listing = hub.list_files(repo, revision)
    except (HfHubHTTPError, HFValidationError) as error:
        raise _named(source, repo, revision, error) from error
    except (OfflineModeIsEnabled, TransportError) as error:
        return _from_cache(repo, revision, wanted, hub_dir, free_bytes, error)
    chosen = choose_files(
        listing.sizes,
        wanted_files(wanted),
        free_bytes,
        reads_images=may_read_images(listing.gguf_architecture),
    )
    weights = chosen.weights
    texts = [name for name in TEXT_FILES if name in listing.sizes]
    if len(weights) > 1 and SAFETENSORS_INDEX in listing.sizes:
        texts.append(SAFETENSORS_INDEX)
    try:
        _check_runs_here(hub, repo, listing, texts, weights, hub_dir)
        paths = _fetch_all(hub, repo, listing, [*texts, *chosen.names], hub_dir, on_progress)
        # By name this time: so the cache learns which commit the name means, for days offline.
        hub.fetch(repo, revision or "main", [*texts, *weights][0], hub_dir)
    except (TransportError, LocalEntryNotFoundError, OSError) as error:
        raise _named(source, repo, revision, error) from error
    directory = paths[weights[0]].parents[weights[0].count("/")]
    return chosen.at(directory, paths.__getitem__)


def _check_runs_here(
    hub: HuggingFaceHub,
    repo: str,
    listing: RepositoryListing,
    texts: Sequence[str],
    weights: Sequence[str],
    hub_dir: Path,
) -> None:
    """Checks by small files, before gigabytes are fetched."""
    if not is_safetensors(weights[0]):
        if listing.gguf_architecture is not None:
            check_gguf_architecture(listing.gguf_architecture)
        return
    if "config.json" not in texts:
        raise MissingFileError(f"{repo} has no config.json, which safetensors cannot do without")
    configs = {name: hub.fetch(repo, listing.commit, name, hub_dir) for name in config_files(texts)}
    check_directory_config(configs["config.json"].parent)


def download_folder(
    repo: str,
    revision: str | None,
    wanted: Sequence[str],
    cache_dir: Path,
    on_progress: OnProgress,
    hub: HuggingFaceHub | None = None,
    source: HubSource = HUGGINGFACE_SOURCE,
) -> Path | None:
    """The folder with those files of ``wanted`` that the repository has; ``None``: it has none of
    them. Raises ``LoadError``."""
    hub = hub or HuggingFaceHub(source.endpoint, source.token)
    hub_dir = source.directory(cache_dir)
    try:
        listing = hub.list_files(repo, revision)
        names = [name for name in wanted if name in listing.sizes]
        if not names:
            return None
        paths = _fetch_all(hub, repo, listing, names, hub_dir, on_progress)
        hub.fetch(repo, revision or "main", names[0], hub_dir)  # the cache learns what that means
    except (OfflineModeIsEnabled, TransportError, LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, HfHubHTTPError):
            raise _named(source, repo, revision, error) from error
        return _cached_snapshot(repo, revision, hub_dir, error)
    except HFValidationError as error:
        raise _named(source, repo, revision, error) from error
    return paths[names[0]].parent


def _fetch_all(
    hub: HuggingFaceHub,
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
    resumed_bytes = partial_bytes(repository, wanted.values())
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
    chosen = choose_files(sizes, wanted_files(wanted), free_bytes)
    return chosen.at(snapshot, lambda name: snapshot / name)


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


def _named(source: HubSource, repo: str, revision: str | None, error: Exception) -> LoadError:
    """In the operator's words; the cause keeps the hub's."""
    if is_disk_full(error):
        return DiskFullError(f"the disk was full before all of {repo} was downloaded: {error}")
    if isinstance(error, HFValidationError):
        return BadSourceError(f"{repo!r} is not a repository name; write {source.scheme}:org/name")
    if isinstance(error, GatedRepoError):
        return RepoFetchFailedError(
            f"{repo} is gated: it needs a token that was granted access. Ask for access on the "
            f"repository's page, and set {source.token_words} on this host"
        )
    if isinstance(error, RevisionNotFoundError):
        return RepoFetchFailedError(f"{repo} has no revision {revision!r}")
    if isinstance(error, RepositoryNotFoundError):
        return RepoFetchFailedError(
            f"{source.owner} has no repository {repo}, or it is private and "
            f"{source.token_words} may not read it"
        )
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return RepoFetchFailedError(f"{repo}: a listed file is gone: {_first_line(error)}")
    return DownloadFailedError(f"{repo} could not be downloaded: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
