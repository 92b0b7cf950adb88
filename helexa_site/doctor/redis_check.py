"""Redis: there, new enough, and set so that it throws nothing away; and whose clock differs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis

from fleet.redis_users import USER_PREFIX
from helexa_site.config import Config
from helexa_site.doctor.findings import Finding, failed, ok, warning
from helexa_site.program import program
from inference.redis_connections import MAX_CLIENTS_BYTES, MAX_VALUE_BYTES

CHECK = "redis"
CLOCK = "clock"
MIN_VERSION = (6, 2)
INVITING_VERSION = (7, 0)
TIMEOUT_S = 5.0
MAX_APART_S = 2.0
"""The largest difference between clocks. Beyond it times in logs, leases and budgets' windows no
longer agree."""
USED_SHARE = 0.8
BOUNDS = {"maxmemory-clients": MAX_CLIENTS_BYTES, "proto-max-bulk-len": MAX_VALUE_BYTES}
"""The most that these settings may be where a host is invited; 0 is no bound."""


def redis_findings(config: Config) -> Iterator[Finding]:
    try:
        client = redis.Redis.from_url(
            config.redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
    except ValueError as error:
        yield failed(CHECK, f"REDIS_URL is no address of a Redis: {error}", "see the settings page")
        return
    with contextlib.closing(client):
        try:
            yield from _findings(client)
        except (redis.RedisError, OSError) as error:
            yield failed(CHECK, f"does not answer: {error}", _how_to_reach(config))


def _findings(client: redis.Redis) -> Iterator[Finding]:
    before_s = time.time()
    client.ping()
    took_ms = (time.time() - before_s) * 1000
    yield from clock_findings(_time_of(client), before_s, time.time())
    try:
        facts: Any = client.info()
    except redis.ResponseError:
        yield ok(CHECK, f"answers in {took_ms:.0f} ms; this user may not ask it for more")
        return
    yield from info_findings(facts, took_ms)
    yield from _bounds(client)


def _bounds(client: redis.Redis) -> Iterator[Finding]:
    try:
        users: Any = client.acl_users()
        settings = {name: int(client.config_get(name)[name] or 0) for name in BOUNDS}
    except (redis.ResponseError, KeyError):
        return  # an older one, or one that does not show them to this user
    yield from bounds_findings([_text(user) for user in users], settings)


def bounds_findings(users: Sequence[str], settings: Mapping[str, int]) -> Iterator[Finding]:
    """What follows from the bounds of a Redis that invited hosts reach. Pure."""
    if not any(user.startswith(USER_PREFIX) for user in users):
        return
    for name, most in BOUNDS.items():
        if settings[name] == 0 or settings[name] > most:
            yield warning(
                CHECK,
                f"{name} is {settings[name]}: an invited host can fill Redis' memory",
                f"set {name} {most}",
            )


def info_findings(facts: dict[str, Any], took_ms: float) -> Iterator[Finding]:
    """The findings from Redis' ``INFO``. Pure."""
    word = str(facts.get("redis_version", "0"))
    version = tuple(int(part) for part in word.split(".")[:2] if part.isdigit())
    policy = facts.get("maxmemory_policy", "noeviction")
    limit, used = int(facts.get("maxmemory", 0)), int(facts.get("used_memory", 0))
    findings = []
    if version < MIN_VERSION:
        findings.append(failed(CHECK, f"{word} is too old", "upgrade it to 7 or newer"))
    elif version < INVITING_VERSION:
        findings.append(
            warning(CHECK, f"{word} cannot confine invited hosts", "upgrade it to 7 or newer")
        )
    if policy != "noeviction":
        findings.append(
            failed(
                CHECK,
                f"maxmemory-policy is {policy}: it may throw away what requests wait for",
                "set maxmemory-policy noeviction",
            )
        )
    if limit and used > USED_SHARE * limit:
        findings.append(
            warning(CHECK, f"{used / limit:.0%} of maxmemory is in use", "raise maxmemory")
        )
    yield from findings
    if not findings:
        yield ok(CHECK, f"{word} answers in {took_ms:.0f} ms and evicts nothing")


def clock_findings(there_s: float, before_s: float, after_s: float) -> Iterator[Finding]:
    """``there_s`` was read from Redis' clock between the other two, which are ours. Pure."""
    apart_s = max(before_s - there_s, there_s - after_s, 0.0)
    if apart_s > MAX_APART_S:
        yield warning(
            CLOCK,
            f"this host and Redis' host are {apart_s:.1f} s apart",
            "let both follow a time server: timedatectl set-ntp true",
        )
    else:
        yield ok(CLOCK, "agrees with Redis' host")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _time_of(client: redis.Redis) -> float:
    facts: Any = client.time()
    seconds, microseconds = facts
    return float(seconds) + float(microseconds) / 1e6


def _how_to_reach(config: Config) -> str:
    if config.redis_url.startswith("unix://"):
        return f"{program()} serve runs it: start that, or set REDIS_URL"
    return (
        f"start {program()} serve here, or set REDIS_URL to a Redis that runs and lets this host in"
    )
