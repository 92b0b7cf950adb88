"""What downloads left in the cache: listed, and removed file by file. Imports no torch.

    <hub cache>/models--org--name/snapshots/<commit>/<file> ─▶ ../../blobs/<hash>     huggingface
    <cache>/pypi/<package>/…                                                          pypi

A blob goes with the last snapshot that points to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from inference.loading.errors import BadSourceError
from inference.loading.folders import bytes_under, files_under
from inference.loading.hub_cache import hub_cache_dir
from inference.loading.pypi import PARTIAL_PREFIX
from inference.protocol.downloads import CachedFile, CachedModel

REPOSITORY_PREFIX = "models--"
INCOMPLETE = "*.incomplete"


def list_cached(cache_dir: Path) -> list[CachedModel]:
    """Sorted by source and revision. Files come and go meanwhile: what is gone is left out."""
    found = [*_hub_models(hub_cache_dir(cache_dir)), *_packages(cache_dir / "pypi")]
    return sorted(found, key=lambda model: (model.source, model.revision))


def delete_cached(cache_dir: Path, source: str, revision: str, names: Collection[str] = ()) -> int:
    """``names``: of files, all where there are none. What is not there is deleted already. How many
    bytes it freed. Raises ``BadSourceError`` for a source that is not cached by us."""
    scheme, _, location = source.partition(":")
    if scheme == "huggingface":
        return _delete_snapshot(
            _repository_dir(hub_cache_dir(cache_dir), location), revision, names
        )
    if scheme == "pypi":
        return _delete_packages(cache_dir / "pypi", location, revision)
    raise BadSourceError(f"{source} is not downloaded: there is nothing to delete")


def cached_directory(cache_dir: Path, source: str, revision: str) -> Path:
    """Where the files of a ``CachedModel`` lie."""
    scheme, _, location = source.partition(":")
    if scheme == "huggingface":
        return _repository_dir(hub_cache_dir(cache_dir), location) / "snapshots" / revision
    return cache_dir / "pypi" / location


def _hub_models(hub_dir: Path) -> Iterator[CachedModel]:
    for repository in sorted(hub_dir.glob(f"{REPOSITORY_PREFIX}*")):
        source = "huggingface:" + repository.name.removeprefix(REPOSITORY_PREFIX).replace("--", "/")
        is_partial = any((repository / "blobs").glob(INCOMPLETE))
        for snapshot in sorted((repository / "snapshots").glob("*")):
            if files := _files(snapshot):
                yield CachedModel(
                    source=source,
                    revision=snapshot.name,
                    files=files,
                    num_bytes=sum(file.num_bytes for file in files),
                    last_used_unix_s=_last_used(snapshot),
                    is_partial=is_partial,
                )


def _packages(packages_dir: Path) -> Iterator[CachedModel]:
    for package in sorted(packages_dir.glob("*")):
        if not package.is_dir() or package.name.startswith(PARTIAL_PREFIX):
            continue
        files = _files(package)
        yield CachedModel(
            source=f"pypi:{package.name}",
            revision="",
            files=files,
            num_bytes=sum(file.num_bytes for file in files),
            last_used_unix_s=_last_used(package),
        )


def _delete_snapshot(repository: Path, revision: str, names: Collection[str]) -> int:
    snapshot = _inside(repository / "snapshots", revision)
    before = bytes_under(repository)
    for path in [path for path, _ in files_under(snapshot)]:
        if not names or path.relative_to(snapshot).as_posix() in names:
            path.unlink(missing_ok=True)
    if not _files(snapshot):
        shutil.rmtree(snapshot, ignore_errors=True)
    _delete_unused_blobs(repository)
    freed = before - bytes_under(repository)
    if not any(repository.glob("snapshots/*")):
        shutil.rmtree(repository, ignore_errors=True)
    return freed


def _delete_unused_blobs(repository: Path) -> None:
    """What was broken off goes as well: nothing points to it."""
    used = {path.resolve() for path, _ in files_under(repository / "snapshots")}
    for blob in (repository / "blobs").glob("*"):
        if blob.resolve() not in used:
            blob.unlink(missing_ok=True)


def _delete_packages(packages_dir: Path, name: str, revision: str) -> int:
    package = _inside(packages_dir, f"{name}-{revision}" if revision else name)
    freed = bytes_under(package)
    shutil.rmtree(package, ignore_errors=True)
    return freed


def _repository_dir(hub_dir: Path, repo: str) -> Path:
    return _inside(hub_dir, REPOSITORY_PREFIX + repo.replace("/", "--"))


def _inside(parent: Path, name: str) -> Path:
    """Names come over the wire. Raises ``BadSourceError``."""
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
