"""Numbers of bytes as people read them, on pages as in commands."""

from __future__ import annotations

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(num_bytes: int | None) -> str:
    """``6.0 GiB``; empty where unknown."""
    if num_bytes is None:
        return ""
    size, unit = float(num_bytes), UNITS[0]
    for larger in UNITS[1:]:
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
