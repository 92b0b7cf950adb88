"""Downloads in the cache: lists and removes them, and finds what they lack. Imports no torch.

    <hub cache>/models--org--name/snapshots/<commit>/<file> ─▶ ../../blobs/<hash>     a hub's
    <hub cache>/models--org--name/pending/<commit>.json     {name: {"num_bytes": …, "etag": …}}
    <cache>/pypi/<package>/…                                                          pypi

A blob goes with the last snapshot that points to it. Pending files make a cached model partial:
they are listed before the first byte of a download, and removed as they become complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from inference.loading.sources.disk import bytes_under, files_under
from inference.loading.sources.hub_sources import REPOSITORY_PREFIX, hub_directories, repository_dir
from inference.protocol.load_errors import BadSourceError
from inference.protocol.neuron_tasks import CachedFile, CachedModel


def list_cached(cache_dir: Path) -> list[CachedModel]:
    """Sorted by source and revision. Leaves out files that vanish meanwhile."""
    packages = (path for path in (cache_dir / "pypi").glob("[!.]*") if path.is_dir())
    found = [_model(f"pypi:{path.name}", "", path) for path in packages]
    for scheme, hub_dir in hub_directories(cache_dir).items():
        for repository in hub_dir.glob(f"{REPOSITORY_PREFIX}*"):
            found += _revisions(scheme, repository)
    return sorted(found, key=lambda model: (model.source, model.revision))


def delete_cached(cache_dir: Path, source: str, revision: str, names: Collection[str] = ()) -> int:
    """Deletes ``names``, or all if empty; missing files count as deleted. Returns the freed bytes.
    Raises ``BadSourceError`` for a source that this cache does not hold."""
    scheme, _, location = source.partition(":")
    if (hub_dir := hub_directories(cache_dir).get(scheme)) is not None:
        return _delete_snapshot(_repository_dir(hub_dir, location), revision, names)
    if scheme == "pypi":
        package = _inside(cache_dir / "pypi", f"{location}-{revision}" if revision else location)
        freed = bytes_under(package)
        shutil.rmtree(package, ignore_errors=True)
        return freed
    raise BadSourceError(f"{source} is not downloaded: there is nothing to delete")


def cached_directory(cache_dir: Path, source: str, revision: str) -> Path:
    scheme, _, location = source.partition(":")
    if (hub_dir := hub_directories(cache_dir).get(scheme)) is not None:
        return _repository_dir(hub_dir, location) / "snapshots" / revision
    return cache_dir / "pypi" / location


def _revisions(scheme: str, repository: Path) -> Iterator[CachedModel]:
    name = repository.name.removeprefix(REPOSITORY_PREFIX).replace("--", "/")
    snapshots = {path.name for path in (repository / "snapshots").glob("*")}
    for commit in snapshots | {*_pending_commits(repository)}:
        missing = _pending_of(repository, commit)
        model = _model(f"{scheme}:{name}", commit, repository / "snapshots" / commit)
        if missing:
            wanted_bytes = model.num_bytes + sum(file.num_bytes for file in missing.values())
            model = msgspec.structs.replace(
                model,
                is_partial=True,
                missing=sorted(missing),
                wanted_bytes=wanted_bytes,
                partial_bytes=partial_bytes(repository, missing.values()),
            )
        if model.files or missing:
            yield model


def _model(source: str, revision: str, directory: Path) -> CachedModel:
    there = sorted(files_under(directory))
    files = [
        CachedFile(name=path.relative_to(directory).as_posix(), num_bytes=stats.st_size)
        for path, stats in there
    ]
    return CachedModel(
        source=source,
        revision=revision,
        files=files,
        num_bytes=sum(file.num_bytes for file in files),
        # The newest access or change of a file, where the disk notes accesses.
        last_used_unix_s=max((max(at.st_atime, at.st_mtime) for _, at in there), default=None),
    )


def _delete_snapshot(repository: Path, revision: str, names: Collection[str]) -> int:
    snapshot = _inside(repository / "snapshots", revision)
    before = _file_bytes(repository)
    for path, _ in [*files_under(snapshot)]:
        if not names or path.relative_to(snapshot).as_posix() in names:
            path.unlink(missing_ok=True)
    pending_remove(repository, revision, names or _pending_of(repository, revision))
    if not any(files_under(snapshot)):
        shutil.rmtree(snapshot, ignore_errors=True)
    _delete_unused_blobs(repository)
    freed = before - _file_bytes(repository)
    if not any(repository.glob("snapshots/*")) and not _pending_commits(repository):
        shutil.rmtree(repository, ignore_errors=True)
    return freed


def _file_bytes(repository: Path) -> int:
    return bytes_under(repository / "blobs") + bytes_under(repository / "snapshots")


def _delete_unused_blobs(repository: Path) -> None:
    used = {path.resolve() for path, _ in files_under(repository / "snapshots")}
    for commit in _pending_commits(repository):
        pending = _pending_of(repository, commit).values()
        used |= {path.resolve() for path in _partial_files(repository, pending)}
    for blob in (repository / "blobs").glob("*"):
        if blob.resolve() not in used:
            blob.unlink(missing_ok=True)


def _repository_dir(hub_dir: Path, repo: str) -> Path:
    return _inside(hub_dir, repository_dir(hub_dir, repo).name)


def _inside(parent: Path, name: str) -> Path:
    """Names come over the wire."""
    if not name or "/" in name or name in (".", ".."):
        raise BadSourceError(f"{name!r} is not the name of anything in the cache")
    return parent / name


INCOMPLETE = ".incomplete"


class PendingFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    num_bytes: int
    etag: str = ""
    """Names its blob; empty where the hub's listing has none."""


_decode = msgspec.json.Decoder(dict[str, PendingFile]).decode


def pending_add(repository: Path, commit: str, files: Mapping[str, PendingFile]) -> None:
    _write_pending(repository, commit, {**_pending_of(repository, commit), **files})


def pending_remove(repository: Path, commit: str, names: Collection[str]) -> None:
    pending = _pending_of(repository, commit)
    left = {name: file for name, file in pending.items() if name not in names}
    _write_pending(repository, commit, left)


def _pending_of(repository: Path, commit: str) -> dict[str, PendingFile]:
    try:
        files = _decode(_pending_path(repository, commit).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    snapshot = repository / "snapshots" / commit
    return {name: file for name, file in files.items() if not (snapshot / name).exists()}


def _pending_commits(repository: Path) -> list[str]:
    return sorted(path.stem for path in (repository / "pending").glob("*.json"))


def partial_of(target: Path) -> Path:
    return target.with_name(target.name + INCOMPLETE)


def _partial_files(repository: Path, files: Iterable[PendingFile]) -> list[Path]:
    partials = (partial_of(repository / "blobs" / file.etag) for file in files if file.etag)
    return [path for path in partials if path.is_file()]


def partial_bytes(repository: Path, files: Iterable[PendingFile]) -> int:
    return sum(path.stat().st_size for path in _partial_files(repository, files))


def _write_pending(repository: Path, commit: str, files: Mapping[str, PendingFile]) -> None:
    path = _pending_path(repository, commit)
    if not files:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(files))
    written.replace(path)


def _pending_path(repository: Path, commit: str) -> Path:
    return repository / "pending" / f"{commit}.json"
