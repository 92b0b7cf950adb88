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


class Repository:
    """One repository of a hub, at one revision, and what the cache holds of it."""

    def __init__(
        self,
        repo: str,
        revision: str | None,
        cache_dir: Path,
        on_progress: OnProgress,
        *,
        source: HubSource = HUGGINGFACE_SOURCE,
        hub: HuggingFaceHub | None = None,
    ) -> None:
        self._repo = repo
        self._revision = revision
        self._source = source
        self._hub = hub or HuggingFaceHub(source.endpoint, source.token)
        self._hub_dir = source.directory(cache_dir)
        self._on_progress = on_progress

    def download(self, wanted: str | None, free_bytes: int) -> ModelFiles:
        """``wanted``: a load's ``file``. ``free_bytes``: the memory that a choice among several
        quants must fit. Raises ``LoadError``."""
        try:
            listing = self._hub.list_files(self._repo, self._revision)
        except (HfHubHTTPError, HFValidationError) as error:
            raise self._named(error) from error
        except (OfflineModeIsEnabled, TransportError) as error:
            return self._from_cache(wanted, free_bytes, error)
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
            self._check_runs_here(listing, texts, weights)
            paths = self._fetch_all(listing, [*texts, *chosen.names])
        except (TransportError, LocalEntryNotFoundError, OSError) as error:
            raise self._named(error) from error
        directory = paths[weights[0]].parents[weights[0].count("/")]
        return chosen.at(directory, paths.__getitem__)

    def download_folder(self, wanted: Sequence[str]) -> Path | None:
        """The folder with those files of ``wanted`` that the repository has; ``None``: it has none
        of them. Raises ``LoadError``."""
        try:
            listing = self._hub.list_files(self._repo, self._revision)
            names = [name for name in wanted if name in listing.sizes]
            if not names:
                return None
            return self._fetch_all(listing, names)[names[0]].parent
        except (OfflineModeIsEnabled, TransportError, LocalEntryNotFoundError, OSError) as error:
            if isinstance(error, HfHubHTTPError):
                raise self._named(error) from error
            return self._cached_snapshot(error)
        except HFValidationError as error:
            raise self._named(error) from error

    def _check_runs_here(
        self, listing: RepositoryListing, texts: Sequence[str], weights: Sequence[str]
    ) -> None:
        """Checks by small files, before gigabytes are fetched."""
        if not is_safetensors(weights[0]):
            if listing.gguf_architecture is not None:
                check_gguf_architecture(listing.gguf_architecture)
            return
        if "config.json" not in texts:
            raise MissingFileError(
                f"{self._repo} has no config.json, which safetensors cannot do without"
            )
        configs = {name: self._fetch(listing.commit, name) for name in config_files(texts)}
        check_directory_config(configs["config.json"].parent)

    def _fetch_all(self, listing: RepositoryListing, names: Sequence[str]) -> dict[str, Path]:
        total = sum(listing.sizes[name] for name in names)
        repository = repository_dir(self._hub_dir, self._repo)
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
            listing.sizes[name] for name in names if not self._is_cached(listing.commit, name)
        )
        check_disk(blobs_dir, missing - resumed_bytes, self._repo)

        def fetch() -> None:
            for name in names:
                finished[name] = self._fetch(listing.commit, name)
            pending_remove(repository, listing.commit, names)

        def report() -> None:
            # Bytes of earlier downloads (other quants too) are not this one's progress, except in
            # files that are finished without a transfer.
            transferred = bytes_under(blobs_dir) - bytes_before
            known = sum(listing.sizes[name] for name in list(finished))
            done = min(total, max(transferred, known))
            check_disk(blobs_dir, missing - transferred, self._repo)
            self._on_progress(
                LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail=self._repo)
            )

        run_watched(fetch, report)
        # By name this time: so the cache learns which commit the name means, for days offline.
        self._fetch(self._revision or "main", names[0])
        return finished

    def _fetch(self, revision: str, name: str) -> Path:
        return self._hub.fetch(self._repo, revision, name, self._hub_dir)

    def _is_cached(self, commit: str, name: str) -> bool:
        cached = try_to_load_from_cache(self._repo, name, cache_dir=self._hub_dir, revision=commit)
        return isinstance(cached, str)

    def _from_cache(self, wanted: str | None, free_bytes: int, cause: Exception) -> ModelFiles:
        snapshot = self._cached_snapshot(cause)
        sizes = {
            path.relative_to(snapshot).as_posix(): path.stat().st_size
            for path in snapshot.rglob("*")
            if path.is_file()
        }
        chosen = choose_files(sizes, wanted_files(wanted), free_bytes)
        return chosen.at(snapshot, lambda name: snapshot / name)

    def _cached_snapshot(self, cause: Exception) -> Path:
        """The newest that an earlier download left."""
        try:
            return Path(
                snapshot_download(
                    self._repo,
                    revision=self._revision,
                    cache_dir=self._hub_dir,
                    local_files_only=True,
                )
            )
        except (LocalEntryNotFoundError, HFValidationError):
            raise DownloadFailedError(
                f"{self._repo} is not in the cache and the hub cannot be asked: "
                f"{_first_line(cause)}"
            ) from cause

    def _named(self, error: Exception) -> LoadError:
        """In the operator's words; the cause keeps the hub's."""
        repo, source = self._repo, self._source
        if is_disk_full(error):
            return DiskFullError(f"the disk was full before all of {repo} was downloaded: {error}")
        if isinstance(error, HFValidationError):
            return BadSourceError(
                f"{repo!r} is not a repository name; write {source.scheme}:org/name"
            )
        if isinstance(error, GatedRepoError):
            return RepoFetchFailedError(
                f"{repo} is gated: it needs a token that was granted access. Ask for access on the "
                f"repository's page, and set {source.token_words} on this host"
            )
        if isinstance(error, RevisionNotFoundError):
            return RepoFetchFailedError(f"{repo} has no revision {self._revision!r}")
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
