"""Is a file what the load spec pinned?"""

from __future__ import annotations

import hashlib
from pathlib import Path

from inference.loading.errors import HashMismatchError


def check_sha256(path: Path, expected: str) -> None:
    """Raises ``HashMismatchError``."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected.lower():
        raise HashMismatchError(
            f"{path.name} has the sha256 {found}, the spec pins {expected.lower()}"
        )
