"""Stages as processes: their answers, and the model's end when one of them dies or stands still:
requests fail once, nothing hangs, and no process stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from inference.channel import ChannelClosedError
from inference.engine.errors import EngineExit
from inference.protocol.engine import EngineFaulted, Loaded, SequenceStep, Shutdown
from inference.protocol.load import StageSpec
from inference.protocol.load_report import LoadReport
from tests.inference.engine.serving.test_process import EXIT_TIMEOUT_S, EngineProcess, started
from tests.processes import has_ended

pytestmark = pytest.mark.slow

LONG = 200
"""Tokens of an answer that is still running when a stage is killed."""
PATIENT = {"HELEXA_STEP_TIMEOUT_S": "600"}
"""The watchdog of steps notices nothing here."""
THREE = [StageSpec(device="cpu", layers=layers) for layers in ((0, 1), (1, 2), (2, 3))]


@contextmanager
def three_stages(
    model_dir: Path, data_dir: Path
) -> Iterator[tuple[EngineProcess, list[psutil.Process], LoadReport]]:
    """The engine, the processes of the later stages, and the load report."""
    with started(f"path:{model_dir}", data_dir, stages=THREE, environment=PATIENT) as engine:
        loaded = engine.wait_loaded()
        assert isinstance(loaded, Loaded), loaded
        stages = psutil.Process(engine.process.pid).children()
        assert len(stages) == 2
        yield engine, sorted(stages, key=lambda one: one.pid), loaded.report


def ended_by(engine: EngineProcess) -> str:
    """The code of the fault in its ``EngineFaulted`` message."""
    return next(m for m in engine.messages() if isinstance(m, EngineFaulted)).code


def assert_gone(processes: list[psutil.Process]) -> None:
    psutil.wait_procs(processes, timeout=EXIT_TIMEOUT_S)
    assert all(map(has_ended, processes))


def test_processes_answer_as_one(tiny_model_dir: Path, data_dir: Path) -> None:
    answers = []
    for stages in ([], THREE):
        with started(f"path:{tiny_model_dir}", data_dir, stages=stages) as engine:
            loaded = engine.wait_loaded()
            assert isinstance(loaded, Loaded), loaded
            engine.submit("one", 24)
            answers.append(
                [
                    token_id
                    for step in engine.outputs("one")
                    if isinstance(step, SequenceStep)
                    for token_id in step.token_ids
                ]
            )
            children = psutil.Process(engine.process.pid).children()
            engine.send(Shutdown())
            assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.OK
            assert_gone(children)
    assert answers[0] == answers[1] and len(answers[0]) == 24
    assert "3 stages: layers 0 on cpu" in loaded.report.compiled
    (memory,) = loaded.report.stage_memory
    assert memory.process_bytes > 100_000_000, "three processes"


@pytest.mark.parametrize(("index", "is_busy"), [(0, True), (1, False)])
def test_a_stage_that_dies_ends_the_model_at_once(
    tiny_model_dir: Path, data_dir: Path, index: int, is_busy: bool
) -> None:
    with three_stages(tiny_model_dir, data_dir) as (engine, stages, _):
        if is_busy:
            engine.submit("long", LONG)
        stages[index].kill()
        assert ended_by(engine) == "device_fault"
        assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.DEVICE_FAULT
        with pytest.raises(ChannelClosedError):
            list(engine.messages())
        assert_gone(stages)


def test_a_stage_that_stands_still_is_noticed(tiny_model_dir: Path, data_dir: Path) -> None:
    """Also where there is no step."""
    with three_stages(tiny_model_dir, data_dir) as (engine, stages, _):
        stages[1].suspend()
        assert ended_by(engine) == "engine_hung"
        assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.HUNG
        assert_gone(stages)
