"""A link carries bytes both ways at once, and no peer holds a thread for longer than it may. A
stage on another host can end the link, and no more."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from inference.channel import ChannelClosedError, ChannelError
from inference.engine.divided.row_link import HEADER, RowLink, RowReader
from inference.stage_links import SecureConnection
from tests.inference.stage_links.conftest import LONG_S, SHORT_S, Ends

MANY_BYTES = 24_000_000


def _read(link, num_bytes: int) -> bytearray:
    read = bytearray(num_bytes)
    link.read_into(memoryview(read), begins_frame=True)
    return read


@pytest.mark.parametrize("ends", [LONG_S], indirect=True)
def test_bytes_cross_both_ways_at_once(ends: Ends) -> None:
    """The bytes are more than sockets hold, with a thread for each direction at each end."""
    ours, theirs = os.urandom(MANY_BYTES), os.urandom(MANY_BYTES)
    with ThreadPoolExecutor(4) as pool:
        pool.submit(ends.ours.sendall, ours)
        pool.submit(ends.theirs.sendall, theirs)
        read = [pool.submit(_read, end, MANY_BYTES) for end in (ends.theirs, ends.ours)]
        assert [one.result(60) for one in read] == [ours, theirs]


def test_an_idle_link_stays(ends: Ends) -> None:
    """It stays for longer than the stall timeout, which is of frames that have begun."""
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(bytes(_read(ends.theirs, 1))))
    thread.start()
    time.sleep(2 * SHORT_S + 0.2)
    assert thread.is_alive()
    ends.ours.sendall(b"!")
    thread.join(20)
    assert read == [b"!"]


def test_a_peer_that_sends_or_reads_no_more_is_a_timeout(ends: Ends) -> None:
    """Back-pressure: the sender waits, holds nothing for its peer, and ends."""
    ends.ours.sendall(b"half")
    with pytest.raises(TimeoutError):
        _read(ends.theirs, 8)
    with pytest.raises(TimeoutError):
        ends.ours.sendall(bytes(64_000_000))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has it")
def test_a_host_that_is_gone_without_a_word_is_noticed_in_time(ends: Ends) -> None:
    """The kernel ends a link within ten seconds, whether it carries something or nothing. What it
    will do is read from the sockets of both ends: no test can cut a host's power."""
    for end in (ends.ours, ends.theirs):
        with socket.socket(fileno=os.dup(end._fileno)) as tcp:
            assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
            idle_s, interval_s, num_probes, unread_ms = (
                tcp.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}")) for name in names
            )
        assert idle_s + num_probes * interval_s < 10
        assert unread_ms < 10_000


@pytest.mark.parametrize("is_writing", [False, True], ids=["reader", "writer"])
def test_closing_wakes_who_waits(ends: Ends, is_writing: bool) -> None:
    """The socket's number is not used by others meanwhile."""
    raised: list[Exception] = []

    def use() -> None:
        try:
            if is_writing:
                ends.theirs.sendall(bytes(64_000_000))
            else:
                _read(ends.theirs, 8)
        except (EOFError, OSError) as error:
            raised.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    time.sleep(0.2)
    ends.theirs.close()
    thread.join(20)
    assert len(raised) == 1
    assert ends.theirs._socket.fileno() == -1
    ends.theirs.close()


def test_the_other_side_ends_or_a_machine_between_changes_bytes(ends: Ends) -> None:
    os.write(ends.ours._fileno, b"\x17\x03\x03\x00\x20" + os.urandom(32))
    with pytest.raises((EOFError, OSError)):
        _read(ends.theirs, 1)
    ends.ours.close()
    with pytest.raises(OSError, match=r".*"):
        for _ in range(100):
            ends.theirs.sendall(bytes(1_000_000))


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
