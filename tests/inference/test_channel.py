"""Frames between a neuron and an engine process."""

from __future__ import annotations

import socket
import threading

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


@given(payloads=st.lists(st.binary(max_size=2000), max_size=5))
def test_frames_arrive_whole_whatever_pieces_they_come_in(payloads: list[bytes]) -> None:
    near, far = socket.socketpair()
    with near, far:
        stream = b"".join(HEADER.pack(len(p)) + p for p in payloads)
        sender = threading.Thread(
            target=lambda: [near.send(stream[i : i + 1]) for i in range(len(stream))]
        )
        sender.start()
        channel = Channel(far)
        assert [channel.receive() for _ in payloads] == payloads
        sender.join()


def test_large_frame() -> None:
    near, far = socket.socketpair()
    with near, far:
        payload = bytes(range(256)) * 20_000
        sender = threading.Thread(target=Channel(near).send, args=(payload,))
        sender.start()
        assert Channel(far).receive() == payload
        sender.join()


def test_end_of_file_within_a_frame() -> None:
    near, far = socket.socketpair()
    with far:
        near.sendall(HEADER.pack(10) + b"half")
        near.close()
        with pytest.raises(ChannelClosedError):
            Channel(far).receive()


def test_length_that_cannot_be() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.sendall(HEADER.pack(MAX_FRAME_BYTES + 1))
        with pytest.raises(FrameTooLargeError):
            Channel(far).receive()
