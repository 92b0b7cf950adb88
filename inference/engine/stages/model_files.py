"""Whether two hosts have opened the same files of a model: a digest of what they are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from inference.loading.loader import OpenedModel

DIGESTED_BYTES = 1 << 20
"""Read of the beginning of each file, which has its header, and of its end, which has weights."""


def files_digest(opened: OpenedModel) -> str:
    """64 hex digits of the weights' files, in order: their sizes, beginnings and ends. Names do not
    count: two hosts may have one model at different places."""
    digest = hashlib.sha256()
    for path in (*opened.weight_paths, opened.projector):
        digest.update(b"-" if path is None else _digest_of(path))
    return digest.hexdigest()


def _digest_of(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        digest.update(num_bytes.to_bytes(8, "little"))
        file.seek(0)
        digest.update(file.read(DIGESTED_BYTES))
        file.seek(max(0, num_bytes - DIGESTED_BYTES))
        digest.update(file.read(DIGESTED_BYTES))
    return digest.digest()
