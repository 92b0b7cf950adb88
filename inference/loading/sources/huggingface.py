"""``huggingface:org/name``: a model's files from a hub repository, through its cache; named sources
too, each through its own. Without the hub, the cache is the listing. Hugging Face's cache is the
user's own (HF_HUB_CACHE, HF_HOME) where it is set, else under our data directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

from inference.loading.hub_config import check_directory_config
from inference.loading.progress import OnProgress, run_watched
from inference.loading.sources.cached import (
    PendingFile,
    partial_bytes,
    pending_add,
    pending_remove,
)
from inference.loading.sources.disk import bytes_under, check_disk, files_under, is_disk_full
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
from inference.models.families.registry import check_gguf_architecture, may_read_images
from inference.protocol.load_errors import (
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    LoadError,
    MissingFileError,
    RepoFetchFailedError,
)
from inference.protocol.load_report import LoadProgress, LoadStage


class Repository:
    def __init__(
        self,
        repo: str,
        revision: str | None,
        cache_dir: Path,
        on_progress: OnProgress,
        *,
        source: HubSource = HUGGINGFACE_SOURCE,
    ) -> None:
        self._repo = repo
        self._revision = revision
        self._source = source
        self._hub = HuggingFaceHub(source.endpoint, source.token)
        self._hub_dir = source.directory(cache_dir)
        self._on_progress = on_progress

    def download(self, wanted: str | None, free_bytes: int) -> ModelFiles:
        """``free_bytes``: memory that a choice among quants must fit. Raises ``LoadError``."""
        with self._named_errors():
            listing = self._listing()
            reads_images = may_read_images(listing.gguf_architecture)
            named = wanted_files(wanted)
            chosen = choose_files(listing.sizes, named, free_bytes, reads_images=reads_images)
            texts = [name for name in TEXT_FILES if name in listing.files]
            if len(chosen.weights) > 1 and SAFETENSORS_INDEX in listing.files:
                texts.append(SAFETENSORS_INDEX)
            self._check_runs_here(listing, texts, chosen.weights)
            paths = self._fetch_all(listing, [*texts, *chosen.names])
        first = chosen.weights[0]
        return chosen.at(paths[first].parents[first.count("/")], paths.__getitem__)

    def download_folder(self, wanted: Sequence[str]) -> Path | None:
        """``None``: the repository has none of them. Raises ``LoadError``."""
        with self._named_errors():
            listing = self._listing()
            names = [name for name in wanted if name in listing.files]
            return self._fetch_all(listing, names)[names[0]].parent if names else None

    def _listing(self) -> RepositoryListing:
        try:
            return self._hub.list_files(self._repo, self._revision)
        except HfHubHTTPError:
            raise
        except (OfflineModeIsEnabled, TransportError) as error:
            cause = error
        try:
            snapshot = snapshot_download(
                self._repo, revision=self._revision, cache_dir=self._hub_dir, local_files_only=True
            )
        except (LocalEntryNotFoundError, HFValidationError):
            raise DownloadFailedError(
                f"{self._repo} is not in the cache and the hub cannot be asked: "
                f"{_first_line(cause)}"
            ) from cause
        files = {
            path.relative_to(snapshot).as_posix(): PendingFile(num_bytes=stats.st_size)
            for path, stats in files_under(Path(snapshot))
        }
        return RepositoryListing(commit=Path(snapshot).name, files=files)

    def _check_runs_here(
        self, listing: RepositoryListing, texts: Sequence[str], weights: Sequence[str]
    ) -> None:
        """Checks small files before gigabytes are fetched."""
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
        commit, wanted = listing.commit, {name: listing.files[name] for name in names}
        sizes = {name: file.num_bytes for name, file in wanted.items()}
        total = sum(sizes.values())
        repository = repository_dir(self._hub_dir, self._repo)
        blobs_dir = repository / "blobs"
        finished: dict[str, Path] = {}
        pending_add(repository, commit, wanted)
        resumed_bytes = partial_bytes(repository, wanted.values())
        bytes_before = bytes_under(blobs_dir) - resumed_bytes
        missing = sum(sizes[name] for name in names if self._cached(commit, name) is None)
        check_disk(blobs_dir, missing - resumed_bytes, self._repo)

        def fetch() -> None:
            for name in names:
                finished[name] = self._fetch(commit, name)
            pending_remove(repository, commit, names)

        def report() -> None:
            # Bytes of earlier downloads (other quants too) are not this one's progress, except in
            # files that are finished without a transfer.
            transferred = bytes_under(blobs_dir) - bytes_before
            done = min(total, max(transferred, sum(sizes[name] for name in list(finished))))
            check_disk(blobs_dir, missing - transferred, self._repo)
            self._on_progress(
                LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail=self._repo)
            )

        run_watched(fetch, report)
        if self._revision != commit:
            # huggingface_hub's note of the commit that the name means, for days offline.
            ref = repository / "refs" / (self._revision or "main")
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit)
        return finished

    def _fetch(self, commit: str, name: str) -> Path:
        cached = self._cached(commit, name)
        return cached or self._hub.fetch(self._repo, commit, name, self._hub_dir)

    def _cached(self, commit: str, name: str) -> Path | None:
        cached = try_to_load_from_cache(self._repo, name, cache_dir=self._hub_dir, revision=commit)
        return Path(cached) if isinstance(cached, str) else None

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (HFValidationError, TransportError, OSError) as error:
            raise self._named(error) from error

    def _named(self, error: Exception) -> LoadError:
        repo, source = self._repo, self._source
        if is_disk_full(error):
            return DiskFullError(f"the disk was full before all of {repo} was downloaded: {error}")
        match error:
            case HFValidationError():
                return BadSourceError(
                    f"{repo!r} is not a repository name; write {source.scheme}:org/name"
                )
            case GatedRepoError():
                words = (
                    f"{repo} is gated: it needs a token that was granted access. Ask for access on "
                    f"the repository's page, and set {source.token_words} on this host"
                )
            case RevisionNotFoundError():
                words = f"{repo} has no revision {self._revision!r}"
            case RepositoryNotFoundError():
                words = (
                    f"{source.owner} has no repository {repo}, or it is private and "
                    f"{source.token_words} may not read it"
                )
            case EntryNotFoundError() if not isinstance(error, LocalEntryNotFoundError):
                words = f"{repo}: a listed file is gone: {_first_line(error)}"
            case _:
                return DownloadFailedError(f"{repo} could not be downloaded: {_first_line(error)}")
        return RepoFetchFailedError(words)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
