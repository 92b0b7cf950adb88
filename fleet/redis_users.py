"""The Redis user of an invited neuron, restricted to the keys that it needs.

    its own keys        of helexa:neuron:<name>:*, its Celery queue     read and write
    what it is sent     frames and images                               read and delete
    gateways' signs     of life                                         look whether they are there

It cannot read keys of gateways or other neurons, nor their limits, nor list any keys. Needs Redis
7, which has separate permissions to read and to write. The gateway's own user keeps its password.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import redis

from inference.protocol.keys import (
    gateway_alive_key,
    images_key,
    inbox_key,
    queue_keys,
)

logger = logging.getLogger(__name__)

USER_PREFIX = "neuron-"
MINIMUM_REDIS = 7
COMMANDS = (
    # connections and transactions
    *("ping", "hello", "client|setname", "client|id"),
    *("multi", "exec", "discard", "watch", "unwatch"),
    # its own keys
    *("get", "set", "del", "exists", "expire", "pexpire", "pttl"),
    *("hget", "hset", "hsetnx", "hdel", "hgetall"),
    *("xadd", "xlen", "xrange", "xdel"),
    # its queue, as kombu uses it
    *("brpop", "rpop", "lpush", "rpush", "llen"),
    *("sadd", "srem", "smembers", "sismember"),
)
OWN_KEYS = (
    *("lease", "heartbeat", "held", "preparing", "downloads", "specs", "usage"),
    *("events:*", "log:*"),
)
"""A neuron's keys under its own prefix; ``usage`` is written by those of helexa 0.2.0."""
SINCE_7_2 = ("client|setinfo",)
"""An older Redis refuses a rule with an unknown command, and clients do without."""


def user_name(neuron: str) -> str:
    return USER_PREFIX + neuron


def secret_hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def rules(
    neuron: str, secret_sha256: str, version: tuple[int, int], database: int = 0
) -> list[str]:
    """Returns the arguments of ACL SETUSER for a Redis of that version. A name contains no
    character that is special in a pattern. Patterns of keys hold in every database of Redis, so the
    user may select ours alone: its writes to another one would not be measured."""
    commands = (*COMMANDS, *SINCE_7_2) if version >= (7, 2) else COMMANDS
    return [
        *("reset", "on", f"#{secret_sha256}"),
        *(f"+{command}" for command in commands),
        f"+select|{database}",
        *(f"~helexa:neuron:{neuron}:{key}" for key in OWN_KEYS),
        *(f"~{key}" for key in queue_keys(neuron)),
        f"(+xrange +xdel ~{inbox_key(neuron)})",
        f"(+hmget +del ~{images_key(neuron, '*')})",
        f"(+exists %R~{gateway_alive_key('*')})",
    ]


def invited_names(client: redis.Redis) -> set[str]:
    """The neurons with Redis users of their own. Raises ``redis.RedisError``."""
    names = {name.decode() if isinstance(name, bytes) else name for name in client.acl_users()}
    return {name.removeprefix(USER_PREFIX) for name in names if name.startswith(USER_PREFIX)}


def users_apply(
    client: redis.Redis, secrets: Mapping[str, str], *, again: Iterable[str] = ()
) -> None:
    """Makes the missing users of ``secrets`` (neuron to hash) and those of ``again``, and removes
    those of neurons that are not invited. Raises ``redis.RedisError``."""
    there = invited_names(client)
    if wanted := [neuron for neuron in secrets if neuron not in there or neuron in again]:
        version = _version(client)
        database = client.connection_pool.connection_kwargs.get("db") or 0
        for neuron in wanted:
            words = rules(neuron, secrets[neuron], version, database)
            _execute(client, "ACL SETUSER", user_name(neuron), *words)
    if gone := sorted(there - secrets.keys()):
        client.acl_deluser(*(user_name(neuron) for neuron in gone))
        logger.warning("these neurons may come in no more: %s", ", ".join(gone))


def _execute(client: Any, *words: str) -> None:
    """A command that redis-py has no types for."""
    client.execute_command(*words)


def version_problem(client: redis.Redis) -> str | None:
    """Raises ``redis.RedisError``."""
    major, minor = _version(client)
    if major >= MINIMUM_REDIS:
        return None
    return f"inviting a neuron needs Redis {MINIMUM_REDIS} or newer; this one is {major}.{minor}"


def _version(client: redis.Redis) -> tuple[int, int]:
    major, minor, *_ = str(client.info("server")["redis_version"]).split(".")
    return int(major), int(minor)
