"""Frames between a neuron and an engine process."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.channel import (
    HEADER,
    MAX_FRAME_BYTES,
    Channel,
    ChannelClosedError,
    FrameTooLargeError,
)
from tests.cases import each_case


@given(payloads=st.lists(st.binary(max_size=2000), max_size=5))
def test_frames_arrive_whole_whatever_pieces_they_come_in(payloads: list[bytes]) -> None:
    near, far = socket.socketpair()
    with near, far:
        stream = b"".join(HEADER.pack(len(p)) + p for p in payloads)
        with ThreadPoolExecutor(1) as sender:
            sender.submit(lambda: [near.send(stream[i : i + 1]) for i in range(len(stream))])
            channel = Channel(far)
            assert [channel.receive() for _ in payloads] == payloads


def test_large_frame() -> None:
    near, far = socket.socketpair()
    payload = bytes(range(256)) * 20_000
    with near, far, ThreadPoolExecutor(1) as sender:
        sender.submit(Channel(near).send, payload)
        assert Channel(far).receive() == payload


@each_case(
    ("sent", "error"),
    [
        (HEADER.pack(10) + b"half", ChannelClosedError),
        (HEADER.pack(MAX_FRAME_BYTES + 1), FrameTooLargeError),
    ],
)
def test_frames_that_end_early_or_cannot_be(sent: bytes, error: type[Exception]) -> None:
    near, far = socket.socketpair()
    with far:
        with near:
            near.sendall(sent)
        with pytest.raises(error):
            Channel(far).receive()
