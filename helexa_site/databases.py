"""Django's settings of the database, from its URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import dj_database_url

from inference.settings.setting import SettingError

CONNECTION_MAX_AGE_S = 600
"""A thread of the gateway's or the control's keeps its connection from query to query: connecting
to PostgreSQL costs several times a query. A lost one is detected before the next query."""
POSTGRESQL_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""libpq's: a server behind a broken network times out after about ten seconds, where the system's
own defaults wait for a quarter of an hour, and revoked keys would work as long. Values in the URL
take precedence."""
SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


WANTED = "DATABASE_URL is not like postgres://user:password@host/helexa or sqlite:////path/to/file"


def database_settings(url: str) -> dict[str, Any]:
    """One entry of ``DATABASES``. Raises ``SettingError`` without the URL, which may contain a
    password."""
    try:
        parsed: dict[str, Any] = {
            **dj_database_url.parse(url, conn_max_age=CONNECTION_MAX_AGE_S, conn_health_checks=True)
        }
    except ValueError:
        raise SettingError(WANTED) from None
    match parsed["ENGINE"]:
        case "django.db.backends.sqlite3":
            parsed["OPTIONS"] = SQLITE_OPTIONS
        case "django.db.backends.postgresql":
            parsed["OPTIONS"] = POSTGRESQL_OPTIONS | parsed.get("OPTIONS", {})
        case _:
            raise SettingError(WANTED)
    return parsed


def open_only_what_is_there() -> None:
    """SQLite creates missing files. A command without a database reports that instead, and leaves
    no file behind."""
    from django.db import connections  # which reads the settings, and they are made with this

    settings = connections.settings["default"]
    path = str(settings["NAME"])
    if "sqlite3" not in settings["ENGINE"] or path.startswith((":", "file:")):
        return
    if not Path(path).exists():
        connections["default"].settings_dict["NAME"] = f"file:{quote(path)}?mode=rw"
