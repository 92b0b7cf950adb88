"""A neuron's process, end to end as a Celery worker on real Redis; the lease of its name: who has
it, who waits and who has to end; and which gateways it takes for dead."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import redis

from benchmarks.ports import free_port
from fleet.redis_users import secret_hash, users_apply
from helexa_site.data_directory import Share, keep_joining, redis_url_of
from inference.neuron import name_lease
from inference.neuron.__main__ import main
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
from inference.neuron.neuron_process import create_app
from inference.protocol.events import Cancelled, Finished
from inference.protocol.joining import Joining, encode_joining
from inference.protocol.keys import (
    HEARTBEAT_INTERVAL_S,
    SETTLING_S,
    TASK_DRAIN_INBOX,
    TASK_LOAD_MODEL,
    TASK_UNLOAD_MODEL,
    gateway_alive_key,
    heartbeat_key,
    lease_key,
)
from inference.settings.setting import EXIT_MISCONFIGURED
from tests.inference.neuron.conftest import (
    ENGINE_COMMAND,
    TestGateway,
    TestNeuron,
    failure_of,
    running_engines,
    wait_until,
)
from tests.live.fleets.certificates import Authority
from tests.servers.private_redis import MortalRedis, mortal_redis, tls_front

REPOSITORY_DIR = Path(__file__).resolve().parents[3]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(url: str | None, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"} | {
            "HELEXA_DATA_DIR": str(tmp_path / "data"),
            "HELEXA_ENGINE_COMMAND": shlex.join(ENGINE_COMMAND),
        }
        process = subprocess.Popen(
            [sys.executable, *(command or ("-m", "inference.neuron", "--name", "n1"))],
            cwd=REPOSITORY_DIR,
            env=environment | ({"REDIS_URL": url} if url else {}),
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def fake_spec(neuron: Any) -> Any:
    return neuron.spec


class Tasks:
    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, task: str, *given: Any) -> None:
        with create_app(name="n1", redis_url=self.url) as app:
            app.send_task(task, args=[msgspec.to_builtins(one) for one in given], expires=60)

    def answers_and_cancels(self, gateway: TestGateway) -> None:
        request_id = gateway.submit(max_tokens=5)
        self.send(TASK_DRAIN_INBOX)
        assert isinstance(gateway.wait_end(request_id)[-1], Finished)
        request_id = gateway.wait_running(gateway.submit())
        gateway.cancel(request_id)
        self.send(TASK_DRAIN_INBOX)
        assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)


@pytest.mark.slow
def test_a_host_that_joined(start: Start, fake_spec: Any, tmp_path: Path) -> None:
    """By ``manage.py neuron --join LINE`` over TCP, under a Redis user of its own. A second one of
    its name ends. Redis dies and comes back empty: the model stays loaded, and work continues. So
    it does after the neuron was killed, with its engine."""
    secret, port = "a-secret-of-this-test-alone", free_port()
    line = encode_joining(
        Joining(neuron="n1", redis_url=f"redis://neuron-n1:{secret}@127.0.0.1:{port}/0")
    )
    users, manage = {"n1": secret_hash(secret)}, str(REPOSITORY_DIR / "manage.py")
    with mortal_redis(tmp_path, port=port) as server, redis.Redis.from_url(server.url) as client:
        users_apply(client, users)
        tasks, gateway = Tasks(server.url), TestGateway(client, "n1")
        neuron = start(None, manage, "neuron", "--join", line)
        gateway.heartbeat()
        tasks.send(TASK_LOAD_MODEL, fake_spec())
        gateway.wait_status("ready")
        tasks.answers_and_cancels(gateway)
        denied = {(entry["reason"], entry["object"]) for entry in client.acl_log()}
        assert denied <= {("command", "zadd"), ("key", "helexa:neurons")}
        commands = Path(f"/proc/{neuron.pid}/cmdline").read_bytes()
        assert secret.encode() not in commands and line.encode() not in commands
        epoch = gateway.heartbeat().epoch
        second = start(server.url, stderr=subprocess.PIPE)
        _, output = second.communicate(timeout=150)
        assert second.returncode == 1
        assert f"process {neuron.pid}, epoch {epoch[:8]}, since 20" in output.decode()
        assert gateway.heartbeat().epoch == epoch
        gateway.wait_running(gateway.submit())
        engines = running_engines(neuron.pid)
        server.kill()
        server.start()
        users_apply(client, users)
        gateway = TestGateway(client, "n1", "gw2")
        assert gateway.wait_status("ready").num_restarts == 0
        assert running_engines(neuron.pid) == engines
        wait_until(gateway.is_idle)
        neuron.kill()
        neuron.wait()
        wait_until(lambda: not engines[0].is_running())
        neuron = start(None, manage, "neuron")  # it knows where it belongs
        wait_until(lambda: gateway.heartbeat().epoch != epoch)
        gateway.wait_status("ready")
        tasks.answers_and_cancels(gateway)
        tasks.send(TASK_UNLOAD_MODEL, "m")
        wait_until(lambda: gateway.replica() is None)
    neuron.send_signal(signal.SIGTERM)
    assert neuron.wait(60) == 0, "without Redis too"


@pytest.mark.slow
def test_sigterm_lets_finish_what_runs_and_further_signals_do_not(
    start: Start, redis_url: str, gateway: Any, fake_spec: Any
) -> None:
    neuron, tasks = start(redis_url), Tasks(redis_url)
    tasks.send(TASK_LOAD_MODEL, fake_spec(context=100_000))
    gateway.wait_status("ready")
    (engine,) = running_engines(neuron.pid)
    bounded = gateway.wait_running(gateway.submit(max_tokens=300))
    endless = gateway.wait_running(gateway.submit())
    neuron.send_signal(signal.SIGTERM)
    wait_until(lambda: gateway.heartbeat().is_leaving)
    failure = failure_of(gateway.wait_end(gateway.submit(max_tokens=5)))
    assert failure.code == "neuron_stopping" and failure.retry_after_s is not None
    assert isinstance(gateway.wait_end(bounded)[-1], Finished)
    assert neuron.poll() is None
    neuron.send_signal(signal.SIGTERM)
    assert failure_of(gateway.wait_end(endless)).code == "neuron_stopping"
    assert neuron.wait(60) == 0
    assert not engine.is_running() and not gateway.latest_heartbeat()
    neuron = start(redis_url)  # an interrupt during a load ends it as well
    tasks.send(TASK_LOAD_MODEL, fake_spec("other", load_s=60))
    gateway.wait_status("loading", "other")
    wait_until(lambda: running_engines(neuron.pid))
    (engine, *_) = running_engines(neuron.pid)
    neuron.send_signal(signal.SIGINT)
    assert neuron.wait(60) == 0
    assert not engine.is_running()


VOID = """
import sys
from inference.neuron import name_lease
from inference.neuron.neuron_process import run
name_lease.REFUSED_LIMIT_S = 0.0
sys.exit(run("n1"))
"""


@pytest.mark.slow
def test_a_void_invitation_ends_with_one_line(start: Start, redis_db: redis.Redis) -> None:
    path = redis_db.connection_pool.connection_kwargs["path"]
    done = start(f"unix://neuron-n1:void@{path}", "-c", VOID, stderr=subprocess.PIPE)
    _, output = done.communicate(timeout=120)
    assert done.returncode == EXIT_MISCONFIGURED
    assert output.count(b"neurons invite") == 1 and b"Traceback" not in output


def test_bad_options_are_one_clear_line_and_an_early_interrupt_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, value, words in [
        ("--name", "a b", "a neuron's name is"),
        # Where everybody on the machine could read its password.
        ("--redis-url", "redis://:sesame@nowhere/0", "--redis-url"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main([option, value])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err

    def run(_name: str, **_: object) -> int:
        raise KeyboardInterrupt

    process = "inference.neuron.neuron_process"
    monkeypatch.setitem(sys.modules, process, SimpleNamespace(run=run))
    assert main(["--name", "n1"]) == 130


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
