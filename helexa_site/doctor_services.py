"""The doctor's checks of Redis, the database, the fleet and refused connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
from django.db import DatabaseError, connection

from fleet.errors import SnapshotUnavailableError
from fleet.live.reading import read_live_fleet, read_refusals, redis_client
from fleet.live.reports import Report
from fleet.redis_users import USER_PREFIX
from helexa_site.config import Config
from helexa_site.doctor import Finding, failed, ok, warning
from helexa_site.migration_guard import SchemaError, ensure_schema_is_known, missing_migrations
from helexa_site.program import program
from inference.descriptors import DescriptorMarks, raise_descriptor_limit
from inference.protocol.refusals import OVERLOADED, Refused
from inference.redis_link import MAX_CLIENTS_BYTES, MAX_VALUE_BYTES
from inference.version import VERSION

FEW_DESCRIPTORS = 4096
REFUSALS_HOURS = 2
HOW_TO_RAISE = "raise the limit: LimitNOFILE= of the unit, nofile in limits.conf, or ulimit -Hn"
MIN_VERSION = (6, 2)
INVITING_VERSION = (7, 0)
TIMEOUT_S = 5.0
MIN_POSTGRESQL = 140000
MAX_APART_S = 2.0
"""Between two clocks. Beyond it times in logs, leases and budgets' windows disagree."""
USED_SHARE = 0.8
BOUNDS = {"maxmemory-clients": MAX_CLIENTS_BYTES, "proto-max-bulk-len": MAX_VALUE_BYTES}
"""Upper limits of these settings where a host is invited; 0 is no limit."""


