"""An invited neuron that writes too much is shut out, with its reason, and no other one is; and
what it can make Redis hold for its connections, before anybody has looked: the private Redis as it
is configured, by its own count of the most that it ever held."""

from __future__ import annotations

import html
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client

from fleet import services
from fleet.models import Invitation, Neuron
from fleet.redis_users import LOOK_AFTER_BYTES, FloodWatch, rules, user_name
from fleet.services import cut_off
from inference.protocol import keys
from inference.redis_link import connect_exempt
from metering.audit import GATEWAY
from metering.models import AuditEntry
from tests.fleet.services.invited_hosts import guest, invite
from tests.hostile.conftest import EVIL, MAX_GROWTH_BYTES, MB
from tests.hostile.hostile_host import VALUE
from tests.live.serving import wait_until
from tests.servers.private_redis import mortal_redis

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _small_bounds(shared_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_off, "MAX_NEURON_BYTES", 2 * MB)
    monkeypatch.setattr(cut_off, "MAX_UNTAKEN_BYTES", 24 * MB)
    monkeypatch.setattr(cut_off, "MAX_CONNECTION_BYTES", 8 * MB)
    cut_off._excess_since_s.clear()


def is_in(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def cut_off_at(client: redis.Redis, now_s: float) -> int:
    return services.oversized_neurons_cut_off(client=client, now_s=now_s)


LARGE = b"x" * 3 * MB
FLOODS: dict[str, Callable[[redis.Redis, str], Any]] = {
    "heartbeat": lambda client, name: client.set(keys.heartbeat_key(name), LARGE),
    "held": lambda client, name: client.hset(keys.held_key(name), "", LARGE),
    "events": lambda client, name: [
        client.xadd(keys.events_key(name, f"gw{number}"), {b"b": b"x" * MB}) for number in range(3)
    ],
    "usage": lambda client, name: client.xadd(f"helexa:neuron:{name}:usage", {b"r": LARGE}),
    "log": lambda client, name: client.rpush(keys.engine_log_key(name, "a"), LARGE),
    "queue": lambda client, name: client.lpush(keys.neuron_queue(name), LARGE),
    "priority": lambda client, name: client.lpush(keys.queue_keys(name)[1], LARGE),
    "binding": lambda client, name: client.sadd(keys.queue_keys(name)[-1], LARGE),
    "many keys": lambda client, name: [
        client.set(keys.engine_log_key(name, str(number)), b"x")
        for number in range(cut_off.MAX_NEURON_KEYS + 1)
    ],
}


def test_a_flood_is_cut_off_with_its_reason(redis_url: str, redis_db: redis.Redis) -> None:
    honest = guest(redis_url, invite("beast"))
    honest.set(keys.heartbeat_key("beast"), b"fine")
    for number, (what, flood) in enumerate(FLOODS.items()):
        name = f"evil{number}"
        evil = guest(redis_url, invite(name))
        flood(evil, name)
        assert cut_off_at(redis_db, 0.0) == 1, what
        assert cut_off_at(redis_db, 0.0) == 0, what
        assert not is_in(evil) and is_in(honest), what
        assert redis_db.keys(f"*{name}*") == [], what
        assert honest.get(keys.heartbeat_key("beast")) == b"fine"
        row = Invitation.objects.get(neuron_name=name)
        assert row.cut_off_at is not None and row.cut_off_reason, what
        (problem,) = Neuron.objects.get(name=name).problems
        assert "cut off" in problem and row.cut_off_reason in problem
        assert AuditEntry.objects.filter(action="neuron.cut_off", object_id=name).count() == 1


def test_a_flood_is_seen_between_two_ticks(redis_url: str, redis_db: redis.Redis) -> None:
    """It is seen as soon as Redis has grown by as much as one look is worth, and not before."""
    evil, num_looks = guest(redis_url, invite("evil")), 0

    def measure() -> None:
        nonlocal num_looks
        num_looks += 1
        services.flooding_neurons_cut_off(client=redis_db)

    wait_until(
        lambda: memory(redis_db)["lazyfree_pending_objects"] == 0, "what others wrote is freed"
    )
    watch = FloodWatch(redis_db, measure)
    assert not watch.look()
    evil.rpush(keys.engine_log_key("evil", "a"), b"x" * MB)
    assert not watch.look() and num_looks == 0
    for _ in range(LOOK_AFTER_BYTES // (3 * MB) + 1):
        evil.rpush(keys.engine_log_key("evil", "a"), b"x" * 3 * MB)
    assert watch.look() and num_looks == 1
    assert not is_in(evil) and not watch.look()


def test_a_watch_is_for_invited_hosts_and_in_the_log_where_redis_refuses_it(
    redis_url: str, redis_db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The user of an invited host may not ask for what the watch reads."""
    assert not FloodWatch(redis_db, lambda: None).is_needed()
    watch = FloodWatch(guest(redis_url, invite("beast")), lambda: None)
    assert FloodWatch(redis_db, lambda: None).is_needed()
    watch.start()
    wait_until(lambda: "not watched for floods" in caplog.text, "a warning")
    watch.stop()


SENT: dict[str, Callable[[redis.Redis, str, int], Any]] = {
    "frames": lambda client, name, num_bytes: [
        client.xadd(keys.inbox_key(name), {keys.INBOX_FRAME_FIELD: b"x" * MB})
        for _ in range(num_bytes // MB)
    ],
    "images": lambda client, name, num_bytes: [
        client.hset(keys.images_key(name, f"r{number}"), "digest", b"x" * MB)
        for number in range(num_bytes // MB)
    ],
}


@pytest.mark.parametrize("kind", SENT)
def test_what_it_never_takes_is_cut_off(redis_url: str, redis_db: redis.Redis, kind: str) -> None:
    """A burst that it takes is not."""
    evil, honest = guest(redis_url, invite("evil")), guest(redis_url, invite("beast"))
    SENT[kind](redis_db, "evil", 25 * MB)
    for now_s, num_cut_off in ((100.0, 0), (111.0, 1), (122.0, 0)):
        SENT[kind](redis_db, "beast", 25 * MB)
        assert cut_off_at(redis_db, now_s) == num_cut_off
        redis_db.delete(*redis_db.keys("helexa:neuron:beast:*"))
        assert cut_off_at(redis_db, now_s + 1) == 0
    assert not is_in(evil) and is_in(honest)
    assert redis_db.keys("helexa:neuron:evil:*") == []
    assert "does not take its requests" in Invitation.objects.get(neuron_name="evil").cut_off_reason


def test_answers_that_it_does_not_read_are_cut_off(redis_url: str, redis_db: redis.Redis) -> None:
    """They are in no key: no bound of keys counted them."""
    evil, honest = guest(redis_url, invite("evil")), guest(redis_url, invite("beast"))
    for client, name in ((evil, "evil"), (honest, "beast")):
        client.set(keys.heartbeat_key(name), b"x" * MB)
    unread = evil.connection_pool.get_connection()
    for _ in range(18):  # over 24 MiB of them Redis closes the connection itself
        unread.send_command("GET", keys.heartbeat_key("evil"))
    for _ in range(30):
        honest.get(keys.heartbeat_key("beast"))
    assert cut_off_at(redis_db, 100.0) == 0
    assert cut_off_at(redis_db, 111.0) == 1
    assert not is_in(evil) and is_in(honest)
    reason = Invitation.objects.get(neuron_name="evil").cut_off_reason
    assert "does not read what it asks for" in reason
    users = [one["user"] for one in redis_db.client_list()]
    assert "neuron-evil" not in users and "neuron-beast" in users


def test_the_dashboard_names_it_and_why_and_invited_again_it_is_back(
    admin_client: Client, redis_url: str, redis_db: redis.Redis
) -> None:
    assert not services.neuron_cut_off(actor=GATEWAY, neuron_name="own", reason="it lied")
    assert not Neuron.objects.exists(), "nobody invited it"
    evil = guest(redis_url, invite("evil"))
    FLOODS["usage"](evil, "evil")
    cut_off_at(redis_db, 0.0)
    board = admin_client.get("/admin/").content.decode()
    assert "evil" in board and Invitation.objects.get().cut_off_reason in html.unescape(board)
    evil = guest(redis_url, invite("evil"))
    assert services.neuron_cut_off(actor=GATEWAY, neuron_name="evil", reason="it lied")
    assert not services.neuron_cut_off(actor=GATEWAY, neuron_name="evil", reason="again")
    services.redis_users_apply()  # as each of the control's ticks does
    assert not is_in(evil)
    assert is_in(guest(redis_url, invite("evil")))
    assert Invitation.objects.get().cut_off_at is None


def test_too_many_connections_are_cut_off(
    redis_url: str, redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_off, "MAX_CONNECTIONS", 10)
    evil, honest = guest(redis_url, invite("evil")), guest(redis_url, invite("beast"))
    opened = [evil.connection_pool.get_connection() for _ in range(11)]
    assert is_in(honest)
    assert cut_off_at(redis_db, 0.0) == 1
    assert not is_in(evil) and is_in(honest)
    assert "11 connections" in Invitation.objects.get(neuron_name="evil").cut_off_reason
    for connection in opened:
        connection.disconnect()


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
def test_its_connections_take_little_memory(tmp_path: Path, name: str) -> None:
    secret = "0" * 64  # of a password that is not used here: the user is given one in clear below
    words = rules(EVIL, secret, (7, 0))
    with mortal_redis(tmp_path) as server:
        gateway = redis.Redis.from_url(
            server.url, single_connection_client=True, redis_connect_func=connect_exempt
        )
        identity, before = gateway.client_id(), memory(gateway)["used_memory"]
        gateway.execute_command("ACL", "SETUSER", user_name(EVIL), *words, ">secret")
        path = server.url.partition("@")[2]
        evil = redis.Redis.from_url(f"unix://{user_name(EVIL)}:secret@{path}", socket_timeout=60.0)
        with suppress(redis.ConnectionError):  # Redis has closed it
            ATTACKS[name](evil)
        assert memory(gateway)["used_memory_peak"] - before <= MAX_GROWTH_BYTES
        assert gateway.client_id() == identity
        evil.close()
        wait_until(lambda: memory(gateway)["mem_clients_normal"] <= 20 * MB, "it holds nothing")
        gateway.close()


def memory(client: redis.Redis) -> dict[str, int]:
    found: dict[str, int] = client.info("memory")  # type: ignore[assignment]
    return found
