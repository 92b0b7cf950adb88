"""The one format in which pages print a time: ``2026-01-31 12:00:05 UTC``."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_text(moment: datetime | None) -> str:
    """``moment`` is aware of its zone; empty for ``None``."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
