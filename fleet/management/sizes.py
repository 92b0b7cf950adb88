"""Byte counts and shares as text, for pages and commands."""

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


def total_text(total_bytes: int, installed_bytes: int | None) -> str:
    """``24.0 GiB``; of a device with a limit ``20.0 GiB (limit, of 24.0 GiB)``."""
    if installed_bytes is None:
        return size_text(total_bytes)
    return f"{size_text(total_bytes)} (limit, of {size_text(installed_bytes)})"


def share_text(fraction: float | None) -> str:
    """``41%``; empty where unknown."""
    return "" if fraction is None else f"{fraction:.0%}"
