"""Byte counts, shares, durations and counts as text, for pages and commands. Pure."""

from __future__ import annotations

DONE = {"load": "loaded", "unload": "unloaded", "reload": "reloaded", "sleep": "asleep"}
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
    return "" if fraction is None else f"{fraction:.0%}"


def duration_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def left_words(eta_s: float | None) -> str:
    return "" if eta_s is None else f", about {duration_words(eta_s)} left"


def count_words(number: int) -> str:
    """``950``, ``12.3k``, ``4.5M``."""
    if number < 10_000:
        return f"{number:,}"
    if number < 1_000_000:
        return f"{number / 1000:.1f}k"
    return f"{number / 1_000_000:.1f}M"
