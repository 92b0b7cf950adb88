"""What helexa's commands are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.core.management.base import BaseCommand
from django.db import connections


class QuickCommand(BaseCommand):
    """Without Django's checks of the project, which import every page and take longer than most
    commands: an operator's mistake cannot break what they look at. The tests run them."""

    requires_system_checks: list[str] = []

    def execute(self, *args: Any, **options: Any) -> str | None:
        open_only_what_is_there()
        return super().execute(*args, **options)


def open_only_what_is_there() -> None:
    """SQLite makes a file of each name that it is asked for. A command where no database was set
    up says so instead, and leaves none behind."""
    settings = connections.settings["default"]
    path = str(settings["NAME"])
    if "sqlite3" not in settings["ENGINE"] or path.startswith((":", "file:")):
        return
    if not Path(path).exists():
        connections["default"].settings_dict["NAME"] = f"file:{quote(path)}?mode=rw"
