"""Every command that Redis has, on keys of every family, by the user of an invited neuron."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fleet.redis_users import secret_hash, user_name, users_apply
from inference.protocol import keys

NAME = "beast"
NO_KEYS = {
    *("ping", "hello", "auth", "quit", "reset", "client|setname", "client|id", "client|setinfo"),
    *("multi", "exec", "discard", "unwatch"),
}
"""What names no key; nobody can be kept from logging in and leaving."""
READ_AND_WRITE = {
    *("get", "set", "del", "exists", "expire", "pexpire", "pttl", "watch"),
    *("hget", "hset", "hsetnx", "hdel", "hgetall", "xadd", "xrange", "xdel"),
    *("brpop", "rpop", "lpush", "rpush", "llen", "sadd", "srem", "smembers", "sismember"),
}


def families(name: str) -> dict[str, str]:
    """A key of each kind that belongs to the neuron of that name."""
    return {
        "lease": keys.lease_key(name),
        "heartbeat": keys.heartbeat_key(name),
        "held": keys.held_key(name),
        "preparing": keys.preparing_key(name),
        "downloads": keys.downloads_key(name),
        "specs": keys.specs_key(name),
        "usage": keys.usage_key(name),
        "events": keys.events_key(name, "gw"),
        "log": keys.engine_log_key(name, "ask"),
        "queue": keys.neuron_queue(name),
        "priority": f"{keys.neuron_queue(name)}\x06\x163",
        "frames": keys.inbox_key(name),
        "images": keys.images_key(name, "r"),
    }


OWN = dict.fromkeys(families(NAME), READ_AND_WRITE) | {
    "frames": {"xrange", "xdel"},
    "images": {"hgetall", "del"},
}
OTHERS = {
    **{f"another's {family}": key for family, key in families("other").items()},
    **{f"a longer name's {family}": key for family, key in families(f"{NAME}2").items()},
    "neurons": keys.NEURONS,
    "wishes": keys.NEURON_WISHES,
    "control queue": keys.CONTROL_QUEUE,
    "leader": keys.CONTROL_LEADER,
    "turns": keys.TURNS,
    "waiting": keys.WAITING,
    "marker": keys.gateway_marker_key("gw"),
    "limit": keys.limit_counts_key("key", "hx-1"),
    "open": keys.limit_open_key("account", "a"),
    "unacked": "unacked",
    "anything": "x",
    "its own, of no family": f"helexa:neuron:{NAME}:anything",
}


@pytest.fixture
def client(redis_db: redis.Redis) -> Iterator[redis.Redis]:
    users_apply(redis_db, {NAME: secret_hash("s")})
    yield redis_db
    redis_db.acl_deluser(user_name(NAME))


@pytest.fixture
def arities(client: redis.Redis) -> dict[str, int]:
    """Of every command that this Redis has, as it counts them: negative where there may be more."""
    run: Any = client.execute_command
    infos = run("COMMAND INFO", *run("COMMAND LIST"))
    return {name.decode(): arity for name, arity, *_ in infos}


def allowed(client: redis.Redis, arities: dict[str, int], key: str) -> set[str]:
    """The commands that it may give with that key in each place, but for those without keys."""
    pipeline: Any = client.pipeline(transaction=False)
    for name, arity in arities.items():
        words = name.split("|")
        num_keys = abs(arity) - len(words) if arity > 0 else max(-arity - len(words), 1)
        pipeline.execute_command("ACL DRYRUN", user_name(NAME), *words, *[key] * num_keys)
    told = pipeline.execute(raise_on_error=False)
    assert len(told) > 200
    return {name for name, answer in zip(arities, told, strict=True) if answer == b"OK"} - NO_KEYS


def test_its_own_keys(client: redis.Redis, arities: dict[str, int]) -> None:
    for family, key in families(NAME).items():
        assert allowed(client, arities, key) == OWN[family], family


def test_no_command_reaches_another_key(client: redis.Redis, arities: dict[str, int]) -> None:
    for what, key in OTHERS.items():
        assert allowed(client, arities, key) == set(), what
    assert allowed(client, arities, keys.gateway_alive_key("gw")) == {"exists"}
