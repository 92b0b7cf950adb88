"""Every command that Redis has, on keys of every family, by the user of an invited neuron."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fleet.redis_users import rules, secret_hash, user_name, users_apply
from inference.protocol import keys
from tests.fleet.services.invited_hosts import guest, invite
from tests.hostile.wrong import QUEUE_FAMILIES, of_neuron, of_no_neuron

NAME = "beast"
NO_KEYS = {
    *("ping", "hello", "auth", "quit", "reset", "client|setname", "client|id", "client|setinfo"),
    *("multi", "exec", "discard", "unwatch"),
}
"""Commands without a key; every client may log in and quit."""
READ_AND_WRITE = {
    *("get", "set", "del", "exists", "expire", "pexpire", "pttl", "watch"),
    *("hget", "hset", "hsetnx", "hdel", "hgetall", "xadd", "xlen", "xrange", "xdel"),
    *("brpop", "rpop", "lpush", "rpush", "llen", "sadd", "srem", "smembers", "sismember"),
}


OWN = dict.fromkeys(
    (
        *("lease", "heartbeat", "held", "preparing", "downloads", "specs", "usage"),
        *("events", "engine_log", *QUEUE_FAMILIES),
    ),
    READ_AND_WRITE,
) | {
    "inbox": {"xrange", "xdel"},
    "images": {"hmget", "del"},
}
"""The commands that a neuron may use on its own keys, by family."""
OTHERS = {
    **{f"another's {family}": key for family, key in of_neuron("other").items()},
    **{f"a longer name's {family}": key for family, key in of_neuron(f"{NAME}2").items()},
    **of_no_neuron(),
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
    """Returns the arity of every command that this Redis has, as it counts them: negative where
    there may be more."""
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
    replies = pipeline.execute(raise_on_error=False)
    assert len(replies) > 200
    return {
        name for name, answer in zip(arities, replies, strict=True) if answer == b"OK"
    } - NO_KEYS


def test_its_own_keys(client: redis.Redis, arities: dict[str, int]) -> None:
    found = {family: allowed(client, arities, key) for family, key in of_neuron(NAME).items()}
    assert found == OWN


def test_no_rule_opens_a_key_of_no_family(client: redis.Redis) -> None:
    own = [*of_neuron(NAME).values(), keys.gateway_alive_key("gw")]
    for rule in rules(NAME, secret_hash("s"), (7, 2)):
        for pattern in re.findall(r"~([^)]+)", rule):
            assert any(fnmatch.fnmatchcase(key, pattern) for key in own), pattern


def test_no_command_reaches_another_key(client: redis.Redis, arities: dict[str, int]) -> None:
    found = {what: allowed(client, arities, key) for what, key in OTHERS.items()}
    assert {what: names for what, names in found.items() if names} == {"gateway_alive": {"exists"}}


@pytest.mark.django_db(transaction=True)
def test_its_own_client_stays_in_its_own_database_and_subscribes_to_nothing(
    redis_url: str, shared_redis: redis.Redis
) -> None:
    client = guest(redis_url, invite())
    client.xadd("helexa:neuron:beast:usage", {b"r": b"x"})
    script = f"return redis.call('GET', '{keys.heartbeat_key('other')}')"
    for command in (("SUBSCRIBE", "x"), ("EVAL", script, "0"), ("SELECT", "1"), ("KEYS", "*")):
        with pytest.raises(redis.ResponseError, match=r"permission|can't access|can't run"):
            client.execute_command(*command)
