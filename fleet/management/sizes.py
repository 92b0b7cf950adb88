"""Numbers of bytes as people read them."""

from __future__ import annotations


def size_text(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 1024**3:.1f} GiB"
