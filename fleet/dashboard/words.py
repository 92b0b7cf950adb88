"""Numbers and statuses as the board's texts. Pure."""

from __future__ import annotations

TONES = {
    "ready": "good",
    "online": "good",
    "loading": "info",
    "recovering": "warning",
    "draining": "warning",
    "asleep": "quiet",
    "failed": "bad",
    "away": "bad",
    "refused": "quiet",
    "unloaded": "quiet",
    "urgent": "bad",
    "warning": "warning",
    "notice": "info",
}
DONE = {"load": "loaded", "unload": "unloaded", "reload": "reloaded", "sleep": "asleep"}
CHANGE_SETTINGS = frozenset({"pin", "unpin"})


def tone_of(status: str) -> str:
    return TONES.get(status, "quiet")


def duration_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def left_words(eta_s: float | None) -> str:
    """The end of a sentence: how long it still takes; empty where that is unknown."""
    return "" if eta_s is None else f", about {duration_words(eta_s)} left"


def count_words(number: int) -> str:
    """``950``, ``12.3k``, ``4.5M``."""
    if number < 10_000:
        return f"{number:,}"
    if number < 1_000_000:
        return f"{number / 1000:.1f}k"
    return f"{number / 1_000_000:.1f}M"
