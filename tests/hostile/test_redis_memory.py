"""What an invited host can make Redis hold for its connections, before anybody has looked: the
private Redis as it is configured, by its own count of the most that it ever held."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from fleet.redis_users import rules, user_name
from inference.protocol import keys
from inference.redis_connections import connect_exempt
from tests.hostile.conftest import EVIL, MAX_GROWTH_BYTES, MB
from tests.hostile.hostile_host import VALUE
from tests.servers.private_redis import MortalRedis, mortal_redis

WAIT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MortalRedis]:
    with mortal_redis(tmp_path) as made:
        yield made


def long_transaction(evil: redis.Redis) -> None:
    pipeline = evil.pipeline(transaction=True)
    for _ in range(50):
        pipeline.set(keys.heartbeat_key(EVIL), VALUE)
    pipeline.execute()


def unread_answers(evil: redis.Redis) -> None:
    evil.set(keys.heartbeat_key(EVIL), VALUE)
    for _ in range(8):
        connection = evil.connection_pool.get_connection()
        for _ in range(50):
            connection.send_command("GET", keys.heartbeat_key(EVIL))


def unfinished_commands(evil: redis.Redis) -> None:
    for _ in range(50):
        connection: Any = evil.connection_pool.get_connection()
        connection._sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$3000000\r\n" + b"x" * 2_900_000)


ATTACKS: dict[str, Callable[[redis.Redis], object]] = {
    "a large value": lambda evil: evil.set(keys.heartbeat_key(EVIL), b"x" * 300 * MB),
    "many arguments": lambda evil: evil.hset(
        keys.held_key(EVIL), mapping={str(number): VALUE for number in range(50)}
    ),
    "a long transaction": long_transaction,
    "unread answers": unread_answers,
    "unfinished commands": unfinished_commands,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_its_connections_take_little_and_those_of_gateways_stay(
    server: MortalRedis, name: str
) -> None:
    gateway = redis.Redis.from_url(
        server.url, single_connection_client=True, redis_connect_func=connect_exempt
    )
    identity, before = gateway.client_id(), memory(gateway)["used_memory"]
    secret = "0" * 64  # of a password that is not used here: the user is given one in clear below
    words = rules(EVIL, secret, (7, 0))
    gateway.execute_command("ACL", "SETUSER", user_name(EVIL), *words, ">secret")
    path = server.url.partition("@")[2]
    evil = redis.Redis.from_url(f"unix://{user_name(EVIL)}:secret@{path}", socket_timeout=WAIT_S)
    with suppress(redis.ConnectionError):  # Redis has closed it
        ATTACKS[name](evil)
    seen = memory(gateway)
    assert seen["used_memory_peak"] - before <= MAX_GROWTH_BYTES
    assert gateway.client_id() == identity
    evil.close()
    deadline_s = time.monotonic() + WAIT_S
    while memory(gateway)["mem_clients_normal"] > 20 * MB and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert memory(gateway)["mem_clients_normal"] <= 20 * MB, "its connections are still held"
    gateway.close()


def memory(client: redis.Redis) -> dict[str, int]:
    found: dict[str, int] = client.info("memory")  # type: ignore[assignment]
    return found
