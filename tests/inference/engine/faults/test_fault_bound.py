"""Requests on several stages end within ten seconds of a fault. Detection is counted in checks and
in timeouts here, not measured, so that a busy machine changes nothing; the tests of ``stages`` kill
and stop processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from inference.engine.children.silence import CHECK_INTERVAL_S, SilentChildren
from inference.engine.faults.kinds import HangFault, StepFault
from inference.engine.stages import stage_processes
from inference.engine.stages.messages import Alive
from inference.engine.stages.stage_child import StageProcess
from inference.engine.stages.stage_processes import ROWS_END_S, StageProcesses
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


@each_case("silent_index", [0, 1, 2])
def test_a_silent_child_is_found_in_time(silent_index: int) -> None:
    """Its last message came just before a check."""
    silent, num_checks, found = SilentChildren(3), 0, None
    while found is None:
        num_checks += 1
        for index in {0, 1, 2} - {silent_index}:
            silent.note_message(index)
        found = silent.check()
    assert found == silent_index
    assert num_checks * CHECK_INTERVAL_S < FAULT_S


def test_children_that_send_now_and_then_are_alive() -> None:
    """Four checks between two messages: processes of a busy host."""
    silent = SilentChildren(2)
    for _ in range(50):
        assert [silent.check() for _ in range(4)] == [None] * 4
        for index in range(2):
            silent.note_message(index)
    assert ALIVE_INTERVAL_S <= CHECK_INTERVAL_S


def test_a_stage_that_stands_still_ends_the_model_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stage sends until its eleventh second, the third always."""
    processes, lost = StageProcesses(SPEC), list[StepFault]()
    names = [SimpleNamespace(name=f"stage {number}") for number in (2, 3)]
    processes.all = cast("list[StageProcess]", names)
    slept_s: list[float] = []

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        for index in (0, 1) if sum(slept_s) <= 11 else (1,):
            processes._note(index, Alive())

    monkeypatch.setattr(stage_processes, "time", SimpleNamespace(sleep=sleep))
    processes._on_lost = lost.append
    processes._watch_silence()
    (fault,) = lost
    assert isinstance(fault, HangFault) and "stage 2 has sent nothing" in str(fault)
    assert sum(slept_s) - 11 < FAULT_S


def test_a_lost_link_of_rows_is_reported_in_time() -> None:
    """A peer that stalls, the pause in which its end may explain it, and the report of a stage that
    the engine does not see."""
    assert STALL_TIMEOUT_S + max(ROWS_END_S, LOST_LINK_S) < FAULT_S
