"""What counts as progress of a load, and for how long there was none: loads and downloads that
stand still are ended by that name, and later ones get their turn."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from inference.backoff import Backoff
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads import files as fetching
from inference.neuron.loads.files import Fetcher
from inference.neuron.loads.watch import (
    MIN_DOWNLOADED_BYTES,
    LoadWatch,
    SilenceTimer,
    in_words,
    load_stall_limit_s,
)
from inference.neuron.replicas import engine_run
from inference.neuron.replicas.engine_process import MARGIN_S, silence_limit_s
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.text.model_text import ModelText
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadProgress, LoadStage
from inference.settings.setting import SettingError
from tests.cases import each_case
from tests.inference.neuron.conftest import TestNeuron, running_engines, wait_until
from tests.processes import command_line

LIMIT_S = 900.0
PREFLIGHT = LoadProgress(stage=LoadStage.PREFLIGHT, detail="model.gguf")


def watched(watch: LoadWatch, from_s: int, seconds: int) -> float:
    """Looks once a second."""
    for now_s in range(from_s, from_s + seconds + 1):
        stalled_s = watch.check(float(now_s))
    return stalled_s


def test_whatever_moves_is_progress_of_a_load_that_runs() -> None:
    for progress, stalled_s in (
        (PREFLIGHT, 1005),  # the same report
        (LoadProgress(stage=LoadStage.WEIGHTS), 5),
        (LoadProgress(stage=LoadStage.PREFLIGHT, detail="model.gguf", done=1), 5),
        (LoadProgress(stage=LoadStage.PREFLIGHT, detail="another.gguf"), 5),
    ):
        watch = LoadWatch()
        assert watched(watch, 0, 10) == 0, "it waits"
        watch.progressed(PREFLIGHT)
        assert watched(watch, 0, 1000) == 1000
        watch.progressed(progress)
        assert watched(watch, 1000, 5) == stalled_s
    watch.progressed(LoadProgress(stage=LoadStage.QUEUED, detail="m is loaded first"))
    assert watched(watch, 1010, 10_000) == 0
    watch.progressed(LoadProgress(stage=LoadStage.WEIGHTS, done=3, total=9, unit="tensors"))
    assert watched(watch, 11_010, 3) == 3
    assert watch.check(20_000.0) <= 5.0, "a neuron that was stopped itself counts no time"
    failure = watch.failure(901.4)
    assert (failure.code, failure.is_permanent) == ("load_stalled", False)
    assert failure.message == "the load made no progress for 901 s at weights, 3 of 9 tensors"
    watch.stop()
    assert watched(watch, 20_010, 1000) == 0
    silence = SilenceTimer()
    assert [silence.check(float(now_s)) for now_s in range(10, 15)] == [0, 1, 2, 3, 4]
    silence.end()
    assert [silence.check(float(now_s)) for now_s in range(15, 18)] == [1, 2, 3]
    assert silence.check(3600.0) <= 5.0, "nor does it blame its engines"
    downloading = LoadProgress(stage=LoadStage.DOWNLOADING, done=5)
    assert in_words(downloading) == "downloading, 5 of ? bytes"
    assert in_words(PREFLIGHT) == "preflight (model.gguf)"


@each_case(
    ("limit", "name", "default"),
    [
        (load_stall_limit_s, "HELEXA_LOAD_STALL_S", 900),
        # The engine's own watchdog is first.
        (silence_limit_s, "HELEXA_STEP_TIMEOUT_S", 120.0 + MARGIN_S),
    ],
)
def test_the_limits_are_the_operators(limit: Any, name: str, default: float) -> None:
    assert limit({}) == default
    assert limit({name: "0"}) is None
    with pytest.raises(SettingError, match=name):
        limit({name: "soon"})


def test_a_download_that_drips_makes_no_progress() -> None:
    """A byte each minute kept a download running without end."""
    watch, now_s = LoadWatch(), 1000

    def downloaded(done: int, detail: str = "model.gguf") -> None:
        of = {"total": 10**9, "unit": "bytes", "detail": detail}
        watch.progressed(LoadProgress(stage=LoadStage.DOWNLOADING, done=done, **of))

    for done in range(10):
        downloaded(done)
        stalled_s = watched(watch, 100 * done, 99)
    assert stalled_s == 999
    for done, detail in (
        (MIN_DOWNLOADED_BYTES, "model.gguf"),
        (0, "another.gguf"),
        (10**9, "another.gguf"),
    ):
        downloaded(done, detail)
        assert watched(watch, now_s, 5) == 5
        now_s += 10


@pytest.fixture
def neuron(neuron: TestNeuron) -> TestNeuron:
    """Its loads may make no progress for 900 s of a clock that the test moves."""
    clock = SimpleNamespace(now_s=0.0)
    neuron.options = {"load_stall_limit_s": LIMIT_S, "clock": lambda: clock.now_s}
    neuron.clock = clock  # type: ignore[attr-defined]
    return neuron


def pass_time(neuron: Any, seconds: float) -> None:
    """Passes time as heartbeats do, which look once a second."""
    for _ in range(int(seconds)):
        neuron.clock.now_s += 1.0
        for replica in neuron.service._replicas.all():
            replica.tick()


def wait_stage(neuron: TestNeuron, model: str, stage: LoadStage) -> None:
    wait_until(lambda: (state := neuron.gateway.replica(model)) and state.progress.stage is stage)


@pytest.mark.slow
def test_what_hangs_holds_nobody_up_for_ever(
    neuron: TestNeuron, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load, and a tokenizer inside the neuron."""
    gate, is_stuck = threading.Event(), threading.Event()
    real_load = engine_run.load_text

    def load(spec: LoadSpec, *arguments: Any) -> ModelText:
        if spec.model == "stuck" and not gate.is_set():
            is_stuck.set()
            gate.wait(120)
        return real_load(spec, *arguments)

    monkeypatch.setattr(engine_run, "load_text", load)
    neuron.load(load_s=3600, status=None)
    wait_stage(neuron, "m", LoadStage.WEIGHTS)
    for name in ("stuck", "other"):
        neuron.load(name, status=None)
        wait_stage(neuron, name, LoadStage.QUEUED)
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
    assert is_stuck.wait(120)
    assert not psutil.pid_exists(hangs.pid)
    pass_time(neuron, LIMIT_S + 20)
    assert gateway.replica("stuck").status == "loading", "its thread gets a moment"
    pass_time(neuron, 30)
    failure = gateway.wait_status("failed", "stuck").failure
    assert failure.code == "load_stalled" and "tokenizer" in failure.message
    assert gateway.wait_status("ready", "other").num_restarts == 0
    gate.set()
    neuron.load("stuck", "j2")
    assert neuron.answers("stuck") and neuron.answers("other")
    wait_until(lambda: len(running_engines()) == 2)


@pytest.mark.slow
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
