"""The Redis user of an invited neuron, restricted to the keys that it needs, and the flood watch.

    its own keys        of helexa:neuron:<name>:*, its Celery queue     read and write
    what it is sent     frames and images                               read and delete
    gateways' signs     of life                                         look whether they are there

It cannot read keys of gateways or other neurons, nor list any. Needs Redis 7, which has separate
permissions to read and to write.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis

from inference.logs import ThrottledLog
from inference.protocol.keys import (
    gateway_alive_key,
    images_key,
    inbox_key,
    queue_keys,
)
from inference.supervised_threads import SupervisedThread

logger = logging.getLogger(__name__)
_warnings = ThrottledLog(logger, logging.WARNING, interval_s=3600.0)

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

POLL_INTERVAL_S = 0.02
PAUSE_S = 1.0
LOOK_AFTER_BYTES = 8 * 1024 * 1024
"""Half of a neuron's limit beside its events."""


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
    all others. Raises ``redis.RedisError``."""
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


class FloodWatch:
    """Detects invited neurons that flood Redis between the control's ticks. Redis has no limit of
    bytes for a user: a host writes until its user is removed, as much as its network carries.
    ``measure``, which cuts off neurons, measures keys, so it is called only when the used memory
    has grown by ``LOOK_AFTER_BYTES``. ``client`` serves this thread alone."""

    def __init__(self, client: redis.Redis, measure: Callable[[], object]) -> None:
        self._client = client
        self._measure = measure
        self._least_bytes: int | None = None
        self._ended = threading.Event()
        self._thread: SupervisedThread | None = None

    def start(self) -> None:
        self._thread = SupervisedThread(self._run, name="flood watch")
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def look(self) -> bool:
        """Whether neurons were measured. Raises ``redis.RedisError``."""
        held = self._held_bytes()
        if self._least_bytes is None or held < self._least_bytes:
            self._least_bytes = held
        if held - self._least_bytes < LOOK_AFTER_BYTES:
            return False
        self._measure()
        self._least_bytes = self._held_bytes()
        return True

    def is_needed(self) -> bool:
        """Whether any host is invited. Raises ``redis.RedisError``."""
        return bool(invited_names(self._client))

    def _watch_for(self, duration_s: float) -> None:
        for _ in range(round(duration_s / POLL_INTERVAL_S)):
            self.look()
            if self._ended.wait(POLL_INTERVAL_S):
                return

    def _held_bytes(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if self.is_needed():
                    self._watch_for(PAUSE_S)
                else:
                    self._pause()
            except redis.ResponseError as error:
                _warnings.log("refused", f"Redis is not watched for floods, it refuses: {error}")
                self._pause()
            except (redis.RedisError, OSError):  # the control's ticks log that Redis is offline
                self._pause()

    def _pause(self) -> None:
        self._least_bytes = None
        self._ended.wait(PAUSE_S)
