"""A worker: does one job after the other, each within its limits, until its socket closes."""

from __future__ import annotations

import os
import socket

from inference.channel import Channel, ChannelError
from inference.sandbox.errors import LossReason
from inference.sandbox.jobs import FURTHER, LAST, Broken, decode_job, encode_frame
from inference.sandbox.limits import (
    GROWTH_BYTES,
    data_bytes,
    lift_limits,
    limit_job,
    limit_process,
    output_bytes,
)
from inference.sandbox.work import perform


def work(connection: socket.socket) -> None:
    """Work on jobs until the other end closes, or until this process has grown too large. Its last
    answer then reports that, so that the pool gives it no further job."""
    limit_process()
    _write_nowhere()
    channel, started_bytes = Channel(connection), data_bytes()
    try:
        is_last = False
        while not is_last:
            answer = _answer(channel.receive())
            is_last = data_bytes() > started_bytes + GROWTH_BYTES
            channel.send((LAST if is_last else FURTHER) + answer)
    except ChannelError:
        return


def _answer(frame: bytes) -> bytes:
    limit_job(len(frame))
    try:
        return encode_frame(perform(decode_job(frame), output_bytes(len(frame))))
    except MemoryError:
        return encode_frame(Broken(reason=LossReason.MEMORY))
    finally:
        lift_limits()


def _write_nowhere() -> None:
    """A panic's message quotes the request, which no log may."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
