"""What a backup or a restore is refused for, in words for the operator."""

from __future__ import annotations


class BackupError(Exception):
    """Nothing was changed, or what had been begun was taken back."""
