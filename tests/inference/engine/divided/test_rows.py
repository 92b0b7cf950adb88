"""Rows cross to the bit, or rounded where that is asked for. Steps are in flight over stages; what
no stage sends ends the link or the model, and what is of no step is dropped. A stage computes with
no step and no adapter that would reach beyond its memory: native code reads them as they are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import numpy as np
import pytest
import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.divided.row_link import FAULT, HEADER, Arrival, RowLink, RowReader
from inference.engine.divided.stage_messages import (
    AddAdapter,
    adapter_of,
    checked_step,
    message_of_adapter,
)
from inference.engine.divided.staged_model import StagedModel
from inference.engine.divided.step_frames import Array, NewKV, message_of, step_of
from inference.engine.errors import (
    BadRowsError,
    DeviceFault,
    OutOfMemoryFault,
    StepFault,
    StepInputFault,
)
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.errors import UnsupportedAdapterError
from inference.models.splits import LayerRange, stage_config
from inference.models.step_input import ImageEmbeddings, StepImages, StepInput
from tests.cases import each_case
from tests.inference.models.tiny_configs import config_of

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


FRAME = HEADER.pack(1, 1, 2, NUM_FEATURES) + bytes(2 * NUM_FEATURES * 4)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (HEADER.pack(1, 1, 5, NUM_FEATURES + 1), BadRowsError),
        (HEADER.pack(1, 9, 5, NUM_FEATURES), BadRowsError),
        (HEADER.pack(1, 1, 2**31, NUM_FEATURES), BadRowsError),
        (HEADER.pack(1, FAULT, 2**31, 0), BadRowsError),
        # The end of the other side: between frames, in a header and in rows.
        *((FRAME[:length], ChannelClosedError) for length in (0, 5, HEADER.size, HEADER.size + 11)),
    ],
)
def test_what_no_stage_sends_is_refused_before_it_is_read(
    ends: Ends, sent: bytes, error: type[Exception]
) -> None:
    sending, link = ends
    sending.sendall(sent)
    if error is ChannelClosedError:
        sending.close()
    with pytest.raises(error):
        link.receive()


def test_a_reader_reads_while_nobody_asks(ends: Ends) -> None:
    """The rows are more than a socket holds: the sender does not wait, but for a reader that keeps
    as many as it may."""
    sending, link = ends
    ended: list[ChannelError] = []
    reader = RowReader(link, "rows", ended.append)
    rows = torch.randn(4000, NUM_FEATURES)
    for number in range(8):
        RowLink(sending, NUM_FEATURES).send(number, rows)
    arrivals = [reader.next(20) for _ in range(8)]
    assert [one.number for one in arrivals if isinstance(one, Arrival)] == list(range(8))
    assert reader.next(0) is None and not ended
    ours, theirs = socket.socketpair()
    with ours, theirs:
        full = RowReader(RowLink(theirs, NUM_FEATURES), "full", ended.append, max_arrivals=2)
        out = RowLink(ours, NUM_FEATURES)
        sender = threading.Thread(target=lambda: [out.send(number, rows) for number in range(20)])
        sender.start()
        sender.join(0.2)
        assert sender.is_alive()
        assert [one.number for _ in range(20) if (one := full.next(20))] == list(range(20))
        sender.join(20)
    assert full.next(20) is None and len(ended) == 1
    sending.close()
    assert reader.next() is None and reader.next() is None, "nothing comes any more"
    assert len(ended) == 2


DECODES = StepInput.of_decodes([1, 2], [0, 0], np.array([[0], [1]], dtype=np.int32), 16)


def staged_model(arrivals: list[Arrival]) -> StagedModel:
    """Its first stage's logits are the rows that come back from the last one."""
    layers = [SimpleNamespace(layers=LayerRange(n, n + 1)) for n in (0, 1)]
    first: Any = SimpleNamespace(
        tower=None,
        has_own_threads=False,
        dtype=torch.float32,
        device=torch.device("cpu"),
        kv_format="fp32",
        forward_rows=lambda step, hidden, kv: torch.zeros(len(step.positions), NUM_FEATURES),
        head_logits=lambda rows: rows,
        new_kv=lambda *sizes: SimpleNamespace(block_tokens=16),
    )
    processes: Any = MagicMock(next_arrival=lambda: arrivals.pop(0), __len__=lambda self: 1)
    return StagedModel(config_of("llama"), first, layers, processes)  # type: ignore[arg-type]


def _rows(number: int, num_rows: int = 2) -> Arrival:
    return Arrival(number, torch.full((num_rows, NUM_FEATURES), float(number)))


