"""The database: there, whole, of this version, and with room for connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from helexa_site.config import Config
from helexa_site.doctor.findings import Finding, failed, ok, warning
from helexa_site.migration_guard import NewerSchemaError, ensure_schema_is_not_newer
from helexa_site.program import program

CHECK = "database"
MIN_POSTGRESQL = 140000


def database_findings(config: Config) -> Iterator[Finding]:
    if connection.vendor == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():
        yield ok(CHECK, "none on this host: serve makes one, and a neuron needs none")
        return
    try:
        yield from schema_findings()
        yield from _postgresql() if connection.vendor == "postgresql" else _sqlite()
    except DatabaseError as error:
        reason = str(error).strip().partition("\n")[0]
        yield failed(CHECK, f"does not answer: {reason}", _how_to_reach(config))
    finally:
        connection.close()


def schema_findings() -> Iterator[Finding]:
    try:
        ensure_schema_is_not_newer()
    except NewerSchemaError as error:
        yield failed(CHECK, str(error), "upgrade helexa on this host")
        return
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        yield failed(
            CHECK,
            f"{len(missing)} migrations are missing, {missing[0][0]} first",
            f"{program()} migrate (serve does so by itself)",
        )
    else:
        yield ok(CHECK, f"{connection.vendor} answers, and its tables are of this version")


def _postgresql() -> Iterator[Finding]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        version = int(cursor.fetchone()[0])
        cursor.execute("SHOW max_connections")
        limit = int(cursor.fetchone()[0])
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type='client backend'")
        used = int(cursor.fetchone()[0])
    if version < MIN_POSTGRESQL:
        yield warning(
            CHECK,
            f"PostgreSQL {version // 10000} is older than what helexa is tested with",
            "upgrade to PostgreSQL 14 or newer",
        )
    if used > 0.8 * limit:
        yield warning(
            CHECK,
            f"{used} of {limit} connections are in use",
            "raise max_connections, or run fewer gateways",
        )


def _sqlite() -> Iterator[Finding]:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA quick_check(1)")
        found = cursor.fetchone()[0]
    if found != "ok":
        yield failed(CHECK, f"the file is damaged: {found}", f"{program()} restore the last backup")


def _how_to_reach(config: Config) -> str:
    if config.database_url.startswith("sqlite"):
        return "look whether this user may read and write the data directory"
    return "look at DATABASE_URL, and whether that server runs and lets this host in"
