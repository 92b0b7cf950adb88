"""What one request asked and was answered, for callers whose bodies an operator captures.

    headers, body ─▶ Capture ◀─ bytes sent, the neuron's trace
                        └──▶ RequestOutcome ─▶ masked, cut and stored by metering.request_records

Bounded by ``MAX_REQUEST_BYTES`` and ``MAX_ANSWER_BYTES``: of more only the number is kept. Belongs
to one event loop until the request has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_REQUEST_BYTES = 1024 * 1024
"""The longest text that is looked through. It is more than is stored: images, which are masked,
often come before the text."""
MAX_ANSWER_BYTES = 256 * 1024


class Capture:
    __slots__ = ("answer", "headers", "num_answer_bytes", "num_request_bytes", "request", "trace")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.headers: Sequence[tuple[bytes, bytes]] = tuple(headers)
        self.request = b""
        self.num_request_bytes = 0
        """The size of the whole body."""
        self.answer = bytearray()
        self.num_answer_bytes = 0
        self.trace = ""
        """What the neuron reported of it: its rendered prompt and what its parsers decided."""

    def ask(self, body: bytes) -> None:
        self.num_request_bytes = len(body)
        self.request = body[:MAX_REQUEST_BYTES]

    def send(self, part: bytes) -> None:
        """The next bytes of the answer."""
        self.num_answer_bytes += len(part)
        if len(self.answer) < MAX_ANSWER_BYTES:
            self.answer += part[: MAX_ANSWER_BYTES - len(self.answer)]

    def drop(self) -> None:
        """Drops the bodies, for which there is no room, and keeps the numbers."""
        self.request, self.answer, self.trace = b"", bytearray(), ""

    @property
    def num_bytes(self) -> int:
        """What it takes of memory."""
        return len(self.request) + len(self.answer) + len(self.trace)
