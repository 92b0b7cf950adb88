"""Rows cross to the bit, or rounded where that is asked for. Steps are in flight over stages; what
no stage sends ends the link or the model, and what is of no step is dropped."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.children import Child
from inference.engine.errors import (
    BadRowsError,
    DeviceFault,
    HangFault,
    OutOfMemoryFault,
    StepFault,
    StepInputFault,
)
from inference.engine.stages import stage_processes
from inference.engine.stages.messages import Alive
from inference.engine.stages.row_link import FAULT, HEADER, Arrival, RowLink, RowReader
from inference.engine.stages.stage_processes import StageProcesses
from inference.engine.stages.staged_model import StagedModel
from inference.models.stages.layer_range import LayerRange
from inference.models.step_input import StepInput
from inference.protocol.load import LoadSpec, StageSpec
from tests.cases import each_case
from tests.inference.models.parallel.tiny_configs import config_of

NUM_FEATURES = 24
Ends = tuple[socket.socket, RowLink]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Where a stage writes, and the link that reads it."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    with ours, theirs:
        yield ours, RowLink(theirs, NUM_FEATURES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("num_rows", [0, 1, 3000])
@pytest.mark.parametrize("is_narrow", [False, True])
def test_rows_arrive_as_they_were_sent(
    ends: Ends, num_rows: int, dtype: torch.dtype, is_narrow: bool
) -> None:
    """Values that are not numbers and rows of a larger tensor as well; twice, so that nothing is
    left between two frames. To another host float32 is rounded to the nearest bfloat16, whose range
    is float32's; what has two bytes is not rounded again."""
    sending, link = ends
    rows = torch.randn(2 * num_rows, NUM_FEATURES).to(dtype)[::2]
    if num_rows:
        rows[0, :3] = torch.tensor([float("nan"), 1 + 2**-8 + 2**-10, 3e4])
    out = RowLink(sending, NUM_FEATURES, is_narrow=is_narrow)
    thread = threading.Thread(target=lambda: [out.send(number, rows) for number in (7, 2**40)])
    thread.start()
    sent = rows.bfloat16() if is_narrow and dtype == torch.float32 else rows
    for number in (7, 2**40):
        arrival = link.receive()
        assert arrival.number == number and arrival.fault is None
        assert arrival.rows is not None and arrival.rows.dtype == sent.dtype
        assert arrival.rows.shape == (num_rows, NUM_FEATURES)
        bits = (one.contiguous().view(torch.uint8) for one in (arrival.rows, sent))
        assert torch.equal(*bits)
    thread.join()


@pytest.mark.parametrize("fault", [DeviceFault("lost"), OutOfMemoryFault("full " * 2000)], ids=repr)
def test_a_fault_arrives_in_place_of_rows(ends: Ends, fault: StepFault) -> None:
    sending, link = ends
    RowLink(sending, NUM_FEATURES).send_fault(3, fault)
    arrival = link.receive()
    assert (arrival.number, arrival.rows) == (3, None)
    assert type(arrival.fault) is type(fault)
    assert str(fault).startswith(str(arrival.fault)) and str(arrival.fault)
    text = b"EngineExit\nwhatever"  # a fault of another kind is the rows'
    sending.sendall(HEADER.pack(3, FAULT, len(text), 0) + text)
    assert isinstance(link.receive().fault, StepInputFault)


@pytest.mark.parametrize(
    "header",
    [
        (1, 1, 5, NUM_FEATURES + 1),
        (1, 9, 5, NUM_FEATURES),
        (1, 1, 2**31, NUM_FEATURES),
        (1, FAULT, 2**31, 0),
    ],
    ids=["features", "kind", "rows", "text"],
)
def test_what_no_stage_sends_is_refused_before_it_is_read(
    ends: Ends, header: tuple[int, int, int, int]
) -> None:
    sending, link = ends
    sending.sendall(HEADER.pack(*header))
    with pytest.raises(BadRowsError):
        link.receive()


@pytest.mark.parametrize("num_bytes", [0, 5, HEADER.size, HEADER.size + 11])
def test_the_end_of_the_other_side(ends: Ends, num_bytes: int) -> None:
    """Between frames, in a header and in rows."""
    sending, link = ends
    frame = HEADER.pack(1, 1, 2, NUM_FEATURES) + bytes(2 * NUM_FEATURES * 4)
    sending.sendall(frame[:num_bytes])
    sending.close()
    with pytest.raises(ChannelClosedError):
        link.receive()


def test_a_reader_reads_while_nobody_asks(ends: Ends) -> None:
    """The rows are more than a socket holds: the sender does not wait."""
    sending, link = ends
    ended: list[ChannelError] = []
    reader = RowReader(link, "rows", ended.append)
    rows = torch.randn(4000, NUM_FEATURES)
    for number in range(8):
        RowLink(sending, NUM_FEATURES).send(number, rows)
    arrivals = [reader.next(20) for _ in range(8)]
    assert [one.number for one in arrivals if isinstance(one, Arrival)] == list(range(8))
    assert reader.next(0) is None and not ended
    sending.close()
    assert reader.next(20) is None, "nothing comes any more"
    assert len(ended) == 1


STEP = StepInput.of_decodes([1, 2], [0, 0], np.array([[0], [1]], dtype=np.int32), 16)


@pytest.fixture
def arrivals() -> list[Arrival]:
    return []


@pytest.fixture
def model(arrivals: list[Arrival]) -> StagedModel:
    """Its first stage's logits are the rows that come back from the last one."""
    layers = [SimpleNamespace(layers=LayerRange(n, n + 1)) for n in (0, 1)]
    first: Any = SimpleNamespace(
        tower=None,
        has_own_threads=False,
        dtype=torch.float32,
        device=torch.device("cpu"),
        forward_rows=lambda step, hidden, kv: torch.zeros(len(step.positions), NUM_FEATURES),
        head_logits=lambda rows: rows,
        new_kv=lambda *sizes: SimpleNamespace(block_tokens=16),
    )
    processes: Any = MagicMock(next_arrival=lambda: arrivals.pop(0), __len__=lambda self: 1)
    return StagedModel(config_of("llama"), first, layers, processes)  # type: ignore[arg-type]


def _rows(number: int, num_rows: int = 2) -> Arrival:
    return Arrival(number, torch.full((num_rows, NUM_FEATURES), float(number)))


def test_steps_may_be_finished_in_any_order(model: StagedModel, arrivals: list[Arrival]) -> None:
    """A last stage on another host may send any rows: those of no step, of an older storage and of
    another number are dropped."""
    old = model.begin(STEP, model.new_kv(2, 16))
    kv = model.new_kv(2, 16)
    numbers = [model.begin(STEP, kv) for _ in range(4)]
    lies = [_rows(old), _rows(0), _rows(3), _rows(2**63), _rows(numbers[0], num_rows=1)]
    arrivals += [_rows(numbers[0]), *lies, *(_rows(number) for number in numbers[1:])]
    model.give_up(numbers[1])
    for number in (numbers[2], numbers[0], numbers[3]):
        assert model.finish(number)[0, 0] == number
    number = model.begin(STEP, kv)
    arrivals.append(Arrival(number, None, StepInputFault("shapes")))
    with pytest.raises(StepInputFault):
        model.finish(number)


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_a_step_of_another_number_of_rows_ends_the_model(
    model: StagedModel, arrivals: list[Arrival], num_rows: int
) -> None:
    number = model.begin(STEP, model.new_kv(2, 16))
    arrivals.append(_rows(number, num_rows))
    with pytest.raises(DeviceFault):
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
