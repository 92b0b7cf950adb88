"""Rows cross to the bit, or rounded where that is asked for; what no stage sends ends the link."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.errors import (
    BadRowsError,
    DeviceFault,
    OutOfMemoryFault,
    StepFault,
    StepInputFault,
)
from inference.engine.stages.row_link import FAULT, HEADER, Arrival, RowLink, RowReader

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
def test_rows_arrive_as_they_were_sent(ends: Ends, num_rows: int, dtype: torch.dtype) -> None:
    """Values that are not numbers and rows of a larger tensor as well; twice, so that nothing is
    left between two frames."""
    sending, link = ends
    rows = torch.randn(2 * num_rows, NUM_FEATURES).to(dtype)[::2]
    if num_rows:
        rows[0, 0] = float("nan")
    out = RowLink(sending, NUM_FEATURES)
    thread = threading.Thread(target=lambda: [out.send(number, rows) for number in (7, 2**40)])
    thread.start()
    for number in (7, 2**40):
        arrival = link.receive()
        assert arrival.number == number and arrival.fault is None
        assert arrival.rows is not None and arrival.rows.dtype == dtype
        assert arrival.rows.shape == (num_rows, NUM_FEATURES)
        bits = (one.contiguous().view(torch.uint8) for one in (arrival.rows, rows))
        assert torch.equal(*bits)
    thread.join()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_to_another_host_have_two_bytes_a_feature(ends: Ends, dtype: torch.dtype) -> None:
    """float32 is rounded to the nearest bfloat16, whose range is float32's; what has two bytes is
    not rounded again."""
    sending, link = ends
    rows = torch.randn(3, NUM_FEATURES).to(dtype)
    rows[0, 0], rows[0, 1] = 1 + 2**-8 + 2**-10, 3e4
    RowLink(sending, NUM_FEATURES, is_narrow=True).send(7, rows)
    arrival = link.receive()
    assert arrival.rows is not None
    assert arrival.rows.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
    assert torch.equal(arrival.rows, rows.to(arrival.rows.dtype))
    torch.testing.assert_close(arrival.rows.to(dtype), rows, rtol=2**-8, atol=0)


@pytest.mark.parametrize("fault", [DeviceFault("lost"), OutOfMemoryFault("full " * 2000)], ids=repr)
def test_a_fault_arrives_in_place_of_rows(ends: Ends, fault: StepFault) -> None:
    sending, link = ends
    RowLink(sending, NUM_FEATURES).send_fault(3, fault)
    arrival = link.receive()
    assert (arrival.number, arrival.rows) == (3, None)
    assert type(arrival.fault) is type(fault)
    assert str(fault).startswith(str(arrival.fault)) and str(arrival.fault)


def test_a_fault_of_another_kind_is_the_rows(ends: Ends) -> None:
    sending, link = ends
    text = b"EngineExit\nwhatever"
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
