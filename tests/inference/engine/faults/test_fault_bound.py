"""Requests on several stages end within ten seconds of a fault. Detection is counted in checks and
in timeouts here, not measured, so that a busy machine changes nothing; the tests of ``stages`` kill
and stop processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from inference.engine.errors import HangFault, StepFault
from inference.engine.stages import stage_processes
from inference.engine.stages.messages import Alive
from inference.engine.stages.stage_processes import (
    CHECK_INTERVAL_S,
    ROWS_END_S,
    StageProcess,
    StageProcesses,
)
from inference.engine.stages.stage_runner import ALIVE_INTERVAL_S, LOST_LINK_S
from inference.protocol.load import LoadSpec, StageSpec
from inference.stage_links.connection import STALL_TIMEOUT_S
from tests.cases import each_case

FAULT_S = 10.0
SPEC = LoadSpec(
    job_id="job",
    model="m",
    source="path:/m",
    stages=[StageSpec(device="cpu", layers=layers) for layers in ((0, 1), (1, 2), (2, 3))],
)


@each_case("silent_index", [0, 1])
def test_a_stage_that_stands_still_ends_the_model_in_time(
    monkeypatch: pytest.MonkeyPatch, silent_index: int
) -> None:
    """The silent stage sends until the sixtieth second. Until then there are up to four checks
    between two messages, as of processes of a busy host; from then on the other sends always."""
    processes, lost = StageProcesses(SPEC), list[StepFault]()
    names = [SimpleNamespace(name=f"stage {number}") for number in (2, 3)]
    processes.all = cast("list[StageProcess]", names)
    slept_s: list[float] = []

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        if sum(slept_s) > 60:
            processes._note(1 - silent_index, Alive())
        elif len(slept_s) % 4 == 0:
            for index in (0, 1):
                processes._note(index, Alive())

    monkeypatch.setattr(stage_processes, "time", SimpleNamespace(sleep=sleep))
    processes._on_lost = lost.append
    processes._watch_silence()
    (fault,) = lost
    assert isinstance(fault, HangFault)
    assert f"stage {silent_index + 2} has sent nothing" in str(fault)
    assert 0 < sum(slept_s) - 60 < FAULT_S
    assert ALIVE_INTERVAL_S <= CHECK_INTERVAL_S


def test_a_lost_link_of_rows_is_reported_in_time() -> None:
    """A peer that stalls, the pause in which its end may explain it, and the report of a stage that
    the engine does not see."""
    assert STALL_TIMEOUT_S + max(ROWS_END_S, LOST_LINK_S) < FAULT_S
