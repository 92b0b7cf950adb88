"""What a stage on another host can do to the end that reads its rows: end the link, and no more."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.errors import BadRowsError
from inference.engine.stages.row_link import RowLink, RowReader
from inference.stage_links.identities import new_identity
from tests.inference.stage_links.conftest import LONG_S, SHORT_S, Wait
from tests.inference.stage_links.peer import NUM_FEATURES, Order

pytestmark = pytest.mark.slow

WAIT_S = 60.0
MAX_ROWS = 4096
STALLING = ("half a header", "half its rows", "reads nothing")


class Peer:
    def __init__(self, wait: Wait, sends: str) -> None:
        stage, before = new_identity(), new_identity()
        stall_s = SHORT_S if sends in STALLING else LONG_S
        waiting = wait(stage, {"rows": before.certificate}, WAIT_S, stall_timeout_s=stall_s)
        order = Order(before, stage.certificate, waiting.address[1], sends)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.inference.stage_links.peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(order))
        self.process.stdin.close()
        connection = waiting.links.result(WAIT_S)["rows"]
        self.link = RowLink(connection, NUM_FEATURES, max_rows=MAX_ROWS)
        first = self.link.receive()
        assert first.number == 1 and first.rows is not None
        assert torch.equal(first.rows, torch.ones(3, NUM_FEATURES, dtype=torch.bfloat16))

    def wait_sent(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"sent\n"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.link.close()


@pytest.fixture
def peer(wait: Wait, request: pytest.FixtureRequest) -> Iterator[Peer]:
    """It has sent three rows as step 1 before, and sends what the test's parameter names."""
    peer = Peer(wait, getattr(request, "param", "nothing"))
    yield peer
    peer.close()


@pytest.mark.parametrize(
    ("peer", "error"),
    [
        ("half a header", ChannelClosedError),
        ("half its rows", ChannelClosedError),
        ("end of file", ChannelClosedError),
        ("too many rows", BadRowsError),
        ("rows of another model", BadRowsError),
        ("garbage", BadRowsError),
    ],
    indirect=["peer"],
)
def test_what_no_stage_sends_ends_the_link(peer: Peer, error: type[ChannelError]) -> None:
    """It ends in the stall timeout at the latest."""
    peer.wait_sent()
    began_s = time.monotonic()
    with pytest.raises(error):
        peer.link.receive()
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("peer", ["nothing"], indirect=True)
def test_a_peer_that_is_killed_is_noticed_at_once(peer: Peer) -> None:
    peer.wait_sent()
    threading.Timer(0.3, peer.process.kill).start()
    began_s = time.monotonic()
    with pytest.raises(ChannelClosedError):
        peer.link.receive()
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("peer", ["reads nothing"], indirect=True)
def test_a_peer_that_is_stopped_holds_no_sender(peer: Peer) -> None:
    peer.wait_sent()
    os.kill(peer.process.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(ChannelClosedError):
        for number in range(200):
            peer.link.send(number, torch.ones(4096, NUM_FEATURES))
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize("peer", ["a flood"], indirect=True)
def test_a_flood_waits_at_its_sender(peer: Peer) -> None:
    """Some 100 MB of steps that no engine has begun: the reader keeps as many as it may."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended: list[ChannelError] = []
    reader = RowReader(peer.link, "flood", ended.append, max_arrivals=4)
    time.sleep(3.0)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 20_000
    numbers = [arrival.number for _ in range(20) if (arrival := reader.next(20)) is not None]
    assert numbers == list(range(2, 22)), "in order, once there is room"
    peer.process.kill()
    while reader.next(20) is not None:
        pass
    assert len(ended) == 1
