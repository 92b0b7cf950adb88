"""What a stage on another host can do to the end that reads its rows: end the link, and no more."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

import pytest
import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.errors import BadRowsError
from inference.engine.stages.row_link import HEADER, RowLink, RowReader
from inference.stage_links.connection import SecureConnection
from tests.inference.stage_links.conftest import LONG_S, Ends

NUM_FEATURES, MAX_ROWS = 64, 4096
ROWS = torch.ones(MAX_ROWS, NUM_FEATURES)
"""Half a megabyte on a link."""


def _begun(ends: Ends) -> tuple[RowLink, RowLink]:
    """The links of the stage that sends, of whose rows one step has come, and of the reader."""
    stage = RowLink(ends.ours, NUM_FEATURES, is_narrow=True)
    reader = RowLink(ends.theirs, NUM_FEATURES, max_rows=MAX_ROWS)
    stage.send(1, ROWS[:3])
    first = reader.receive()
    assert first.number == 1 and first.rows is not None
    assert torch.equal(first.rows, ROWS[:3].bfloat16())
    return stage, reader


def _sends(data: bytes) -> Callable[[SecureConnection], None]:
    return lambda connection: connection.sendall(data)


def _dies(connection: SecureConnection) -> None:
    """Its kernel closes the socket; TLS has no last word."""
    with socket.socket(fileno=os.dup(connection._fileno)) as tcp:
        tcp.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (_sends(HEADER.pack(2, 2, 3, NUM_FEATURES) + bytes(NUM_FEATURES)), ChannelClosedError),
        (SecureConnection.close, ChannelClosedError),
        (_dies, ChannelClosedError),
        (_sends(bytes(7) + b"\x80" + bytes(range(256)) * 40), BadRowsError),
    ],
    ids=["half-rows", "end", "death", "garbage"],
)
def test_what_no_stage_sends_ends_the_link(
    ends: Ends, act: Callable[[SecureConnection], None], error: type[ChannelError]
) -> None:
    """It ends in the stall timeout at the latest."""
    _, reader = _begun(ends)
    act(ends.ours)
    with pytest.raises(error):
        reader.receive()


@pytest.mark.slow
@pytest.mark.parametrize("ends", [LONG_S], indirect=True)
def test_a_flood_waits_at_its_sender(ends: Ends) -> None:
    """Some 100 MB of steps that no engine has begun: the reader keeps as many as it may."""
    stage, link = _begun(ends)
    sent, ended = [], list[ChannelError]()

    def flood() -> None:
        for number in range(2, 200):
            stage.send(number, ROWS)
            sent.append(number)

    sender = threading.Thread(target=flood)
    sender.start()
    reader = RowReader(link, "flood", ended.append, max_arrivals=4)
    time.sleep(2.0)
    assert len(sent) < 60
    numbers = [arrival.number for _ in range(20) if (arrival := reader.next(20)) is not None]
    assert numbers == list(range(2, 22)), "in order, once there is room"
    while (arrival := reader.next(20)) is not None and arrival.number < 199:
        pass
    sender.join(60)
    _dies(ends.ours)
    assert reader.next(20) is None
    assert len(ended) == 1