def redis_findings(config: Config) -> Iterator[Finding]:
    try:
        client = redis.Redis.from_url(
            config.redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
    except ValueError as error:
        yield failed(f"REDIS_URL is no address of a Redis: {error}", "see the settings page")
        return
    mend = f"{program()} serve runs it: start that, or set REDIS_URL"
    if not config.redis_url.startswith("unix://"):
        elsewhere = "set REDIS_URL to a Redis that runs and lets this host in"
        mend = f"start {program()} serve here, or {elsewhere}"
    with contextlib.closing(client):
        try:
            yield from _redis_findings(client)
        except (redis.RedisError, OSError) as error:
            yield failed(f"does not answer: {error}", mend)


def _redis_findings(client: Any) -> Iterator[Finding]:
    before_s = time.time()
    client.ping()
    took_ms = (time.time() - before_s) * 1000
    seconds, microseconds = client.time()
    yield clock_finding(seconds + microseconds / 1e6, before_s, time.time())
    try:
        facts = client.info()
    except redis.ResponseError:
        yield ok(f"answers in {took_ms:.0f} ms; this user may not ask it for more")
        return
    yield from info_findings(facts, took_ms)
    try:
        users = client.acl_users()
        settings = {name: int(client.config_get(name)[name] or 0) for name in BOUNDS}
    except (redis.ResponseError, KeyError):
        return  # an older Redis, or one that hides them from this user
    yield from bounds_findings(users, settings)


def clock_finding(there_s: float, before_s: float, after_s: float) -> Finding:
    """``there_s`` was read from Redis' clock between the other two, which are ours."""
    apart_s = max(before_s - there_s, there_s - after_s, 0.0)
    found = ok("agrees with Redis' host")
    if apart_s > MAX_APART_S:
        text = f"this host and Redis' host are {apart_s:.1f} s apart"
        found = warning(text, "let both follow a time server: timedatectl set-ntp true")
    return replace(found, check="clock")


def bounds_findings(users: Sequence[str | bytes], settings: Mapping[str, int]) -> Iterator[Finding]:
    names = (user.decode() if isinstance(user, bytes) else user for user in users)
    is_shared = any(name.startswith(USER_PREFIX) for name in names)
    for name, most in BOUNDS.items():
        if is_shared and not 0 < settings[name] <= most:
            text = f"{name} is {settings[name]}: an invited host can fill Redis' memory"
            yield warning(text, f"set {name} {most}")


def info_findings(facts: dict[str, Any], took_ms: float) -> Iterator[Finding]:
    word = str(facts.get("redis_version", "0"))
    version = tuple(int(part) for part in word.split(".")[:2] if part.isdigit())
    policy = facts.get("maxmemory_policy", "noeviction")
    limit, used = int(facts.get("maxmemory", 0)), int(facts.get("used_memory", 0))
    found = []
    if version < MIN_VERSION:
        found.append(failed(f"{word} is too old", "upgrade it to 7 or newer"))
    elif version < INVITING_VERSION:
        found.append(warning(f"{word} cannot confine invited hosts", "upgrade it to 7 or newer"))
    if policy != "noeviction":
        text = f"maxmemory-policy is {policy}: it may throw away what requests wait for"
        found.append(failed(text, "set maxmemory-policy noeviction"))
    if limit and used > USED_SHARE * limit:
        found.append(warning(f"{used / limit:.0%} of maxmemory is in use", "raise maxmemory"))
    yield from found or [ok(f"{word} answers in {took_ms:.0f} ms and evicts nothing")]


def database_findings(config: Config) -> Iterator[Finding]:
    is_sqlite = connection.vendor == "sqlite"
    if is_sqlite and not Path(connection.settings_dict["NAME"]).exists():
        yield ok("none on this host: serve makes one, and a neuron needs none")
        return
    try:
        yield schema_finding()
        yield from _sqlite() if is_sqlite else _postgresql()
    except DatabaseError as error:
        reason = str(error).strip().partition("\n")[0]
        mend = "look at DATABASE_URL, and whether that server runs and lets this host in"
        if config.database_url.startswith("sqlite"):
            mend = "look whether this user may read and write the data directory"
        yield failed(f"does not answer: {reason}", mend)
    finally:
        connection.close()


def schema_finding() -> Finding:
    try:
        ensure_schema_is_known()
    except SchemaError as error:
        return failed(str(error), "see docs/operating/backup-and-upgrade.md")
    if missing := missing_migrations():
        return failed(
            f"{len(missing)} migrations are missing, {missing[0]} first",
            f"{program()} migrate (serve does so by itself)",
        )
    return ok(f"{connection.vendor} answers, and its tables are of this version")


def _postgresql() -> Iterator[Finding]:
    version = int(_first_value("SHOW server_version_num"))
    limit = int(_first_value("SHOW max_connections"))
    used = int(
        _first_value("SELECT count(*) FROM pg_stat_activity WHERE backend_type='client backend'")
    )
    if version < MIN_POSTGRESQL:
        yield warning(
            f"PostgreSQL {version // 10000} is older than what helexa is tested with",
            "upgrade to PostgreSQL 14 or newer",
        )
    if used > USED_SHARE * limit:
        yield warning(
            f"{used} of {limit} connections are in use",
            "raise max_connections, or run fewer gateways",
        )


def _sqlite() -> Iterator[Finding]:
    found = _first_value("PRAGMA quick_check(1)")
    if found != "ok":
        yield failed(f"the file is damaged: {found}", f"{program()} restore the last backup")


def _first_value(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def fleet_findings() -> Iterator[Finding]:
    try:
        reports = read_live_fleet(redis_client()).reports
    except SnapshotUnavailableError:
        return  # Redis has a line of its own
    yield from report_findings(reports)


def report_findings(reports: Sequence[Report]) -> Iterator[Finding]:
    if not reports:
        yield warning(
            "no neuron reports",
            f"start one: {program()} serve, or {program()} neurons invite NAME for another host",
        )
    for report in reports:
        name, heartbeat = report.name, report.heartbeat
        if heartbeat is None:
            yield warning(f"{name}: {report.problem}", f"bring {name} to helexa {VERSION}")
            continue
        for problem in heartbeat.host.problems:
            text, _, mend = problem.partition(": ")
            yield warning(f"{name}: {text}", mend or f"run {program()} doctor on {name}")
        if heartbeat.version != VERSION:
            yield warning(
                f"{name} runs helexa {heartbeat.version}, this is {VERSION}",
                "upgrade the gateway and control first, then one neuron at a time",
            )
        elif not heartbeat.host.problems:
            yield ok(f"{name} runs helexa {VERSION}")


def descriptor_findings() -> Iterator[Finding]:
    try:
        refused = read_refusals(redis_client(), hours=REFUSALS_HOURS)
    except (redis.RedisError, OSError):
        refused = {}  # Redis has a line of its own
    yield from descriptor_limit_findings(raise_descriptor_limit(), refused)


def descriptor_limit_findings(limit: int, refused: Mapping[Refused, int]) -> Iterator[Finding]:
    num_clients = DescriptorMarks.of_limit(limit).refuse_from
    text = f"a process may have {limit:,} file descriptors, a gateway's clients {num_clients:,}"
    yield warning(text, HOW_TO_RAISE) if limit < FEW_DESCRIPTORS else ok(text)
    num_refused = sum(number for one, number in refused.items() if one.code == OVERLOADED)
    if num_refused:
        yield warning(
            f"gateways ran out of file descriptors: {num_refused:,} connections were refused since "
            "the last full hour but one",
            f"{HOW_TO_RAISE}, or run another gateway",
        )
