"""Loads and downloads that stand still are ended by that name, and later ones get their turn."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from inference.backoff import Backoff
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads import files as fetching
from inference.neuron.loads.admission import LoadAdmission
from inference.neuron.loads.files import Fetcher
from inference.neuron.loads.load import Load
from inference.neuron.loads.queue import LoadQueue
from inference.neuron.replicas import engine_run
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.service import NeuronService
from inference.neuron.text.model_text import ModelText
from inference.protocol.events import Finished
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.inference.neuron.devices import card, host
from tests.inference.neuron.fake_engines import running_engines
from tests.inference.neuron.loads.test_queue import Machine, begun, load_of, loaded
from tests.processes import command_line

pytestmark = pytest.mark.slow

LIMIT_S = 900.0
MakeService = Callable[..., NeuronService]
WaitUntil = Callable[[Callable[[], object]], None]


class Clock:
    """Stands still unless it is moved on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A neuron whose loads may make no progress for 900 s of its own clock."""

    def __init__(self, make_service: MakeService) -> None:
        self.clock = Clock()
        self.service = make_service(load_stall_limit_s=LIMIT_S, clock=self.clock)

    def pass_time(self, seconds: float) -> None:
        """Passes time as heartbeats do, which look once a second."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.clock.now_s += 1.0
            for replica in self.service._replicas.all():
                replica.tick()


@pytest.fixture
def watched(make_service: MakeService) -> Watched:
    return Watched(make_service)


def test_an_engine_that_hangs_on_a_header_holds_nobody_up_for_ever(
    watched: Watched, fake_spec: Any, gateway: Any, wait_until: WaitUntil
) -> None:
    service = watched.service
    service.load_model(fake_spec(load_s=3600))
    wait_until(lambda: _is_at(gateway, "m", LoadStage.WEIGHTS))
    service.load_model(fake_spec("other"))
    wait_until(lambda: _is_at(gateway, "other", LoadStage.QUEUED))
    (hangs,) = running_engines()
    watched.pass_time(LIMIT_S - 10)
    assert hangs.is_running()
    watched.pass_time(20)
    failure = gateway.wait_status("failed").failure
    assert failure.code == "load_stalled"
    assert "at weights, 1 of 2 bytes" in failure.message
    gateway.wait_status("ready", "other")
    assert not psutil.pid_exists(hangs.pid)
    assert gateway.replica("other").num_restarts == 0


def test_a_load_that_moves_is_left_alone(
    watched: Watched, fake_spec: Any, gateway: Any, wait_until: WaitUntil
) -> None:
    watched.service.load_model(fake_spec(load_s=3600))
    wait_until(lambda: _is_at(gateway, "m", LoadStage.WEIGHTS))
    (replica,) = watched.service._replicas.all()
    for done in range(5):
        watched.pass_time(LIMIT_S - 10)
        replica.progressed(LoadProgress(stage=LoadStage.WEIGHTS, done=done + 2, total=9))
    assert replica.status == "loading"
    watched.service.unload_model("m")
    wait_until(lambda: gateway.replica() is None)


