"""The real thing end to end: a neuron's process as a Celery worker on real Redis."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import redis

from benchmarks.ports import free_port
from fleet.redis_users import secret_hash, users_apply
from inference.neuron.__main__ import main
from inference.neuron.neuron_process import create_app
from inference.protocol.events import Cancelled, Finished
from inference.protocol.joining import Joining, encode_joining
from inference.protocol.keys import TASK_DRAIN_INBOX, TASK_LOAD_MODEL, TASK_UNLOAD_MODEL
from inference.settings.setting import EXIT_MISCONFIGURED
from tests.inference.neuron.conftest import (
    ENGINE_COMMAND,
    TestGateway,
    failure_of,
    running_engines,
    wait_until,
)
from tests.servers.private_redis import mortal_redis

REPOSITORY_DIR = Path(__file__).resolve().parents[3]
NAMED = ("-m", "inference.neuron", "--name", "n1")
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
            [sys.executable, *(command or NAMED)],
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
        request_id = running(gateway)
        gateway.cancel(request_id)
        self.send(TASK_DRAIN_INBOX)
        assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)


def running(gateway: TestGateway, **options: Any) -> str:
    request_id = gateway.submit(**options)
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    return request_id


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
        running(gateway)
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
    bounded, endless = running(gateway, max_tokens=300), running(gateway)
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
