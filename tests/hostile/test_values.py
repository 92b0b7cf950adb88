"""An invited neuron writes anything of any type and size under each of its keys: the others run on.

Every family of keys that is its own, and every kind of value. Counts stand here for times that are
measured elsewhere: an honest neuron's answers, and the reads of gateways and controls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from fleet.live import reading as live
from fleet.live.desired_state import (
    AdmissionPolicy,
    DesiredState,
    DesiredStates,
    encode_desired_states,
)
from fleet.live.reading import read_cache_reports
from fleet.redis_users import COMMANDS
from inference.gateway.gateway import Gateway
from inference.protocol import keys
from tests.hostile.conftest import EVIL
from tests.hostile.hostile_host import VALUE_BYTES, many_ids
from tests.hostile.wrong import of_neuron
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import FakeNeuron

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SMALL_REPLIES_BYTES = 8 << 20
MANY_IDS = many_ids(300_000)
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}

Write = Callable[[redis.asyncio.Redis, str, str], Awaitable[Any]]
"""Given the client, the key and the gateway's id."""
VALUES: dict[str, Write] = {
    "text": lambda client, key, _: client.set(key, b"\x1b[2J junk"),
    "large text": lambda client, key, _: client.set(key, b"[" * VALUE_BYTES),
    "list": lambda client, key, _: client.lpush(key, b"x" * VALUE_BYTES, b"x" * VALUE_BYTES),
    "set": lambda client, key, _: client.sadd(key, b"x"),
    "sorted set": lambda client, key, _: client.zadd(key, {b"x": 1.0}),
    "hash": lambda client, key, id: client.hset(key, mapping={"": b"\xc1", id: b"\xc1"}),
    "large hash": lambda client, key, id: client.hset(
        key, mapping={"": b"x" * VALUE_BYTES, id: b"x" * VALUE_BYTES}
    ),
    "many fields": lambda client, key, _: client.hset(
        key, mapping={str(number): b"x" for number in range(50_000)}
    ),
    "many ids": lambda client, key, id: client.hset(key, mapping={"": MANY_IDS, id: MANY_IDS}),
    "stream": lambda client, key, _: client.xadd(key, {b"b": b"\xc1", b"r": b"\xc1"}),
    "large stream": lambda client, key, _: large_stream(client, key),
    "largest id": lambda client, key, _: client.xadd(
        key, {b"b": b"x"}, id=f"{2**64 - 1}-{2**64 - 1}"
    ),
}


async def large_stream(client: redis.asyncio.Redis, key: str) -> None:
    """While the gateway's answer waits to be read, Redis may close the connections of others."""
    for _ in range(10):
        with suppress(redis.ConnectionError):
            await client.xadd(key, {b"b": b"x" * VALUE_BYTES})


TYPES = {"@string", "@list", "@set", "@sortedset", "@hash", "@stream", "@bitmap", "@geo"}
"""Redis' categories of commands by the type of the values that they write."""


async def test_every_type_that_it_can_write_is_tried(redis_client: redis.asyncio.Redis) -> None:
    tried = set()
    for name, write in VALUES.items():
        await write(redis_client, name, "gw")
        tried.add("@" + (await redis_client.type(name)).decode().replace("zset", "sortedset"))
    infos = await redis_client.execute_command("COMMAND INFO", *COMMANDS)
    written = {category.decode() for info in infos for category in info[6]} & TYPES
    assert len(infos) == len(COMMANDS) and written and written <= tried


@pytest.fixture
async def invited(redis_client: redis.asyncio.Redis) -> None:
    states = DesiredStates(
        by_neuron={EVIL: DesiredState(), "beast": DesiredState()}, policy=AdmissionPolicy.AUTOMATIC
    )
    await redis_client.hset(keys.NEURON_DESIRED_STATES, mapping=encode_desired_states(states))


async def no_large_reply_waits(client: redis.asyncio.Redis) -> None:
    """While one does, Redis closes the connections of neurons. Real ones send again; the one of
    these tests does not."""
    held_bytes = None
    try:
        async with asyncio.timeout(60):
            while held_bytes is None or held_bytes >= SMALL_REPLIES_BYTES:
                await asyncio.sleep(0.02)
                with suppress(redis.RedisError):
                    held_bytes = (await client.info("memory"))["mem_clients_normal"]
    except TimeoutError:
        raise AssertionError(f"clients still hold {held_bytes} bytes") from None


@pytest.mark.parametrize("value", VALUES)
async def test_any_value_under_any_key(
    client: AsgiClient,
    gateway: Gateway,
    neuron: FakeNeuron,
    redis_client: redis.asyncio.Redis,
    redis_db: redis.Redis,
    invited: None,
    value: str,
) -> None:
    for family, key in of_neuron(EVIL, gateway_id=gateway.gateway_id).items():
        await neuron.beat()
        assert (await client.post(CHAT, BODY)).status == 200, family
        await gateway.readers.ensure(EVIL)
        # In place at once: the gateway makes a stream of its neuron that is gone anew.
        await VALUES[value](redis_client, f"made:{key}", gateway.gateway_id)
        await redis_client.rename(f"made:{key}", key)

        await no_large_reply_waits(redis_client)
        snapshot = await live.read_snapshot(redis_client)
        assert [view.name for view in snapshot.neurons] == ["beast"], family
        reports = live.read_live_fleet(redis_db).reports
        assert [r.name for r in reports if r.heartbeat] == ["beast"], family
        for _ in range(3):
            await gateway.held.look(["beast", EVIL])
            await gateway.readers.upkeep(["beast", EVIL])
        assert await gateway.liveness.preparing(EVIL) == {} or family == "preparing"
        assert read_cache_reports(redis_db, [EVIL, "beast"]) == {}, family
        await no_large_reply_waits(redis_client)
        assert (await client.post(CHAT, BODY)).status == 200, family
        await redis_client.delete(key)
