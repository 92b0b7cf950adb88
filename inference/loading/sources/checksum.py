"""Is a file what the load spec pinned?"""

from __future__ import annotations

import hashlib
from pathlib import Path

from inference.loading.progress import OnProgress
from inference.protocol.load_errors import HashMismatchError
from inference.protocol.load_progress import LoadProgress, LoadStage

CHUNK_BYTES = 256 * 1024 * 1024
"""Read between two messages of progress."""
BUFFER_BYTES = 1024 * 1024


def check_sha256(path: Path, expected: str, on_progress: OnProgress = lambda _: None) -> None:
    """Reads the whole file, which takes minutes for a large one. Raises ``HashMismatchError``."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with path.open("rb", buffering=0) as file:
        while num_bytes := file.readinto(buffer):
            digest.update(buffer[:num_bytes])
            done += num_bytes
            if done % CHUNK_BYTES < num_bytes:
                on_progress(
                    LoadProgress(
                        stage=LoadStage.PREFLIGHT, done=done, total=total, detail="its sha256"
                    )
                )
    found = digest.hexdigest()
    if found != expected.lower():
        raise HashMismatchError(
            f"{path.name} has the sha256 {found}, the spec pins {expected.lower()}"
        )
