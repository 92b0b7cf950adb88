"""Downloads by a neuron, of wheels on this disk, for a load and as jobs of their own; checks of a
load's files; loads and downloads that stand still, which are ended by that name."""

from __future__ import annotations

import itertools
import logging
import socket
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from inference.backoff import Backoff
from inference.loading.sources.cached import list_cached
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads import files as fetching
from inference.neuron.loads.files import Fetcher, FileChecker
from inference.neuron.loads.watch import (
    MIN_DOWNLOADED_BYTES,
    LoadWatch,
    SilenceTimer,
    in_words,
    load_stall_limit_s,
)
from inference.neuron.replicas import engine_run
from inference.neuron.replicas.engine_process import MARGIN_S, is_own_engine, silence_limit_s
from inference.neuron.replicas.engine_process import engine_command as engine_command_of
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.text.model_text import ModelText
from inference.protocol.keys import downloads_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LOADED, LoadProgress, LoadStage
from inference.protocol.neuron_tasks import CacheJobState, DeleteSpec, PullSpec, decode_cache_report
from inference.settings.setting import SettingError
from tests.cases import each_case
from tests.inference.neuron.conftest import ENGINE_COMMAND, TestNeuron, running_engines, wait_until
from tests.processes import command_line

SOURCE = "pypi:tiny-model==1.0"
CACHED = "pypi:tiny-model-1.0"
DELETE = DeleteSpec(job_id="d1", source=CACHED, revision="")


class Cache:
    def __init__(self, neuron: TestNeuron, directory: Path) -> None:
        self.neuron = neuron
        self.directory = directory
        neuron.options["cache_dir"] = directory

    def pull(self, job_id: str, source: str = SOURCE) -> None:
        self.neuron.service.downloads.pull(PullSpec(job_id=job_id, source=source))

    def report(self) -> Any:
        data: Any = self.neuron.gateway.client.get(downloads_key("n1"))
        return decode_cache_report(data) if data else None

    def ended(self, job_id: str) -> CacheJobState:
        def found() -> Any:
            jobs = reported.jobs if (reported := self.report()) else ()
            ended = (one for one in jobs if one.status not in ("queued", "running"))
            return next((one for one in ended if one.job_id == job_id), None)

        return wait_until(found)