def test_steps_may_be_finished_in_any_order() -> None:
    """A last stage on another host may send any rows: those of no step, of an older storage and of
    another number are dropped."""
    arrivals: list[Arrival] = []
    model = staged_model(arrivals)
    old = model.begin(DECODES, model.new_kv(2, 16))
    kv = model.new_kv(2, 16)
    numbers = [model.begin(DECODES, kv) for _ in range(4)]
    lies = [_rows(old), _rows(0), _rows(3), _rows(2**63), _rows(numbers[0], num_rows=1)]
    arrivals += [_rows(numbers[0]), *lies, *(_rows(number) for number in numbers[1:])]
    model.give_up(numbers[1])
    for number in (numbers[2], numbers[0], numbers[3]):
        assert model.finish(number)[0, 0] == number
    number = model.begin(DECODES, kv)
    arrivals.append(Arrival(number, None, StepInputFault("shapes")))
    with pytest.raises(StepInputFault):
        model.finish(number)
    for num_rows in (0, 1, 3):
        number = model.begin(DECODES, kv)
        arrivals.append(_rows(number, num_rows))
        with pytest.raises(DeviceFault):  # a step of another number of rows ends the model
            model.finish(number)


SIZE = NewKV(num_blocks=6, block_tokens=16, num_state_slots=4)
NUM_POSITIONS = 64
WIDTH = 8
QUERIES = StepInput.of_queries(
    [1, 2, 3, 4, 5],
    [17, 30],
    [1, 4],
    np.array([[5, 1, 0], [2, 3, 4]], dtype=np.int32),
    16,
    num_decodes=1,
    logit_rows=[0, 4],
    state_slots=([2, 3], [2, 3]),
)
IMAGES = StepImages(
    torch.zeros(3, 5, dtype=torch.int64),
    torch.tensor([1, 2]),
    ImageEmbeddings(torch.rand(2, WIDTH).bfloat16(), (torch.rand(2, WIDTH),)),
)
LAST_SEEN = np.array([17, 32, 32, 32, 33], dtype=np.int32)


def _check(step: StepInput, num_rows: int = 5) -> StepInput:
    return checked_step(message_of(step), torch.zeros(num_rows, WIDTH), SIZE, NUM_POSITIONS)


def test_a_step_is_what_it_was() -> None:
    step = replace(QUERIES, images=IMAGES, last_seen=LAST_SEEN)
    found = _check(step)
    for name in ("positions", "slots", "block_table", "context_lens", "logit_rows", "last_seen"):
        assert np.array_equal(getattr(found, name), getattr(step, name))
    assert found.images is not None and torch.equal(found.images.row_ids, IMAGES.row_ids)
    assert found.images.rows is not None and IMAGES.rows is not None
    for ours, theirs in (
        (found.images.rows.embeddings, IMAGES.rows.embeddings),
        (found.images.rows.deepstack[0], IMAGES.rows.deepstack[0]),
    ):
        assert torch.equal(ours, theirs) and ours.dtype is theirs.dtype
    unplaced = _check(replace(QUERIES, images=replace(IMAGES, rotary=None))).images
    assert unplaced is not None and unplaced.rotary is None
    plain = replace(QUERIES, logit_rows=None, state_reads=None, state_writes=None)
    sent = step_of(message_of(plain))
    assert (sent.logit_rows, sent.state_reads, sent.state_writes) == (None, None, None)
    unread = StepInput.of_decodes(
        [0, 0], [1, 2], QUERIES.block_table, 16, unread_ids=torch.tensor([70, 80])
    )  # tokens that only the device knows are sent
    assert step_of(message_of(unread)).token_ids.tolist() == [70, 80]
    for num_rows in (0, 4, 6):  # hidden rows of another number are refused
        with pytest.raises(StepInputFault):
            _check(QUERIES, num_rows)


LENGTHS = ("token_ids", "positions", "slots", "query_start", "context_lens", "block_table")


def _with(field: str, at: Any, value: int) -> dict[str, Any]:
    array = getattr(QUERIES, field).copy()
    array[at] = value
    return {field: array}


