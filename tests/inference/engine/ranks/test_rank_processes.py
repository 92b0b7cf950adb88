"""Two ranks as processes: their answers, and the model's end when one of them dies or hangs. Its
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
from inference.protocol.load_report import LoadReport
from tests.inference.engine.serving.test_process import EXIT_TIMEOUT_S, EngineProcess, started
from tests.processes import has_ended

pytestmark = pytest.mark.slow

LONG = 200
"""Tokens of an answer that is still running when a rank is killed."""


@contextmanager
def two_ranks(
    model_dir: Path, data_dir: Path, step_timeout_s: int = 60
) -> Iterator[tuple[EngineProcess, psutil.Process, LoadReport]]:
    """The engine, the process of rank 1, and the load report."""
    with started(
        f"path:{model_dir}",
        data_dir,
        tensor_parallel=2,
        environment={"HELEXA_STEP_TIMEOUT_S": str(step_timeout_s)},
    ) as engine:
        loaded = engine.wait_loaded()
        assert isinstance(loaded, Loaded), loaded
        (follower,) = psutil.Process(engine.process.pid).children()
        yield engine, follower, loaded.report


def ended_by(engine: EngineProcess) -> str:
    """The code of the fault in its ``EngineFaulted`` message."""
    return next(m for m in engine.messages() if isinstance(m, EngineFaulted)).code


def assert_gone(process: psutil.Process) -> None:
    psutil.wait_procs([process], timeout=EXIT_TIMEOUT_S)
    assert has_ended(process)


def test_two_processes_answer_as_one(tiny_model_dir: Path, data_dir: Path) -> None:
    answers = []
    for tensor_parallel in (1, 2):
        with started(
            f"path:{tiny_model_dir}", data_dir, kv_dtype="fp32", tensor_parallel=tensor_parallel
        ) as engine:
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
            engine.send(Shutdown())
            assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.OK
    assert answers[0] == answers[1] and len(answers[0]) == 24
    report = loaded.report
    assert "2 ranks on cpu, cpu" in report.compiled
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert all(rank.estimated_bytes > 0 and rank.actual_bytes > 0 for rank in report.ranks)
    assert report.actual_bytes == report.kv_bytes + sum(r.actual_bytes for r in report.ranks)


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
def test_a_rank_that_dies_ends_the_model_at_once(
    tiny_model_dir: Path, data_dir: Path, is_busy: bool
) -> None:
    with two_ranks(tiny_model_dir, data_dir, step_timeout_s=600) as (engine, follower, _):
        if is_busy:
            engine.submit("long", LONG)
        follower.kill()
        assert ended_by(engine) == "device_fault"
        assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.DEVICE_FAULT
        with pytest.raises(ChannelClosedError):
            list(engine.messages())


def test_a_rank_that_stands_still_is_noticed_by_the_watchdog(
    tiny_model_dir: Path, data_dir: Path
) -> None:
    with two_ranks(tiny_model_dir, data_dir, step_timeout_s=5) as (engine, follower, _):
        follower.suspend()
        engine.submit("long", LONG)
        assert ended_by(engine) == "engine_hung"
        assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.HUNG
        assert_gone(follower)  # though it could not receive a message
