"""Reads the headers of GGUF files in the hub by range, without the files.

GET, Range: bytes=0-4194303 ─▶ a file as long as the whole one, whose other bytes are a hole
     4 times as much, until the header ends within what came
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import get_session
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from inference.loading.gguf.header import MOST_HEADER_BYTES, read_header
from inference.models.families.gguf_keys import ROPE_FREQUENCIES
from inference.protocol.load_errors import BadFileError

FIRST_BYTES = 4 * 1024**2
GROWTH = 4
PARTIAL = 206


def fetch_header(
    url: str, path: Path, *, num_bytes: int, headers: Mapping[str, str], timeout_s: float
) -> None:
    """Leaves the beginning of the file at ``path``, with all of its header. ``num_bytes``: of the
    whole file. Raises ``BadFileError``, huggingface_hub's errors and ``OSError``."""

    def fetch(first: int, end: int) -> None:
        """Writes bytes ``[first, end)`` of the file to their place; reads no more than that."""
        wanted = {**headers, "Range": f"bytes={first}-{end - 1}"}
        with (
            get_session().stream(
                "GET", url, headers=wanted, timeout=timeout_s, follow_redirects=True
            ) as response,
            path.open("r+b") as file,
        ):
            hf_raise_for_status(response)
            at = first if response.status_code == PARTIAL else 0
            file.seek(at)
            for piece in response.iter_bytes():
                file.write(piece[: end - at])
                at += len(piece)
                if at >= end:
                    return
        raise BadFileError(f"{path.name} ends after {at} of {end} bytes; ask again")

    with path.open("wb") as file:
        file.truncate(num_bytes)
    done, wanted = 0, min(FIRST_BYTES, num_bytes)
    while True:
        fetch(done, wanted)
        done = wanted
        try:
            header = read_header(path)
        except BadFileError:
            if done >= min(num_bytes, MOST_HEADER_BYTES):
                raise
        else:
            if header.data_offset <= done or done == num_bytes:
                break
        wanted = min(GROWTH * done, num_bytes)
    # A config needs these numbers, which are among the weights.
    info = header.tensors.get(ROPE_FREQUENCIES)
    if info is not None and info.offset + info.num_bytes > done:
        fetch(info.offset, info.offset + info.num_bytes)
