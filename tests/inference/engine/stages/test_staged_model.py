"""Steps in flight over stages, and what a last stage sends that is not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from inference.engine.children import Child
from inference.engine.errors import DeviceFault, HangFault, StepFault, StepInputFault
from inference.engine.stages import stage_processes
from inference.engine.stages.messages import Alive
from inference.engine.stages.row_link import Arrival
from inference.engine.stages.stage_processes import StageProcesses
from inference.engine.stages.staged_model import StagedModel
from inference.models.stages.layer_range import LayerRange
from inference.models.step_input import StepInput
from inference.protocol.load import LoadSpec, StageSpec
from tests.cases import each_case
from tests.inference.models.parallel.tiny_configs import config_of

STEP = StepInput.of_decodes([1, 2], [0, 0], np.array([[0], [1]], dtype=np.int32), 16)
NUM_FEATURES = 4


class FakeStage:
    """A first stage whose logits are the rows that come back."""

    tower = None
    has_own_threads = False
    dtype = torch.float32
    device = torch.device("cpu")

    def forward_rows(self, step: StepInput, hidden: None, kv: object) -> torch.Tensor:
        return torch.zeros(len(step.positions), NUM_FEATURES)

    def head_logits(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def new_kv(self, *sizes: int) -> object:
        return SimpleNamespace(block_tokens=16)


class FakeProcesses:
    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []

    def __len__(self) -> int:
        return 1

    def run(self, messages: Sequence[object], hidden: torch.Tensor) -> None:
        pass

    def new_kv(self, wanted: object) -> None:
        pass

    def next_arrival(self) -> Arrival:
        return self.arrivals.pop(0)


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def model(processes: FakeProcesses) -> StagedModel:
    config = config_of("llama")
    stages = [SimpleNamespace(layers=LayerRange(n, n + 1)) for n in (0, 1)]
    return StagedModel(config, FakeStage(), stages, processes)  # type: ignore[arg-type]


def _rows(number: int, num_rows: int = 2) -> Arrival:
    return Arrival(number, torch.full((num_rows, NUM_FEATURES), float(number)))


def test_steps_may_be_finished_in_any_order(model: StagedModel, processes: FakeProcesses) -> None:
    kv = model.new_kv(2, 16)
    numbers = [model.begin(STEP, kv) for _ in range(4)]
    processes.arrivals = [_rows(number) for number in numbers]
    model.give_up(numbers[1])
    for number in (numbers[2], numbers[0], numbers[3]):
        assert model.finish(number)[0, 0] == number


def test_rows_of_an_older_storage_are_dropped(model: StagedModel, processes: FakeProcesses) -> None:
    old = model.begin(STEP, model.new_kv(2, 16))
    number = model.begin(STEP, model.new_kv(2, 16))
    processes.arrivals = [_rows(old), _rows(number)]
    assert model.finish(number)[0, 0] == number


def test_rows_that_no_step_waits_for_are_dropped(
    model: StagedModel, processes: FakeProcesses
) -> None:
    """A last stage on another host may send any."""
    kv = model.new_kv(2, 16)
    numbers = [model.begin(STEP, kv) for _ in range(2)]
    lies = [_rows(0), _rows(3), _rows(2**63), _rows(numbers[0], num_rows=1)]
    processes.arrivals = [_rows(numbers[0]), *lies, _rows(numbers[1])]
    for number in numbers:
        assert model.finish(number)[0, 0] == number


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_a_step_of_another_number_of_rows_ends_the_model(
    model: StagedModel, processes: FakeProcesses, num_rows: int
) -> None:
    number = model.begin(STEP, model.new_kv(2, 16))
    processes.arrivals = [_rows(number, num_rows)]
    with pytest.raises(DeviceFault):
        model.finish(number)


def test_a_fault_is_an_answer_too(model: StagedModel, processes: FakeProcesses) -> None:
    number = model.begin(STEP, model.new_kv(2, 16))
    processes.arrivals = [Arrival(number, None, StepInputFault("shapes"))]
    with pytest.raises(StepInputFault):
        model.finish(number)


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
    processes.all = cast("list[Child]", names)
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
    assert 0 < sum(slept_s) - 60 < 10
