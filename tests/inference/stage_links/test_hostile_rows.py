"""What a stage on another host can do to the end that reads its rows: end the link, and no more."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.stages.row_link import HEADER, RowLink, RowReader
from inference.stage_links.connection import SecureConnection
from tests.inference.stage_links.conftest import LONG_S, Ends

NUM_FEATURES, MAX_ROWS = 64, 4096
ROWS = torch.ones(MAX_ROWS, NUM_FEATURES)
"""Half a megabyte on a link."""


def test_a_stage_that_dies_within_a_step_ends_the_link(ends: Ends) -> None:
    stage = RowLink(ends.ours, NUM_FEATURES, is_narrow=True)
    reader = RowLink(ends.theirs, NUM_FEATURES, max_rows=MAX_ROWS)
    stage.send(1, ROWS[:3])
    first = reader.receive()
    assert first.number == 1 and first.rows is not None
    assert torch.equal(first.rows, ROWS[:3].bfloat16())
    ends.ours.sendall(HEADER.pack(2, 2, 3, NUM_FEATURES) + bytes(NUM_FEATURES))
    _die(ends.ours)
    with pytest.raises(ChannelClosedError):
        reader.receive()


def _die(connection: SecureConnection) -> None:
    """Its kernel closes the socket; TLS has no last word."""
    with socket.socket(fileno=os.dup(connection._fileno)) as tcp:
        tcp.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [LONG_S], indirect=True)
def test_a_flood_waits_at_its_sender(ends: Ends) -> None:
    """Some 100 MB of steps that no engine has begun: the reader keeps as many as it may."""
    stage = RowLink(ends.ours, NUM_FEATURES, is_narrow=True)
    link = RowLink(ends.theirs, NUM_FEATURES, max_rows=MAX_ROWS)
    sent, ended = [], list[ChannelError]()

    def flood() -> None:
        for number in range(200):
            stage.send(number, ROWS)
            sent.append(number)

    sender = threading.Thread(target=flood)
    sender.start()
    reader = RowReader(link, "flood", ended.append, max_arrivals=4)
    time.sleep(2.0)
    assert len(sent) < 60
    numbers = [arrival.number for _ in range(20) if (arrival := reader.next(20)) is not None]
    assert numbers == list(range(20)), "in order, once there is room"
    while (arrival := reader.next(20)) is not None and arrival.number < 199:
        pass
    sender.join(60)
    _die(ends.ours)
    assert reader.next(20) is None
    assert len(ended) == 1
