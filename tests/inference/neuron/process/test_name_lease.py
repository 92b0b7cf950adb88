"""One neuron holds its name's lease: who has it, who waits, and who has to end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from helexa_site.bootstrap.data_directory import keep_joining, redis_url_of
from helexa_site.bootstrap.sharing import Share
from inference.neuron.process.heartbeat import queue_heartbeat
from inference.neuron.process.name_lease import (
    NameHeldError,
    NameLease,
    NameLostError,
    PreviousInstance,
)
from inference.neuron.process.redis_client import RedisUntrustedError, connect
from inference.protocol.events import Finished
from inference.protocol.joining import Joining
from inference.protocol.keys import heartbeat_key, lease_key
from tests.inference.neuron.conftest import TestNeuron, failure_of, wait_until
from tests.inference.neuron.fake_engines import running_engines
from tests.live.fleets.certificates import Authority
from tests.servers.private_redis import mortal_redis
from tests.servers.tls_front import tls_front

pytestmark = pytest.mark.slow


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


def test_a_second_one_reports_who_holds_it(make_lease, caplog, tmp_path: Path) -> None:
    """One that lives on this machine is not taken for dead either."""
    first = make_lease("first-epoch")
    first.acquire(PreviousInstance(tmp_path, "n1"))
    stopped = beating(first)
    with pytest.raises(NameHeldError) as refused:
        make_lease("second").acquire(PreviousInstance(tmp_path, "n1"))
    stopped.set()
    for word in ("host ", "process ", "first-ep", "since 20", "--name"):
        assert word in str(refused.value)
    assert "waiting" in caplog.text
    first.confirm()


def test_a_dead_ones_name_is_free_when_its_lease_has_expired(make_lease, redis_db) -> None:
    make_lease("dead").acquire()
    redis_db.pexpire(lease_key("n1"), 300)
    second = make_lease("second")
    second.acquire()
    second.confirm()


def test_the_next_life_on_this_machine_need_not_wait(make_lease, tmp_path: Path) -> None:
    dead = PreviousInstance(tmp_path, "n1")
    make_lease("dead").acquire(dead)
    dead.close()
    make_lease("next").acquire(
        PreviousInstance(tmp_path, "n1"), sleep=lambda _: pytest.fail("it is known to be dead")
    )


def test_a_free_or_released_name_is_taken_at_once(make_lease, redis_db) -> None:
    first, second = make_lease("first"), make_lease("second")
    for lease in (first, second):
        lease.acquire(sleep=lambda _: pytest.fail("there is nothing to wait for"))
        assert 0 < redis_db.pttl(lease_key("n1")) <= 4000
        first.release()
    second.confirm()
    with pytest.raises(NameLostError):
        first.confirm()


def test_who_lost_the_name_writes_no_heartbeat_and_removes_none(
    make_service: Any, make_lease, gateway: Any, redis_db: redis.Redis
) -> None:
    lost = threading.Event()
    service = make_service(on_name_lost=lost.set)
    wait_until(gateway.has_heartbeat)
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


def test_a_redis_that_came_back_empty_gives_it_back(make_lease, redis_db) -> None:
    lease = make_lease("first")
    lease.acquire()
    redis_db.flushall()
    lease.confirm()
    assert redis_db.get(lease_key("n1")) == lease.value


def test_while_redis_stands_still_no_neuron_gets_it(tmp_path: Path) -> None:
    """The lease expires by a clock that keeps running; the neuron with heartbeats gets it back."""
    with mortal_redis(tmp_path) as server:
        first, second = (
            NameLease(connect(server.url), neuron="n1", epoch=epoch) for epoch in ("a", "b")
        )
        first.acquire()
        server.suspend()
        with pytest.raises(redis.RedisError):
            first.confirm()
        server.resume()
        first.confirm()
        stopped = beating(first)
        with pytest.raises(NameHeldError):
            second.acquire()
        stopped.set()


def test_a_neuron_that_may_not_write_the_names_beats_all_the_same(
    make_lease, make_service: Any, gateway: Any, redis_db: redis.Redis, redis_url: str
) -> None:
    password = redis_url.partition("://:")[2].partition("@")[0]
    redis_db.acl_setuser(
        "guest", enabled=True, passwords=[f"+{password}"], keys=["*"], commands=["+@all", "-zadd"]
    )
    url = redis_url.replace("://:", "://guest:")
    try:
        make_service(client=connect(url))
        first = gateway.heartbeat().time_unix_s
        wait_until(lambda: gateway.heartbeat().time_unix_s > first)
        assert not redis_db.exists("helexa:neurons")
    finally:
        redis_db.acl_deluser("guest")


def test_leaving_finishes_what_runs_and_refuses_what_is_new(
    loaded: TestNeuron, gateway: Any
) -> None:
    running = loaded.running(max_tokens=100)
    (engine,) = running_engines()
    engine.suspend()  # it runs for as long as the test wants
    leaving = threading.Thread(target=loaded.service.leave, args=(60.0, threading.Event()))
    leaving.start()
    wait_until(lambda: gateway.heartbeat().is_leaving)
    failure = failure_of(gateway.wait_end(gateway.submit(max_tokens=5)))
    assert failure.code == "neuron_stopping" and failure.retry_after_s is not None
    engine.resume()
    assert isinstance(gateway.wait_end(running)[-1], Finished)
    leaving.join(60)
    assert not leaving.is_alive()


def test_leaving_is_bounded_and_can_be_hurried(loaded: TestNeuron, gateway: Any) -> None:
    loaded.running()
    started_s = time.monotonic()
    loaded.service.leave(0.2, threading.Event())
    force = threading.Event()
    force.set()
    loaded.service.leave(600.0, force)
    assert time.monotonic() - started_s < 60
    assert gateway.heartbeat().replicas


def test_another_certificate_than_the_invitations_is_no_redis_to_wait_for(
    redis_url: str, tmp_path: Path
) -> None:
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
                lease("n2", certificate).acquire(
                    sleep=lambda _: pytest.fail("waiting changes nothing")
                )
