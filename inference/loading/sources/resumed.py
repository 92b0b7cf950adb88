"""Downloads a file by HTTP so that a transfer that was broken off continues where it ended, and
lists the files that a download still lacks.

    <target>.incomplete ─▶ GET, Range: bytes=<its size>- ─▶ checked ─▶ <target>, by one rename
    <repository>/pending/<commit>.json     {file name: {"num_bytes": …, "etag": …}}

The target's name has to stand for its bytes, as the hub's etags do: a partial file of that name is
then the beginning of the same file. One process at a time writes it.

Pending files make a cached model partial. They are listed before the first byte, and removed as
they become complete. Imports no torch.
"""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from inference.loading.sources.disk import check_sha256
from inference.protocol.load_errors import HashMismatchError

INCOMPLETE = ".incomplete"
PIECE_BYTES = 10 * 10**9
"""A larger file comes in pieces, each by a ``Range`` of its own: the hub's network serves no more
than 50 GB at once."""


def transfer(
    url: str, target: Path, *, num_bytes: int, headers: Mapping[str, str], sha256: str | None
) -> None:
    """``sha256``: of the whole file, which is checked where it came in parts. ``url`` is asked
    again for each part, so it has to outlast the transfer. Blocks while another process writes the
    same file. Raises huggingface_hub's errors and ``OSError``."""
    partial = partial_of(target)
    while not target.exists():
        with partial.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if target.exists():  # another process finished it meanwhile, and this one is empty
                partial.unlink(missing_ok=True)
                return
            is_of_parts = _continue(url, file, num_bytes, headers)
            try:
                if sha256 is not None and is_of_parts:
                    check_sha256(partial, sha256)
                partial.replace(target)
            except HashMismatchError:
                file.truncate(0)


def partial_of(target: Path) -> Path:
    return target.with_name(target.name + INCOMPLETE)


def _continue(url: str, file: BinaryIO, num_bytes: int, headers: Mapping[str, str]) -> bool:
    """Whether it came in parts: some of it was there, or it is larger than a piece."""
    from huggingface_hub.file_download import http_get  # takes its time to import

    first = done = file.seek(0, 2)
    if done > num_bytes:
        first = done = file.truncate(0)
    while done < num_bytes:
        end = min(num_bytes, done + PIECE_BYTES)
        # http_get reads from ``done`` on, up to this end.
        piece = {"Range": f"bytes=0-{end - 1}"} if num_bytes > PIECE_BYTES else {}
        http_get(url, file, resume_size=done, headers={**headers, **piece}, expected_size=end)
        done = end
    file.flush()
    return first > 0 or num_bytes > PIECE_BYTES


class PendingFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    num_bytes: int
    etag: str = ""
    """Names its blob; empty where the hub's listing has none."""


Pending = Mapping[str, PendingFile]
_decode = msgspec.json.Decoder(dict[str, PendingFile]).decode


def pending_add(repository: Path, commit: str, files: Pending) -> None:
    _write_pending(repository, commit, {**pending_of(repository, commit), **files})


def pending_remove(repository: Path, commit: str, names: Collection[str]) -> None:
    pending = pending_of(repository, commit)
    left = {name: file for name, file in pending.items() if name not in names}
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


def partial_files(repository: Path, files: Iterable[PendingFile]) -> list[Path]:
    """The beginnings of these files that interrupted downloads left."""
    partials = (partial_of(repository / "blobs" / file.etag) for file in files if file.etag)
    return [path for path in partials if path.is_file()]


def partial_bytes(repository: Path, files: Iterable[PendingFile]) -> int:
    return sum(path.stat().st_size for path in partial_files(repository, files))


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
