"""Appended to a release's own ``tests/metering/databases.py``: its tests of keys, budgets and the
ledger then write to a database that a newer helexa migrated. Run by ``test_earlier_release``."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections


@contextmanager
def metering_database(url: str) -> Iterator[str]:
    """Django's name of a copy of the migrated SQLite file, at ``url``."""
    using, path = "ledger", Path(url.removeprefix("sqlite:///"))
    shutil.copy(os.environ["MIGRATED_BY_A_NEWER_ONE"], path)
    settings: dict[str, Any] = connections.settings["default"] | {"NAME": str(path)}
    connections.settings[using] = settings
    try:
        clear(using)  # type: ignore[name-defined]  # noqa: F821 - the release's own
        yield using
    finally:
        connections[using].close()
        del connections[using]
        del connections.settings[using]
