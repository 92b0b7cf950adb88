"""What a backup or a restore is refused for, in words for the operator."""

from __future__ import annotations

from pathlib import Path


class BackupError(Exception):
    """Nothing was changed, or what had been begun was taken back."""


def os_error_text(error: OSError, place: Path) -> str:
    """The system names no file where a disk was full."""
    return str(error) if error.filename is not None else f"{place}: {error.strerror}"
