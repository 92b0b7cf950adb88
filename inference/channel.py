"""Frames on the connection between a neuron and an engine process, or an engine and a stage of its
model on another host, for both of its ends.

    [ length: 4 bytes, little-endian ][ msgpack of that many bytes ]
"""

from __future__ import annotations

import socket
import struct
from typing import Protocol


class ChannelError(Exception): ...


class ChannelClosedError(ChannelError):
    pass


class FrameTooLargeError(ChannelError):
    pass


class Connection(Protocol):
    """One end. One thread may read while another writes."""

    def sendall(self, data: bytes | bytearray | memoryview, /) -> None:
        """Blocks while the other end does not read. Raises ``OSError``."""
        ...

    def read_into(self, view: memoryview, *, begins_frame: bool) -> None:
        """``begins_frame``: it may wait without limit. Raises ``EOFError``, ``OSError``."""
        ...

    def close(self) -> None: ...


class LocalConnection:
    """It has no timeouts: a process of this host is as trusted as this one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.sendall = connection.sendall
        self.close = connection.close

    def read_into(self, view: memoryview, *, begins_frame: bool) -> None:
        received = 0
        while received < len(view):
            num_bytes = self._socket.recv_into(view[received:])
            if not num_bytes:
                raise EOFError("end of file")
            received += num_bytes


def as_connection(connection: socket.socket | Connection) -> Connection:
    return LocalConnection(connection) if isinstance(connection, socket.socket) else connection


def read_into(connection: Connection, view: memoryview, *, begins_frame: bool = False) -> None:
    try:
        connection.read_into(view, begins_frame=begins_frame)
    except EOFError as error:
        raise ChannelClosedError("end of file") from error
    except OSError as error:
        raise ChannelClosedError(f"the connection broke: {error}") from error


HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 256 * 1024 * 1024
RECEIVED_AT_ONCE_BYTES = 1 << 20


class Channel:
    """One end. ``send`` and ``receive`` may run in different threads, each in one only."""

    def __init__(
        self, connection: socket.socket | Connection, *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._connection = as_connection(connection)
        self._max_frame_bytes = max_frame_bytes

    def send(self, payload: bytes) -> None:
        """Blocks until the kernel took it all. Raises both channel errors."""
        if len(payload) > self._max_frame_bytes:
            raise FrameTooLargeError(
                f"{len(payload)} bytes; a frame holds {self._max_frame_bytes} at most"
            )
        try:
            self._connection.sendall(HEADER.pack(len(payload)) + payload)
        except OSError as error:
            raise ChannelClosedError(f"the other end is gone: {error}") from error

    def receive(self) -> bytes:
        """Blocks. Raises both channel errors."""
        header = bytearray(HEADER.size)
        read_into(self._connection, memoryview(header), begins_frame=True)
        (length,) = HEADER.unpack(header)
        if length > self._max_frame_bytes:
            raise FrameTooLargeError(f"{length} bytes announced; {self._max_frame_bytes} at most")
        received = bytearray()
        while len(received) < length:  # memory follows the bytes received, not the length announced
            part = bytearray(min(length - len(received), RECEIVED_AT_ONCE_BYTES))
            read_into(self._connection, memoryview(part), begins_frame=False)
            received += part
        return bytes(received)

    def close(self) -> None:
        self._connection.close()
