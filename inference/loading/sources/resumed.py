"""Downloads a file by HTTP so that a transfer that was broken off continues where it ended, and
lists the files that a download still lacks.

    <target>.incomplete ─▶ GET, Range: bytes=<its size>- ─▶ checked ─▶ <target>, by one rename
    <repository>/pending/<commit>.json     {file name: {"num_bytes": …, "etag": …}}

The target's name has to stand for its bytes, as the hub's etags do: a partial file of that name is
then the beginning of the same file. One process at a time writes it. A file beyond what the hub's
network serves in one answer comes in pieces, each by a ``Range`` of its own.

Pending files make a cached model partial. They are listed before the first byte, and removed as
they become complete. Files of other quants of the same commit are pending only where they were
asked for. Imports no torch.
"""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from inference.loading.sources.disk import check_sha256
from inference.protocol.load_errors import HashMismatchError

INCOMPLETE = ".incomplete"
MAX_ANSWER_BYTES = 50 * 10**9
"""The hub's network serves no more at once."""
PIECE_BYTES = 10 * 10**9
"""The size of a piece of a larger file."""


def transfer(
    url: str, target: Path, *, num_bytes: int, headers: Mapping[str, str], sha256: str | None
) -> None:
    """``sha256``: of the whole file, which is checked where it came in parts. ``url`` is asked
    again for each part, so it has to outlast the transfer. Blocks while another process writes the
    same file. Raises huggingface_hub's errors and ``OSError``."""
    partial = partial_of(target)
    while not target.exists():
        with partial.open("ab") as file, _alone(file):
            if target.exists():
                break
            is_of_parts = _continue(url, file, num_bytes, headers)
            if _is_whole(partial, sha256 if is_of_parts else None):
                partial.replace(target)
            else:
                file.truncate(0)
    else:
        return
    partial.unlink(missing_ok=True)  # opened while the other process finished


def partial_of(target: Path) -> Path:
    return target.with_name(target.name + INCOMPLETE)


def _continue(url: str, file: BinaryIO, num_bytes: int, headers: Mapping[str, str]) -> bool:
    """Whether it came in parts: some of it was there, or it is too large for one answer."""
    from huggingface_hub.file_download import http_get  # takes its time to import

    first = done = file.seek(0, 2)
    if done > num_bytes:
        first = done = file.truncate(0)
    is_large = num_bytes > MAX_ANSWER_BYTES
    while done < num_bytes:
        end = min(num_bytes, done + PIECE_BYTES) if is_large else num_bytes
        piece = {"Range": f"bytes=0-{end - 1}"} if is_large else {}  # from ``done`` on, see there
        http_get(url, file, resume_size=done, headers={**headers, **piece}, expected_size=end)
        done = end
    file.flush()
    return is_large or first > 0


def _is_whole(partial: Path, sha256: str | None) -> bool:
    try:
        if sha256 is not None:
            check_sha256(partial, sha256)
    except HashMismatchError:
        return False
    return True


@contextmanager
def _alone(file: BinaryIO) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


class PendingFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    num_bytes: int
    etag: str = ""
    """Names its blob; empty where the hub's listing has none."""


Pending = Mapping[str, PendingFile]
_decode = msgspec.json.Decoder(dict[str, PendingFile]).decode


def pending_add(repository: Path, commit: str, files: Pending) -> None:
    _write_pending(repository, commit, {**pending_of(repository, commit), **files})


def pending_remove(repository: Path, commit: str, names: Collection[str]) -> None:
    left = {
        name: file for name, file in pending_of(repository, commit).items() if name not in names
    }
    _write_pending(repository, commit, left)


def pending_of(repository: Path, commit: str) -> dict[str, PendingFile]:
    """The listed files that are not there yet; empty where nothing is known of a download."""
    try:
        files = _decode(_pending_path(repository, commit).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    snapshot = repository / "snapshots" / commit
    return {name: file for name, file in files.items() if not (snapshot / name).exists()}


def pending_commits(repository: Path) -> list[str]:
    return sorted(path.stem for path in (repository / "pending").glob("*.json"))


def partial_bytes(repository: Path, files: Iterable[PendingFile]) -> int:
    """Bytes of these files from interrupted downloads, which are resumed."""
    partials = (partial_of(repository / "blobs" / file.etag) for file in files if file.etag)
    return sum(path.stat().st_size for path in partials if path.is_file())


def pending_blobs(repository: Path) -> set[str]:
    """Names of the partial files that the next download of something pending continues."""
    return {
        file.etag + INCOMPLETE
        for commit in pending_commits(repository)
        for file in pending_of(repository, commit).values()
        if file.etag
    }


def _write_pending(repository: Path, commit: str, files: Pending) -> None:
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
