"""Downloads in the cache: listed, and removed file by file. Imports no torch.

    <hub cache>/models--org--name/snapshots/<commit>/<file> ─▶ ../../blobs/<hash>     a hub's
    <cache>/pypi/<package>/…                                                          pypi
    <cache>/pypi/.unfinished-<package>/<wheel>.incomplete     pypi, where it was broken off

A blob goes with the last snapshot that points to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from inference.loading.sources.disk import bytes_under, files_under, is_locked
from inference.loading.sources.hub_sources import REPOSITORY_PREFIX, hub_directories, repository_dir
from inference.loading.sources.pypi import (
    LOCK,
    UNFINISHED_PREFIX,
    unfinished_directory,
    unfinished_wheel,
    unfinished_wheel_bytes,
)
from inference.loading.sources.resumed import (
    INCOMPLETE,
    Pending,
    partial_bytes,
    pending_blobs,
    pending_commits,
    pending_of,
    pending_remove,
)
from inference.protocol.downloads import CachedFile, CachedModel
from inference.protocol.load_errors import BadSourceError

ORPHAN_AFTER_S = 3600.0
"""A partial file without a download that continues it is an orphan after so long without a write:
other programs may download to the same cache."""


def list_cached(cache_dir: Path) -> list[CachedModel]:
    """The cached models, sorted by source and revision. Files that vanish meanwhile are left
    out."""
    packages_dir = cache_dir / "pypi"
    found = [
        *(
            model
            for scheme, hub_dir in hub_directories(cache_dir).items()
            for model in _hub_models(scheme, hub_dir)
        ),
        *_packages(packages_dir),
        *_unfinished_packages(packages_dir),
    ]
    return sorted(found, key=lambda model: (model.source, model.revision))


def delete_cached(cache_dir: Path, source: str, revision: str, names: Collection[str] = ()) -> int:
    """Delete the files ``names``, or all if it is empty. Missing files count as deleted. Returns
    the freed bytes. Raises ``BadSourceError`` for a source that this cache does not hold."""
    scheme, _, location = source.partition(":")
    if (hub_dir := hub_directories(cache_dir).get(scheme)) is not None:
        return _delete_snapshot(_repository_dir(hub_dir, location), revision, names)
    if scheme == "pypi":
        return _delete_packages(cache_dir / "pypi", location, revision)
    raise BadSourceError(f"{source} is not downloaded: there is nothing to delete")


def cached_directory(cache_dir: Path, source: str, revision: str) -> Path:
    scheme, _, location = source.partition(":")
    if (hub_dir := hub_directories(cache_dir).get(scheme)) is not None:
        return _repository_dir(hub_dir, location) / "snapshots" / revision
    return cache_dir / "pypi" / location


def sweep_orphans(
    cache_dir: Path, now_unix_s: float | None = None, *, only_source: str | None = None
) -> dict[str, int]:
    """Deletes partial files that no download will continue. Returns the freed bytes by source."""
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    freed: dict[str, int] = {}
    for scheme, hub_dir in hub_directories(cache_dir).items():
        for repository in _repositories(hub_dir):
            source = _source_of(scheme, repository)
            if only_source not in (None, source):
                continue
            for path, num_bytes in _orphans(repository, now_unix_s):
                path.unlink(missing_ok=True)
                freed[source] = freed.get(source, 0) + num_bytes
    return freed


def _orphans(repository: Path, now_unix_s: float) -> Iterator[tuple[Path, int]]:
    continued = pending_blobs(repository)
    for path, stats in files_under(repository / "blobs"):
        is_old = now_unix_s - stats.st_mtime > ORPHAN_AFTER_S
        is_orphan = path.name.endswith(INCOMPLETE) and path.name not in continued and is_old
        if is_orphan and not is_locked(path):
            yield path, stats.st_size


def _repositories(hub_dir: Path) -> list[Path]:
    return sorted(hub_dir.glob(f"{REPOSITORY_PREFIX}*"))


def _source_of(scheme: str, repository: Path) -> str:
    name = repository.name.removeprefix(REPOSITORY_PREFIX)
    return f"{scheme}:{name.replace('--', '/')}"


def _hub_models(scheme: str, hub_dir: Path) -> Iterator[CachedModel]:
    for repository in _repositories(hub_dir):
        snapshots = {path.name for path in (repository / "snapshots").glob("*")}
        for commit in sorted(snapshots | {*pending_commits(repository)}):
            files = _files(repository / "snapshots" / commit)
            pending = pending_of(repository, commit)
            if files or pending:
                yield _hub_model(_source_of(scheme, repository), repository, commit, files, pending)


def _hub_model(
    source: str, repository: Path, commit: str, files: list[CachedFile], pending: Pending
) -> CachedModel:
    num_bytes = sum(file.num_bytes for file in files)
    missing_bytes = sum(file.num_bytes for file in pending.values())
    return CachedModel(
        source=source,
        revision=commit,
        files=files,
        num_bytes=num_bytes,
        last_used_unix_s=_last_used(repository / "snapshots" / commit),
        is_partial=bool(pending),
        missing=sorted(pending),
        wanted_bytes=num_bytes + missing_bytes if pending else 0,
        partial_bytes=partial_bytes(repository, pending.values()),
    )


def _packages(packages_dir: Path) -> Iterator[CachedModel]:
    for package in sorted(packages_dir.glob("*")):
        if not package.is_dir() or package.name.startswith("."):
            continue
        files = _files(package)
        yield CachedModel(
            source=f"pypi:{package.name}",
            revision="",
            files=files,
            num_bytes=sum(file.num_bytes for file in files),
            last_used_unix_s=_last_used(package),
        )


def _unfinished_packages(packages_dir: Path) -> Iterator[CachedModel]:
    for directory in sorted(packages_dir.glob(f"{UNFINISHED_PREFIX}*")):
        package = packages_dir / directory.name.removeprefix(UNFINISHED_PREFIX)
        if package.exists() or (wheel := unfinished_wheel(directory)) is None:
            continue
        yield CachedModel(
            source=f"pypi:{package.name}",
            revision="",
            num_bytes=0,
            last_used_unix_s=_last_used(directory),
            is_partial=True,
            missing=[wheel.name],
            wanted_bytes=wheel.num_bytes,
            partial_bytes=unfinished_wheel_bytes(directory, wheel),
        )


def _delete_snapshot(repository: Path, revision: str, names: Collection[str]) -> int:
    snapshot = _inside(repository / "snapshots", revision)
    before = _file_bytes(repository)
    for path in [path for path, _ in files_under(snapshot)]:
        if not names or path.relative_to(snapshot).as_posix() in names:
            path.unlink(missing_ok=True)
    pending_remove(repository, revision, names or pending_of(repository, revision))
    if not _files(snapshot):
        shutil.rmtree(snapshot, ignore_errors=True)
    _delete_unused_blobs(repository)
    freed = before - _file_bytes(repository)
    if not any(repository.glob("snapshots/*")) and not pending_commits(repository):
        shutil.rmtree(repository, ignore_errors=True)
    return freed


def _file_bytes(repository: Path) -> int:
    return bytes_under(repository / "blobs") + bytes_under(repository / "snapshots")


def _delete_unused_blobs(repository: Path) -> None:
    """Keeps blobs, partial ones too, that another revision uses or a download continues or
    writes."""
    used = {path.resolve() for path, _ in files_under(repository / "snapshots")}
    continued = pending_blobs(repository)
    for blob in (repository / "blobs").glob("*"):
        if blob.resolve() in used or blob.name in continued:
            continue
        if not (blob.name.endswith(INCOMPLETE) and is_locked(blob)):
            blob.unlink(missing_ok=True)


def _delete_packages(packages_dir: Path, name: str, revision: str) -> int:
    """Keeps what a download is writing now."""
    package = _inside(packages_dir, f"{name}-{revision}" if revision else name)
    freed = bytes_under(package)
    shutil.rmtree(package, ignore_errors=True)
    unfinished = unfinished_directory(package)
    if not is_locked(unfinished / LOCK):
        freed += bytes_under(unfinished)
        shutil.rmtree(unfinished, ignore_errors=True)
    return freed


def _repository_dir(hub_dir: Path, repo: str) -> Path:
    return _inside(hub_dir, repository_dir(hub_dir, repo).name)


def _inside(parent: Path, name: str) -> Path:
    """Names come over the wire."""
    if not name or "/" in name or name in (".", ".."):
        raise BadSourceError(f"{name!r} is not the name of anything in the cache")
    return parent / name


def _files(directory: Path) -> list[CachedFile]:
    found = [
        CachedFile(name=path.relative_to(directory).as_posix(), num_bytes=stats.st_size)
        for path, stats in files_under(directory)
    ]
    return sorted(found, key=lambda file: file.name)


def _last_used(directory: Path) -> float | None:
    """The newest access or change of a file, where the disk notes accesses."""
    moments = [max(stats.st_atime, stats.st_mtime) for _, stats in files_under(directory)]
    return max(moments, default=None)
