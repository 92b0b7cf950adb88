"""What counts as progress of a load, and for how long there was none."""

from __future__ import annotations

from typing import Any

import pytest

from inference.neuron.loads.watch import (
    MIN_DOWNLOADED_BYTES,
    LoadWatch,
    SilenceTimer,
    in_words,
    load_stall_limit_s,
)
from inference.neuron.replicas.engine_process import MARGIN_S, silence_limit_s
from inference.protocol.load_progress import LoadProgress, LoadStage
from inference.settings.setting import SettingError
from tests.cases import each_case

PREFLIGHT = LoadProgress(stage=LoadStage.PREFLIGHT, detail="model.gguf")


def watched(watch: LoadWatch, from_s: int, seconds: int) -> float:
    """Looks once a second."""
    for now_s in range(from_s, from_s + seconds + 1):
        stalled_s = watch.check(float(now_s))
    return stalled_s


@pytest.fixture
def watch() -> LoadWatch:
    one = LoadWatch()
    one.progressed(PREFLIGHT)
    return one


def test_the_same_report_again_is_no_progress(watch: LoadWatch) -> None:
    assert watched(watch, 0, 1000) == 1000
    watch.progressed(PREFLIGHT)
    assert watched(watch, 1000, 50) == 1050


@each_case(
    "progress",
    [
        LoadProgress(stage=LoadStage.WEIGHTS),
        LoadProgress(stage=LoadStage.PREFLIGHT, detail="model.gguf", done=1),
        LoadProgress(stage=LoadStage.PREFLIGHT, detail="another.gguf"),
    ],
    ids=["a stage", "a byte", "a file"],
)
def test_whatever_moves_is_progress(progress: LoadProgress) -> None:
    watch = LoadWatch()
    watch.progressed(PREFLIGHT)
    watched(watch, 0, 1000)
    watch.progressed(progress)
    assert watched(watch, 1000, 5) == 5


def test_only_a_load_that_runs_is_watched(watch: LoadWatch) -> None:
    assert watched(LoadWatch(), 0, 10) == 0
    watched(watch, 0, 10)
    watch.progressed(LoadProgress(stage=LoadStage.QUEUED, detail="m is loaded first"))
    assert watched(watch, 10, 100_000) == 0
    watch.progressed(PREFLIGHT)
    assert watched(watch, 100_010, 3) == 3
    assert watch.check(200_000.0) <= 5.0, "a neuron that was stopped itself counts no time"
    watch.stop()
    assert watched(watch, 200_010, 1000) == 0


def test_the_failure_reports_where_it_stood() -> None:
    watch = LoadWatch()
    watch.progressed(LoadProgress(stage=LoadStage.WEIGHTS, done=3, total=9, unit="tensors"))
    failure = watch.failure(901.4)
    assert failure.code == "load_stalled"
    assert not failure.is_permanent
    assert failure.message == ("the load made no progress for 901 s at weights, 3 of 9 tensors")
    assert (
        in_words(LoadProgress(stage=LoadStage.DOWNLOADING, done=5)) == "downloading, 5 of ? bytes"
    )
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


def downloading(done: int, detail: str = "model.gguf") -> LoadProgress:
    return LoadProgress(
        stage=LoadStage.DOWNLOADING, done=done, total=10**9, unit="bytes", detail=detail
    )


def test_a_download_that_drips_makes_no_progress() -> None:
    """A byte each minute kept a download running without end."""
    watch = LoadWatch()
    for done in range(10):
        watch.progressed(downloading(done))
        stalled_s = watched(watch, 100 * done, 99)
    assert stalled_s == 999
    watch.progressed(downloading(MIN_DOWNLOADED_BYTES))
    assert watched(watch, 1000, 5) == 5
    watch.progressed(downloading(0, "another.gguf"))
    assert watched(watch, 1010, 5) == 5
    watch.progressed(downloading(10**9, "another.gguf"))
    assert watched(watch, 1020, 5) == 5


def test_silence_grows_until_something_is_reported() -> None:
    silence = SilenceTimer()
    assert [silence.check(float(now_s)) for now_s in range(10, 15)] == [0, 1, 2, 3, 4]
    silence.end()
    assert [silence.check(float(now_s)) for now_s in range(15, 18)] == [1, 2, 3]
    assert silence.check(3600.0) <= 5.0, "a neuron that was stopped does not blame its engines"
