"""Frames on the socket between a neuron and an engine process, for both of its ends.

    [ length: 4 bytes, little-endian ][ msgpack of that many bytes ]

Knows sockets and framing; what a frame means is ``inference.protocol.engine``. Imports no torch.
"""

from __future__ import annotations

import socket
import struct

from inference.engine.errors import ChannelClosedError, FrameTooLargeError

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 256 * 1024 * 1024


class Channel:
    """One end. ``send`` and ``receive`` may run in different threads, each in one only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, payload: bytes) -> None:
        """Blocks until the kernel took it all. Raises ``ChannelClosedError``."""
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLargeError(
                f"{len(payload)} bytes; a frame holds {MAX_FRAME_BYTES} at most"
            )
        try:
            self._connection.sendall(HEADER.pack(len(payload)) + payload)
        except OSError as error:
            raise ChannelClosedError("the other end is gone") from error

    def receive(self) -> bytes:
        """The next frame's payload. Blocks. Raises both channel errors."""
        (length,) = HEADER.unpack(self._read_exactly(HEADER.size))
        if length > MAX_FRAME_BYTES:
            raise FrameTooLargeError(f"{length} bytes announced; {MAX_FRAME_BYTES} at most")
        return self._read_exactly(length)

    def _read_exactly(self, num_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < num_bytes:
            try:
                part = self._connection.recv(min(num_bytes - len(received), 1 << 20))
            except OSError as error:
                raise ChannelClosedError("the connection broke") from error
            if not part:
                raise ChannelClosedError("end of file")
            received += part
        return bytes(received)

    def close(self) -> None:
        self._connection.close()
