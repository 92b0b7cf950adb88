"""The real thing end to end: ``python -m inference.neuron`` as a Celery worker on real Redis."""

from __future__ import annotations

import contextlib
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
import psutil
import pytest
import redis
from celery import Celery

from helexa_site.bootstrap.redis_server import (
    PrivateRedis,
    configure_private_redis,
    wait_for_redis,
)
from inference.neuron.__main__ import main
from inference.neuron.process.celery_app import create_app
from inference.protocol.events import Cancelled, Finished
from inference.protocol.keys import (
    TASK_DRAIN_INBOX,
    TASK_LOAD_MODEL,
    TASK_UNLOAD_MODEL,
)
from tests.inference.neuron.conftest import TestGateway, failure_of, wait_until
from tests.inference.neuron.fake_engines import running_engines

pytestmark = pytest.mark.slow

REPOSITORY_DIR = Path(__file__).resolve().parents[4]
StartNeuron = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_neuron(
    redis_url: str, engine_command: list[str], tmp_path: Path
) -> Iterator[StartNeuron]:
    started: list[subprocess.Popen[bytes]] = []

    def start(url: str = redis_url, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "inference.neuron", "--name", "n1"],
            cwd=REPOSITORY_DIR,
            env={
                **os.environ,
                "REDIS_URL": url,
                "HELEXA_DATA_DIR": str(tmp_path),
                "HELEXA_ENGINE_COMMAND": shlex.join(engine_command),
            },
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def celery_app(redis_url: str) -> Iterator[Celery]:
    app = create_app(name="n1", redis_url=redis_url)
    yield app
    app.close()


@contextlib.contextmanager
def _serving(server: PrivateRedis) -> Iterator[None]:
    with subprocess.Popen(server.command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for_redis(server.url)
            yield
        finally:
            process.kill()


def _engines(neuron: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return running_engines(neuron.pid)


def _running(gateway: TestGateway, **options: Any) -> str:
    request_id = gateway.submit(**options)
    gateway.wait_events(request_id, lambda events: len(events) > 2)
    return request_id


def _load(app: Celery, spec: Any) -> None:
    app.send_task(TASK_LOAD_MODEL, args=[msgspec.to_builtins(spec)], expires=60)


def test_load_stream_cancel_and_both_kills(
    start_neuron: StartNeuron, celery_app: Celery, gateway: Any, fake_spec: Any
) -> None:
    neuron = start_neuron()
    _load(celery_app, fake_spec())
    gateway.wait_status("ready")
    request_id = gateway.submit(max_tokens=5)
    celery_app.send_task(TASK_DRAIN_INBOX, expires=10)
    assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    request_id = _running(gateway)
    gateway.cancel(request_id)
    celery_app.send_task(TASK_DRAIN_INBOX, expires=10)
    assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)

    request_id = _running(gateway)
    (engine,) = _engines(neuron)
    engine.kill()
    assert failure_of(gateway.wait_end(request_id)).code == "engine_crashed"
    wait_until(lambda: gateway.replica().num_restarts == 1)
    gateway.wait_status("ready")

    (engine,) = _engines(neuron)
    epoch = gateway.heartbeat().epoch
    neuron.kill()
    neuron.wait()
    wait_until(lambda: not engine.is_running())
    neuron = start_neuron()
    wait_until(lambda: gateway.heartbeat().epoch != epoch)
    gateway.wait_status("ready")
    assert isinstance(gateway.wait_end(gateway.submit(max_tokens=5))[-1], Finished)
    celery_app.send_task(TASK_UNLOAD_MODEL, args=["m"], expires=60)
    wait_until(lambda: gateway.replica() is None)


def test_an_interrupt_during_a_load(
    start_neuron: StartNeuron, celery_app: Celery, gateway: Any, fake_spec: Any
) -> None:
    neuron = start_neuron()
    _load(celery_app, fake_spec(load_s=60))
    gateway.wait_status("loading")
    wait_until(lambda: _engines(neuron))
    (engine,) = _engines(neuron)
    neuron.send_signal(signal.SIGINT)
    assert neuron.wait(60) == 0
    assert not engine.is_running()


def test_a_second_one_of_the_name_ends_and_reports_who_has_it(
    start_neuron: StartNeuron, gateway: Any
) -> None:
    first = start_neuron()
    epoch = gateway.heartbeat().epoch
    second = start_neuron(stderr=subprocess.PIPE)
    _, output = second.communicate(timeout=150)
    assert second.returncode == 1
    assert f"process {first.pid}, epoch {epoch[:8]}, since 20" in output.decode()
    assert gateway.heartbeat().epoch == epoch


def test_sigterm_lets_finish_what_runs_and_a_second_one_does_not(
    start_neuron: StartNeuron, celery_app: Celery, gateway: Any, fake_spec: Any
) -> None:
    neuron = start_neuron()
    _load(celery_app, fake_spec(context=100_000))
    gateway.wait_status("ready")
    (engine,) = _engines(neuron)
    bounded, endless = _running(gateway, max_tokens=300), _running(gateway)
    neuron.send_signal(signal.SIGTERM)
    wait_until(lambda: gateway.heartbeat().is_leaving)
    assert isinstance(gateway.wait_end(bounded)[-1], Finished)
    assert neuron.poll() is None
    neuron.send_signal(signal.SIGTERM)
    assert failure_of(gateway.wait_end(endless)).code == "neuron_stopping"
    assert neuron.wait(60) == 0
    assert not engine.is_running()
    assert not gateway.has_heartbeat()


def test_redis_dies_and_comes_back_empty(start_neuron: Any, fake_spec: Any, tmp_path: Path) -> None:
    """The model stays loaded, the request in flight is freed, and work continues afterwards."""
    (tmp_path / "r").mkdir()
    server = configure_private_redis(tmp_path / "r")
    url = server.url
    with _serving(server):
        neuron = start_neuron(url)
        first = TestGateway(redis.Redis.from_url(url), "n1")
        with create_app(name="n1", redis_url=url) as app:
            _load(app, fake_spec())
        first.wait_status("ready")
        _running(first)
        engines = _engines(neuron)
    with _serving(server):
        second = TestGateway(redis.Redis.from_url(url), "n1", "gw2")
        assert second.wait_status("ready").num_restarts == 0
        assert _engines(neuron) == engines
        wait_until(second.is_idle)
        assert isinstance(second.wait_end(second.submit(max_tokens=5))[-1], Finished)
        with create_app(name="n1", redis_url=url) as app:
            app.send_task(TASK_UNLOAD_MODEL, args=["m"], expires=60)
        wait_until(lambda: second.replica() is None)
    neuron.send_signal(signal.SIGTERM)
    assert neuron.wait(60) == 0, "without Redis too"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--name", "a b", "a neuron's name is"),
        # Where everybody on the machine could read its password.
        ("--redis-url", "redis://:sesame@nowhere/0", "--redis-url"),
    ],
)
def test_bad_options_are_one_clear_line(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, value])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_an_interrupt_before_it_is_up_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_name: str, **_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(
        sys.modules, "inference.neuron.process.neuron_process", SimpleNamespace(run=run)
    )
    assert main(["--name", "n1"]) == 130
