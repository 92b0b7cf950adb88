"""Loads and downloads that stand still are ended by that name, and later ones get their turn."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from inference.backoff import Backoff
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads import files as fetching
from inference.neuron.loads.files import Fetcher
from inference.neuron.replicas import engine_run
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.text.model_text import ModelText
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.inference.neuron.conftest import TestNeuron, running_engines, wait_until
from tests.processes import command_line

pytestmark = pytest.mark.slow

LIMIT_S = 900.0


class Clock:
    """Stands still unless it is moved on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def neuron(neuron: TestNeuron) -> TestNeuron:
    """Its loads may make no progress for 900 s of a clock that the test moves."""
    neuron.options = {"load_stall_limit_s": LIMIT_S, "clock": Clock()}
    return neuron


def pass_time(neuron: TestNeuron, seconds: float) -> None:
    """Passes time as heartbeats do, which look once a second."""
    clock = neuron.options["clock"]
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        clock.now_s += 1.0
        for replica in neuron.service._replicas.all():
            replica.tick()


def wait_stage(neuron: TestNeuron, model: str, stage: LoadStage) -> None:
    wait_until(
        lambda: (
            (state := neuron.gateway.replica(model)) is not None
            and state.progress is not None
            and state.progress.stage is stage
        )
    )


def test_a_load_that_hangs_holds_nobody_up_for_ever(neuron: TestNeuron, gateway: Any) -> None:
    neuron.load(load_s=3600, status=None)
    wait_stage(neuron, "m", LoadStage.WEIGHTS)
    neuron.load("other", status=None)
    wait_stage(neuron, "other", LoadStage.QUEUED)
    (hangs,) = running_engines()
    replica = neuron.service._replicas.find("m")
    for done in (2, 3):  # a load that moves is left alone
        pass_time(neuron, LIMIT_S - 10)
        replica.progressed(LoadProgress(stage=LoadStage.WEIGHTS, done=done, total=9))
    pass_time(neuron, LIMIT_S - 10)
    assert hangs.is_running() and replica.status == "loading"
    pass_time(neuron, 20)
    failure = gateway.wait_status("failed").failure
    assert failure.code == "load_stalled"
    assert "at weights, 3 of 9 bytes" in failure.message
    gateway.wait_status("ready", "other")
    assert not psutil.pid_exists(hangs.pid)
    assert gateway.replica("other").num_restarts == 0


def test_a_tokenizer_that_hangs_inside_the_neuron_is_given_up(
    neuron: TestNeuron, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, is_stuck = threading.Event(), threading.Event()
    real_load = engine_run.load_text

    def load(spec: LoadSpec, *arguments: Any) -> ModelText:
        if spec.model == "m" and not gate.is_set():
            is_stuck.set()
            gate.wait(120)
        return real_load(spec, *arguments)

    monkeypatch.setattr(engine_run, "load_text", load)
    neuron.load(status=None)
    assert is_stuck.wait(120)
    neuron.load("other", status=None)
    wait_stage(neuron, "other", LoadStage.QUEUED)
    pass_time(neuron, LIMIT_S + 20)
    assert gateway.replica().status == "loading", "its thread gets a moment"
    pass_time(neuron, 30)
    failure = gateway.wait_status("failed").failure
    assert failure.code == "load_stalled" and "tokenizer" in failure.message
    gateway.wait_status("ready", "other")
    gate.set()
    neuron.load(job_id="j2")
    assert neuron.answers() and neuron.answers("other")
    wait_until(lambda: len(running_engines()) == 2)


def test_a_restart_that_is_refused_is_tried_again(neuron: TestNeuron, gateway: Any) -> None:
    """It used to break the replica's thread: its memory had been released."""
    backoff = Backoff(first_s=0.01, max_s=0.1)
    neuron.options = {"restart_policy": RestartPolicy(backoff=backoff, max_quick_failures=10_000)}
    neuron.load(takes_gb=1)
    (replica,) = neuron.service._replicas.all()
    sound = replica.load.spec
    replica.load.spec = neuron.spec(takes_gb=1, load_fails=1)
    (engine,) = running_engines()
    engine.kill()
    wait_until(lambda: gateway.replica().num_restarts >= 2)
    replica.load.spec = sound
    gateway.wait_status("ready")


def test_a_source_that_stalls_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It reports its progress once and nothing after that."""
    progress = '{"type":"fetching","progress":{"stage":"downloading","done":7,"total":9}}'
    program = f"import time; print({progress!r}, flush=True); time.sleep(3600)"
    monkeypatch.setattr(fetching, "FETCH_COMMAND", (sys.executable, "-c", program))
    seconds = itertools.count(1.0)
    fetcher = Fetcher(tmp_path, lambda: 0, stall_limit_s=20.0, clock=lambda: next(seconds))
    spec = LoadSpec(job_id="j", model="m", source="huggingface:a/b")
    with pytest.raises(LoadRefusedError) as refused:
        fetcher.fetch(spec, lambda _: None, lambda: False)
    failure = refused.value.failure
    assert failure.code == "load_stalled" and "at downloading" in failure.message
    assert not [one for one in psutil.Process().children() if "3600" in " ".join(command_line(one))]