def test_a_tokenizer_that_hangs_inside_the_neuron_is_given_up(
    watched: Watched,
    fake_spec: Any,
    gateway: Any,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, gate, is_stuck = watched.service, threading.Event(), threading.Event()
    real_load = engine_run.load_text

    def load(spec: LoadSpec, *arguments: Any) -> ModelText:
        if spec.model == "m" and not gate.is_set():
            is_stuck.set()
            gate.wait(120)
        return real_load(spec, *arguments)

    monkeypatch.setattr(engine_run, "load_text", load)
    service.load_model(fake_spec())
    assert is_stuck.wait(120)
    service.load_model(fake_spec("other"))
    wait_until(lambda: _is_at(gateway, "other", LoadStage.QUEUED))
    watched.pass_time(LIMIT_S + 20)
    assert gateway.replica().status == "loading", "its thread gets a moment"
    watched.pass_time(30)
    failure = gateway.wait_status("failed").failure
    assert failure.code == "load_stalled"
    assert "tokenizer" in failure.message
    gateway.wait_status("ready", "other")
    gate.set()
    service.load_model(fake_spec(job_id="j2"))
    gateway.wait_status("ready")
    for model in ("m", "other"):
        request_id = gateway.submit(model=model, max_tokens=1)
        service.drain_inbox()
        assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    wait_until(lambda: len(running_engines()) == 2)


def test_a_restart_that_is_refused_is_tried_again(
    make_service: MakeService, fake_spec: Any, gateway: Any, wait_until: WaitUntil
) -> None:
    """It used to break the replica's thread: its memory had been released."""
    patient = RestartPolicy(backoff=Backoff(first_s=0.01, max_s=0.1), max_quick_failures=10_000)
    service = make_service(restart_policy=patient)
    service.load_model(fake_spec(takes_gb=1))
    gateway.wait_status("ready")
    (replica,) = service._replicas.all()
    sound = replica.load.spec
    replica.load.spec = fake_spec(takes_gb=1, load_fails=1)
    (engine,) = running_engines()
    engine.kill()
    wait_until(lambda: gateway.replica().num_restarts >= 2)
    replica.load.spec = sound
    gateway.wait_status("ready")


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fetcher:
    """Its downloads report their progress once and nothing after that."""
    progress = '{"type":"fetching","progress":{"stage":"downloading","done":7,"total":9}}'
    program = f"import time; print({progress!r}, flush=True); time.sleep(3600)"
    monkeypatch.setattr(fetching, "FETCH_COMMAND", (sys.executable, "-c", program))
    clock = Clock()

    def passes() -> float:
        clock.now_s += 1.0
        return clock.now_s

    return Fetcher(tmp_path, lambda: 0, stall_limit_s=20.0, clock=passes)


def test_a_source_that_stalls_is_ended(stalling: Fetcher) -> None:
    reported: list[LoadProgress] = []
    spec = LoadSpec(job_id="j", model="m", source="huggingface:a/b")
    with pytest.raises(LoadRefusedError) as refused:
        stalling.fetch(spec, reported.append, lambda: False)
    failure = refused.value.failure
    assert failure.code == "load_stalled"
    assert "at downloading" in failure.message
    assert not [one for one in psutil.Process().children() if "3600" in " ".join(command_line(one))]


class NeverLeaves:
    """An idle replica whose process the kernel does not end."""

    def __init__(self, load: Load, clock: Clock) -> None:
        self.spec, self.load, self.may_sleep_as = load.spec, load, None
        self.clock = clock

    def is_idle(self) -> bool:
        return True

    def leave_if_idle(self, *, may_sleep: bool) -> bool:
        return True

    def wait_left(self, timeout_s: float | None = None) -> bool:
        self.clock.now_s += timeout_s or 0.0
        return False


def test_an_evicted_model_that_does_not_leave_is_not_waited_for_for_ever() -> None:
    queue, clock = LoadQueue(Machine(card(0, 20), host(100))), Clock()
    old = load_of(10, model="old")
    begun(queue, old)
    loaded(queue, old, took_gb=10)
    stays: Any = NeverLeaves(old, clock)
    admission = LoadAdmission(
        queue,
        fetch=lambda *_: None,
        check_files=lambda *_: None,
        find=lambda _: stays,
        clock=clock,
        sleep=lambda _: None,
    )
    wants, reported = load_of(15, evict=["old"]), list[LoadProgress]()
    with pytest.raises(LoadRefusedError) as refused:
        admission.admit(wants, lambda: False, reported.append)
    assert refused.value.failure.code == "load_stalled"
    assert refused.value.failure.message == "old was to make room and has not left after 300 s"
    assert {progress.stage for progress in reported} == {LoadStage.QUEUED}
    queue.release(wants)
    assert queue.enter(load_of(1, model="next"), lambda: False, lambda _: None), "has its turn"


def _is_at(gateway: Any, model: str, stage: LoadStage) -> bool:
    state = gateway.replica(model)
    return state is not None and state.progress is not None and state.progress.stage is stage
