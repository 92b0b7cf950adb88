"""Hidden rows from one stage to the next: one direction of a connection.

    [ number of the step │ kind │ rows │ features ][ the numbers, row by row ]
                           fault: bytes  0          [ its class and text ]

A sender to another host may round float32 to bfloat16. Every header is checked before memory is
allocated for what it announces. ``send`` blocks while the other end does not read; each end that
receives has a thread that does.
"""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

import torch

from inference.channel import ChannelClosedError, ChannelError, Connection, as_connection, read_into
from inference.engine import errors
from inference.engine.errors import BadRowsError, StepFault, StepInputFault
from inference.supervised_threads import SupervisedThread

HEADER = struct.Struct("<QBII")
DTYPES = {1: torch.float32, 2: torch.bfloat16, 3: torch.float16}
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
FAULT = 255
MOST_FAULT_BYTES = 4096
MOST_ROWS = 1 << 17
"""The most rows of one step: several times the prompt tokens and sequences that any step has."""
UNREAD_ARRIVALS = 64
"""The most steps whose rows wait to be taken from a link: more than are ever under way."""
ROWS_IN, ROWS_OUT = "rows-in", "rows-out"
JOINED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Arrival:
    number: int
    rows: torch.Tensor | None
    """(num_rows, features) in the host's memory; ``None``: there is a fault instead."""
    fault: StepFault | None = None


class RowLink:
    """One end. ``send`` and ``receive`` may run in different threads, each in one only."""

    def __init__(
        self,
        connection: socket.socket | Connection,
        num_features: int,
        *,
        is_narrow: bool = False,
    ) -> None:
        """``is_narrow``: ``send`` rounds float32 to bfloat16."""
        self._connection = as_connection(connection)
        self._num_features = num_features
        self._is_narrow = is_narrow

    def send(self, number: int, rows: torch.Tensor) -> None:
        """``rows`` (num_rows, features) of any device. Raises ``ChannelClosedError``."""
        if self._is_narrow:
            rows = narrowed(rows)
        data = _bytes_of(rows.detach().cpu().contiguous())
        header = HEADER.pack(number, KINDS[rows.dtype], rows.shape[0], rows.shape[1])
        if len(data) <= JOINED_BYTES:
            self._send(header + data)
        else:
            self._send(header)
            self._send(data)

    def send_fault(self, number: int, fault: StepFault) -> None:
        """Raises ``ChannelClosedError``."""
        text = f"{type(fault).__name__}\n{fault}".encode()[:MOST_FAULT_BYTES]
        self._send(HEADER.pack(number, FAULT, len(text), 0) + text)

    def receive(self) -> Arrival:
        """Raises ``ChannelClosedError``, and ``BadRowsError`` for rows that no stage sends."""
        header = bytearray(HEADER.size)
        read_into(self._connection, memoryview(header), begins_frame=True)
        number, kind, num_rows, num_features = HEADER.unpack(header)
        if kind == FAULT:
            return Arrival(number, None, self._fault(num_rows))
        if kind not in DTYPES or num_features != self._num_features or num_rows > MOST_ROWS:
            raise BadRowsError(
                f"{num_rows} rows of {num_features} features and kind {kind} were announced; rows "
                f"have {self._num_features} features, and steps {MOST_ROWS} rows at most"
            )
        rows = torch.empty((num_rows, num_features), dtype=DTYPES[kind])
        if num_rows:
            read_into(self._connection, _bytes_of(rows))
        return Arrival(number, rows)

    def close(self) -> None:
        self._connection.close()

    def _send(self, data: bytes | memoryview) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise ChannelClosedError(f"the other end of the rows is gone: {error}") from error

    def _fault(self, num_bytes: int) -> StepFault:
        if num_bytes > MOST_FAULT_BYTES:
            raise BadRowsError(f"a fault of {num_bytes} bytes; {MOST_FAULT_BYTES} at most")
        text = bytearray(num_bytes)
        read_into(self._connection, memoryview(text))
        name, _, message = text.decode(errors="replace").partition("\n")
        kind = getattr(errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, StepFault)):
            kind = StepInputFault
        return kind(message)


def narrowed(rows: torch.Tensor) -> torch.Tensor:
    """Rounds float32 to the nearest bfloat16; rows of two bytes a feature stay."""
    return rows.to(torch.bfloat16) if rows.dtype == torch.float32 else rows


def _bytes_of(rows: torch.Tensor) -> memoryview:
    return rows.flatten().view(torch.uint8).numpy().data


class RowReader:
    """Reads a link in a thread of its own, so that its sender never waits for a step that runs."""

    def __init__(
        self,
        link: RowLink,
        name: str,
        on_end: Callable[[ChannelError], object],
        *,
        max_arrivals: int = UNREAD_ARRIVALS,
    ) -> None:
        """``on_end`` is called once, in the reader's thread. While ``max_arrivals`` wait for
        ``next``, no more are read, and then their sender waits."""
        self._link = link
        self._on_end = on_end
        self._arrived: queue.Queue[Arrival | None] = queue.Queue(max_arrivals)
        SupervisedThread(self._read, name=name, restarts=False).start()

    def next(self, timeout_s: float | None = None) -> Arrival | None:
        """``None``: nothing came within ``timeout_s``, or nothing comes any more."""
        try:
            arrival = self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if arrival is None:
            self._arrived.put(None)  # for the steps that are still to be run
        return arrival

    def _read(self) -> None:
        try:
            while True:
                self._arrived.put(self._link.receive())
        except ChannelError as error:
            self._on_end(error)
            self._arrived.put(None)
