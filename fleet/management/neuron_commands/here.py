"""What only a machine that has the Redis can do."""

from __future__ import annotations

from django.core.management.base import CommandError

from fleet.management.backend import LocalBackend
from fleet.management.subcommands import Run


def ensure_here(run: Run) -> None:
    """Raises ``CommandError``."""
    if not isinstance(run.backend, LocalBackend):
        raise CommandError("This makes users of the Redis: run it where the gateway runs")