@pytest.fixture
def cache(neuron: TestNeuron, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Its pip may look at one place alone, and tiny-model 1.0 lies there."""
    shelf, info = tmp_path / "wheels", "tiny_model-1.0.dist-info/"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny_model/tiny-Q4_0.gguf", b"GGUF" + bytes(5000))
        named = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{info}METADATA", named)
        built = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}WHEEL", built)
        archive.writestr(f"{info}RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Cache(neuron, tmp_path / "cache")


@pytest.mark.slow
def test_pulls_leave_their_files_fail_for_a_reason_or_are_cancelled(
    neuron: TestNeuron, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.pull("p1")
    cache.pull("waits")
    neuron.service.downloads.cancel("waits")
    assert cache.ended("waits").status == "cancelled"
    done = cache.ended("p1")
    assert (done.status, done.kind, done.progress) == ("succeeded", "pull", LOADED)
    (model,) = cache.report().cached
    assert model.source == CACHED
    assert "tiny_model/tiny-Q4_0.gguf" in [file.name for file in model.files]
    assert cache.report().disk_free_bytes > 0
    neuron.service.downloads.delete(DELETE)
    assert cache.ended("d1").status == "succeeded"
    assert cache.report().cached == []
    cache.pull("p2", "pypi:no-such-model")
    cache.pull("p3", "path:/models/m.gguf")
    failed = cache.ended("p2")
    assert (failed.status, failed.failure.code) == ("failed", "download_failed")
    assert cache.ended("p3").failure.code == "bad_source"
    with socket.create_server(("127.0.0.1", 0)) as server:  # an index that never answers
        port = server.getsockname()[1]
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        cache.pull("p4")
        server.accept()
        neuron.service.downloads.cancel("p4")
        assert cache.ended("p4").status == "cancelled"


@pytest.mark.slow
def test_a_load_fetches_and_what_it_uses_is_not_deleted(neuron: TestNeuron, cache: Cache) -> None:
    neuron.options["engine_command"] = [*ENGINE_COMMAND, "--options", "load_s=3600"]
    neuron.load(source=SOURCE, file=None, status=None)
    wait_until(lambda: (found := cache.report()) and [one.used_by for one in found.cached])
    assert cache.report().cached[0].used_by == ["m"]
    neuron.service.downloads.delete(DELETE)
    refused = cache.ended("d1")
    assert (refused.status, refused.failure.code) == ("failed", "in_use")
    assert "m is loaded from it" in refused.failure.message
    assert list_cached(cache.directory)


@pytest.mark.slow
def test_a_download_for_a_load_that_failed_is_removed(neuron: TestNeuron, cache: Cache) -> None:
    neuron.options["engine_command"] = [*ENGINE_COMMAND, "--options", "load_fails=2"]
    assert neuron.refused(source=SOURCE, file=None).code == "unknown_architecture"
    wait_until(lambda: not list_cached(cache.directory))
    cache.pull("p1")
    assert cache.ended("p1").status == "succeeded"
    assert neuron.refused("other", source=SOURCE, file=None).code == "unknown_architecture"
    assert list_cached(cache.directory), "it was there before"


SLEEPS = (sys.executable, "-c", "import time; print('{', flush=True); time.sleep(3600)")
NOWHERE = ("/no/such/program",)


def spec_of(source: object = "path:/models/m.gguf") -> LoadSpec:
    return LoadSpec(job_id="j", model="m", source=str(source))


@each_case(
    ("command", "limit_s", "why"),
    [
        (SLEEPS, 0.4, "took longer than 0 s"),
        ((sys.executable, "-c", "raise SystemExit(3)"), 120.0, "ended with code 3"),
        (NOWHERE, 120.0, "could not be started"),
    ],
)
def test_a_check_without_an_answer_is_logged_and_passes(
    command: tuple[str, ...], limit_s: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    FileChecker(command, limit_s=limit_s).check(spec_of(), [], 0, lambda: False)
    (line,) = caplog.messages
    assert "the files of m are not checked" in line and why in line
    caplog.clear()
    FileChecker(SLEEPS).check(spec_of(), [], 0, lambda: True)  # it is cancelled
    remote = spec_of("huggingface:a/b")
    FileChecker(NOWHERE).check(remote, [], 0, lambda: False)  # it has no files
    assert not caplog.messages
    FileChecker(NOWHERE).check(remote, [Path("/m.gguf")], 0, lambda: False)
    assert len(caplog.messages) == 1
    children = psutil.Process().children()
    assert not [one for one in children if "3600" in " ".join(command_line(one))]


@each_case(
    ("command", "is_own"),
    [
        ("", True),
        ("numactl --cpunodebind=0 /opt/python -m inference.engine", True),
        ("/opt/python scripted_engine.py", False),
    ],
)
def test_files_are_checked_for_this_builds_engine_alone(command: str, is_own: bool) -> None:
    environment = {"HELEXA_ENGINE_COMMAND": command} if command else {}
    assert is_own_engine(engine_command_of(environment)) is is_own


def test_layers_are_weighed_by_their_files(three_layers: Path, tmp_path: Path) -> None:
    costs = FileChecker().costs(spec_of(f"path:{three_layers}"), [], 0, lambda: False)
    assert costs is not None and len(costs.layers) == 3
    assert sum(layer.weight_bytes.cuda for layer in costs.kinds) > 0
    assert FileChecker().costs(spec_of(f"path:{tmp_path}/gone"), [], 0, lambda: False) is None
    remote = spec_of("huggingface:a/b")
    assert FileChecker(NOWHERE).costs(remote, [], 0, lambda: False) is None


LIMIT_S = 900.0
PREFLIGHT = LoadProgress(stage=LoadStage.PREFLIGHT, detail="model.gguf")


def watched(watch: LoadWatch, from_s: int, seconds: int) -> float:
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


def wait_stage(neuron: TestNeuron, model: str, stage: LoadStage) -> None:
    wait_until(lambda: (state := neuron.gateway.replica(model)) and state.progress.stage is stage)


@pytest.mark.slow
def test_what_hangs_is_ended(
    neuron: TestNeuron, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    neuron.options = {"load_stall_limit_s": LIMIT_S, "clock": lambda: now_s}

    def pass_time(seconds: float) -> None:
        """Passes time as heartbeats do, which look once a second."""
        nonlocal now_s
        for _ in range(int(seconds)):
            now_s += 1.0
            for replica in neuron.service._replicas.all():
                replica.tick()

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
        pass_time(LIMIT_S - 10)
        replica.progressed(LoadProgress(stage=LoadStage.WEIGHTS, done=done, total=9))
    pass_time(LIMIT_S - 10)
    assert hangs.is_running() and replica.status == "loading"
    pass_time(20)
    failure = gateway.wait_status("failed").failure
    assert failure.code == "load_stalled"
    assert "at weights, 3 of 9 bytes" in failure.message
    assert is_stuck.wait(120)
    assert not psutil.pid_exists(hangs.pid)
    pass_time(LIMIT_S + 20)
    assert gateway.replica("stuck").status == "loading", "its thread gets a moment"
    pass_time(30)
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
