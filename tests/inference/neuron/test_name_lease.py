"""One neuron holds its name's lease: who has it, who waits, and who has to end; and which gateways
it takes for dead."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from helexa_site.data_directory import Share, keep_joining, redis_url_of
from inference.neuron import name_lease
from inference.neuron.heartbeat import (
    MISSES_UNTIL_DEAD_ANYWAY,
    GatewayWatch,
    Heart,
    queue_heartbeat,
)
from inference.neuron.name_lease import (
    REFUSED_LIMIT_S,
    AccessRefusal,
    InvitationVoidError,
    NameHeldError,
    NameLease,
    NameLostError,
    PreviousInstance,
    RedisUntrustedError,
    connect,
)
from inference.protocol.joining import Joining
from inference.protocol.keys import (
    HEARTBEAT_INTERVAL_S,
    SETTLING_S,
    gateway_alive_key,
    heartbeat_key,
    lease_key,
)
from tests.inference.neuron.conftest import TestNeuron
from tests.live.fleets.certificates import Authority
from tests.servers.private_redis import MortalRedis
from tests.servers.tls_front import tls_front


@pytest.fixture
def make_lease(redis_url: str):
    return lambda epoch: NameLease(connect(redis_url), neuron="n1", epoch=epoch)


def beating(lease: NameLease) -> threading.Event:
    """Writes under it as a neuron does, until the event is set."""
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(0.05):
            lease.write(lambda _pipe: None)

    threading.Thread(target=beat, daemon=True).start()
    return stopped


def none(_: float) -> None:
    pytest.fail("there is nothing to wait for")


@pytest.mark.slow
def test_a_name_is_free_held_or_released(make_lease, redis_db, caplog, tmp_path: Path) -> None:
    first, second = make_lease("first-epoch"), make_lease("second")
    for lease in (first, second):
        lease.acquire(sleep=none)
        assert 0 < redis_db.pttl(lease_key("n1")) <= 4000
        first.release()
    second.confirm()
    with pytest.raises(NameLostError):
        first.confirm()
    redis_db.flushall()  # a Redis that came back empty gives it back
    second.confirm()
    assert redis_db.get(lease_key("n1")) == second.value
    second.release()
    dead = PreviousInstance(tmp_path, "n1")
    make_lease("dead").acquire(dead)
    dead.close()  # on this machine the next life waits for nothing
    first.acquire(PreviousInstance(tmp_path, "n1"), sleep=none)
    stopped = beating(first)
    with pytest.raises(NameHeldError) as refused:  # one that lives is not taken for dead
        second.acquire(PreviousInstance(tmp_path, "n1"))
    stopped.set()
    for word in ("host ", "process ", "first-ep", "since 20", "--name"):
        assert word in str(refused.value)
    assert "waiting" in caplog.text
    first.confirm()
    redis_db.pexpire(lease_key("n1"), 300)
    second.acquire()
    second.confirm()


@pytest.mark.slow
def test_who_lost_the_name_writes_no_heartbeat_and_removes_none(
    neuron: TestNeuron, make_lease, gateway: Any, redis_db: redis.Redis
) -> None:
    lost = threading.Event()
    service = neuron.start(on_name_lost=lost.set)
    gateway.heartbeat()
    other = make_lease("other")
    redis_db.set(lease_key("n1"), other.value)
    assert lost.wait(60)
    words = service.heartbeat()
    with pytest.raises(NameLostError):
        service.lease.write(lambda pipe: queue_heartbeat(pipe, words, {}))
    redis_db.set(heartbeat_key("n1"), b"of the other")
    service.stop()
    assert redis_db.get(heartbeat_key("n1")) == b"of the other"
    other.confirm()


@pytest.mark.slow
def test_while_redis_stands_still_no_neuron_gets_it(mortal: MortalRedis) -> None:
    """The lease expires by a clock that keeps running; the neuron with heartbeats gets it back."""
    first, second = (NameLease(connect(mortal.url), neuron="n1", epoch=epoch) for epoch in "ab")
    first.acquire()
    mortal.suspend()
    with pytest.raises(redis.RedisError):
        first.confirm()
    mortal.resume()
    first.confirm()
    stopped = beating(first)
    with pytest.raises(NameHeldError):
        second.acquire()
    stopped.set()


@pytest.mark.slow
def test_another_certificate_is_not_waited_for(redis_url: str, tmp_path: Path) -> None:
    chain, key = Authority("control").vouch("127.0.0.1", tmp_path / "server")
    presented = Share(host="127.0.0.1", port=1, tls_cert=chain, tls_key=key).certificate()
    assert presented == chain.read_text(), "a host receives the authority"
    password, _, path = redis_url.removeprefix("unix://:").partition("@")
    with tls_front(chain, key, Path(path.partition("?")[0])) as port:
        url = f"rediss://default:{password}@127.0.0.1:{port}/0"

        def lease(neuron: str, certificate: str) -> NameLease:
            joining = Joining(neuron=neuron, redis_url=url, certificate=certificate)
            keep_joining(joining, tmp_path)
            return NameLease(connect(redis_url_of(joining, tmp_path)), neuron=neuron, epoch="a")

        lease("n1", presented).acquire()
        for certificate in (Authority("other").pem, ""):
            with pytest.raises(RedisUntrustedError, match=r"does not trust \(.*\).*neurons invite"):
                lease("n2", certificate).acquire(sleep=none)


def test_a_neuron_that_is_shut_out_without_a_break_reports_it_once_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = redis.AuthenticationError("invalid username-password pair or user is disabled.")
    now_s = 0.0
    access = AccessRefusal(clock=lambda: now_s)
    for outcome in (refused, redis.ConnectionError("refused"), refused, None, refused):
        access.note(outcome)
        now_s += REFUSED_LIMIT_S - 1.0
    access.note(refused)
    now_s += 1.0
    with pytest.raises(InvitationVoidError, match="revoked, or a newer one"):
        access.note(refused)
    monkeypatch.setattr(name_lease, "REFUSED_LIMIT_S", 0.0)
    ended = threading.Event()

    def beat() -> None:
        raise refused

    heart = Heart(beat, ended.set)
    heart.start()
    assert ended.wait(120)
    heart.stop(60)
    (logged,) = [one.getMessage() for one in caplog.records if one.levelname == "CRITICAL"]
    assert "its invitation was revoked" in logged


def test_a_gateway_without_its_key_is_dead(redis_db: redis.Redis) -> None:
    now_s = 100.0
    watch = GatewayWatch(redis_db, clock=lambda: now_s)

    def is_dead(after_s: float = HEARTBEAT_INTERVAL_S) -> bool:
        nonlocal now_s
        now_s += after_s
        return watch.dead({"gw"}) == ["gw"]

    def live() -> None:
        redis_db.set(gateway_alive_key("gw"), b"1")
        assert not is_dead()
        redis_db.delete(gateway_alive_key("gw"))

    live()
    assert [is_dead(), is_dead()] == [False, True], "missing twice"
    live()
    assert not is_dead(after_s=30.0)
    for _ in range(int(SETTLING_S / HEARTBEAT_INTERVAL_S) - 1):
        assert not is_dead()
    assert is_dead(), "after a pause it had time to write its key"
    live()
    watch.interrupted()
    assert not any(is_dead() for _ in range(3)), "nor after a beat that failed"
    live()
    slow = [is_dead(after_s=3.0) for _ in range(MISSES_UNTIL_DEAD_ANYWAY)]
    assert slow == [False] * (MISSES_UNTIL_DEAD_ANYWAY - 1) + [True], "in the end it is dead"