@each_case(
    "changes",
    [
        # An index beyond the storage.
        *(
            _with(field, at, value)
            for field, at, values in (
                ("token_ids", 0, (-1,)),
                ("positions", 2, (-1, 30, 64, 2**31 - 1)),
                ("slots", 2, (-1, 96, 2**31 - 1)),
                ("query_start", 0, (-1, 1)),
                ("query_start", 1, (-1, 0, 5, 6, 2**31 - 1, -(2**31))),
                ("query_start", 2, (4, 6)),
                ("context_lens", 1, (-(2**31), 0, 3, 33, 49, 65, 2**31 - 1)),
                ("block_table", (0, 1), (-1, 6, 2**31 - 1)),
                ("logit_rows", 1, (-1, 5)),
                ("state_reads", 1, (-1, 4)),
                ("state_writes", 0, (-1, 4)),
            )
            for value in values
        ),
        *(
            {name: array}
            for name in (*LENGTHS, "state_reads")
            for whole in [getattr(QUERIES, name)]
            for array in (whole[:-1], whole[:0], whole[None], np.concatenate((whole, whole)))
        ),
        {"block_tokens": 32},
        *({"last_seen": LAST_SEEN + np.int32(off)} for off in (-1, 1, 2**30)),
        {"last_seen": LAST_SEEN[:-1]},
        *({"num_decodes": number} for number in (3, -1)),
        {"logit_rows": np.zeros(6, dtype=np.int32)},
        {"images": replace(IMAGES, rotary=torch.zeros(3, 4, dtype=torch.int64))},
        *({"images": replace(IMAGES, row_ids=torch.tensor(ids))} for ids in ([1, 5], [1, 2, 3])),
    ],
    ids=str,
)
def test_what_contradicts_itself_or_its_storage_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StepInputFault):
        _check(replace(QUERIES, **changes))


@each_case(
    ("field", "array"),
    [
        *(
            (name, array)
            for name in LENGTHS
            for array in (
                Array("int32", (2**40,), b""),
                Array("int32", (-1, 3), bytes(8)),
                Array("int32", (3,), bytes(7)),
            )
        ),
        ("unread_ids", Array("int32", (1,), bytes(4))),
        ("images", Array("int64", (3, 2**40), b"")),
        ("images", Array("load", (3, 5), bytes(120))),
        ("images", Array("no_such", (0, 3), b"")),
        ("images", Array("int64", (3, 6), bytes(120))),
        ("arrays", None),
    ],
    ids=str,
)
def test_messages_that_no_step_was_made_into_are_refused(field: str, array: Any) -> None:
    sent = message_of(replace(QUERIES, images=IMAGES))
    assert sent.images is not None
    arrays, images = {} if field == "arrays" else dict(sent.arrays), sent.images
    if field == "images":
        images = type(images)(array, images.row_ids, None, [])
    elif array is not None:
        arrays[field] = array
    changed = msgspec.structs.replace(sent, arrays=arrays, images=images)
    with pytest.raises(StepInputFault):
        checked_step(changed, torch.zeros(5, WIDTH), SIZE, NUM_POSITIONS)


CONFIG = stage_config(config_of("llama"), LayerRange(1, 2))
NAME = "model.layers.0.self_attn.v_proj"
OUT, IN = adaptable_shapes(CONFIG)[NAME]
RANK = 3


WHOLE_DOWN, WHOLE_UP = torch.ones(RANK, IN), torch.ones(OUT, RANK)


def adapter_message(
    down: torch.Tensor = WHOLE_DOWN, up: torch.Tensor = WHOLE_UP, scale: float = 2.0
) -> AddAdapter:
    return message_of_adapter(7, AdapterWeights({NAME: LowRank(down, up, scale)}))


GOOD = adapter_message(up=WHOLE_UP.bfloat16())
DOWN = GOOD.modules[NAME].down


def changed_down(**changes: Any) -> AddAdapter:
    down = msgspec.structs.replace(DOWN, **changes)
    return AddAdapter(
        number=1, modules={NAME: msgspec.structs.replace(GOOD.modules[NAME], down=down)}
    )


LIES = {
    "wider": adapter_message(torch.ones(RANK, IN + 1)),
    "fewer outputs": adapter_message(up=torch.ones(OUT - 1, RANK)),
    "another rank": adapter_message(up=torch.ones(OUT, RANK + 1)),
    "no rank": adapter_message(torch.ones(0, IN), torch.ones(OUT, 0)),
    "flat": adapter_message(torch.ones(RANK * IN)),
    "a number": adapter_message(torch.tensor(1.0)),
    "integers": adapter_message(torch.ones(RANK, IN, dtype=torch.int32)),
    "no scale": adapter_message(scale=float("nan")),
    "no dtype": changed_down(dtype="nothing"),
    "more than its bytes": changed_down(shape=(RANK, IN * 1000)),
    **{
        f"no weight of this stage: {name}": AddAdapter(number=1, modules={name: GOOD.modules[NAME]})
        for name in ("model.layers.1.self_attn.v_proj", "lm_head", "")
    },
}


@each_case("name", list(LIES))
def test_what_would_be_read_past_its_end_is_refused(name: str) -> None:
    one = adapter_of(GOOD, CONFIG).modules[NAME]  # which crosses byte for byte
    assert torch.equal(one.down, torch.ones(RANK, IN)) and one.up.dtype is torch.bfloat16
    assert (one.up.shape, one.scale) == ((OUT, RANK), 2.0)
    kind, _, _ = name.partition(": ")
    match = kind if kind.startswith("no weight") else NAME
    with pytest.raises(UnsupportedAdapterError, match=match):
        adapter_of(LIES[name], CONFIG)
