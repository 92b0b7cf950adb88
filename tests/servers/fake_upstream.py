"""An endpoint of others, one thread for each connection, that answers as a test wants it to.

with FakeUpstream() as upstream:
    upstream.answer = lambda asked, wire: wire.json(200, {"data": []})
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 60.0
HEAD_END = b"\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Wire:
    """One connection, as the endpoint sees it."""

    connection: socket.socket
    keeps: bool = field(default=True)

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def json(self, status: int, body: Any, **headers: str) -> None:
        self.whole(status, json.dumps(body).encode(), "application/json", **headers)

    def whole(self, status: int, body: bytes, content_type: str, **headers: str) -> None:
        extra = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
        head = (
            f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n"
            f"content-length: {len(body)}\r\n{extra}\r\n"
        )
        self.send(head.encode() + body)

    def begin_stream(self, content_type: str = "text/event-stream") -> None:
        self.send(
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )

    def part(self, data: bytes) -> None:
        self.send(_http_chunk(data))

    def event(self, chunk: Any) -> None:
        self.part(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def end_stream(self, last: bytes = DONE) -> None:
        """Both ends come at once, as servers send them: a reader that stops at the stream's own end
        has the body's too, and the connection serves its next request."""
        self.send((_http_chunk(last) if last else b"") + b"0\r\n\r\n")

    def stream(self, chunks: Iterable[Any]) -> None:
        self.begin_stream()
        for chunk in chunks:
            self.event(chunk)
        self.end_stream()

    def events(self, events: Iterable[Any]) -> None:
        """A stream of Anthropic's, whose last event is one of them."""
        self.begin_stream()
        for event in events:
            self.event(event)
        self.end_stream(b"")

    def lines(self, lines: Iterable[Any]) -> None:
        """A stream of Ollama's."""
        self.begin_stream("application/x-ndjson")
        for line in lines:
            self.part(json.dumps(line).encode() + b"\n")
        self.end_stream(b"")

    def cut(self) -> None:
        """Ends the connection at once, as a process that dies does."""
        self.keeps = False
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def half_close(self) -> None:
        """Sends no more, and still reads."""
        self.keeps = False
        self.connection.shutdown(socket.SHUT_WR)

    def wait_for_hang_up(self) -> bool:
        """Whether the other side has closed the connection within the test's patience."""
        self.keeps = False
        self.connection.settimeout(PATIENCE_S)
        try:
            return self.connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


Answer = Callable[[Asked, Wire], None]


def _not_set(asked: Asked, wire: Wire) -> None:
    wire.json(500, {"error": "no answer is set"})


class FakeUpstream:
    """``asked`` are its requests, in their order."""

    def __init__(self) -> None:
        self.answer: Answer = _not_set
        self.asked: list[Asked] = []
        self.num_connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"{self.origin}/v1"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> FakeUpstream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # To close it ends no accept() that waits, and the port would continue to accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            # Else a part waits for the one before it to be acknowledged, and a cut discards it.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.num_connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        wire = Wire(connection)
        with contextlib.suppress(OSError):
            while wire.keeps and (asked := _read(connection)) is not None:
                self.asked.append(asked)
                self.answer(asked, wire)
        connection.close()


@contextlib.contextmanager
def answering(bodies: dict[str, bytes], instance: str | None) -> Iterator[int]:
    """Fixed answers, as another instance of helexa: with its header. The port."""
    named = {} if instance is None else {"x_helexa_instance": instance}
    with FakeUpstream() as server:
        server.answer = lambda asked, wire: wire.whole(
            200, bodies[asked.path], "application/json", **named
        )
        yield int(server.origin.rpartition(":")[2])


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _read(connection: socket.socket) -> Asked | None:
    """``None``: the connection has ended."""
    data = b""
    while HEAD_END not in data:
        part = connection.recv(65536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(HEAD_END)
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    while len(body) < int(headers.get("content-length", "0")):
        part = connection.recv(65536)
        if not part:
            return None
        body += part
    method, path, _ = first.split(" ")
    return Asked(method, path, headers, body)


def chunk(
    delta: dict[str, Any] | None = None, *, index: int = 0, finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """One event of OpenAI's chat stream."""
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish, **more}
    return {"object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """The last event of OpenAI's chat stream."""
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return {"object": "chat.completion.chunk", "model": "m", "choices": [], "usage": tokens}


def message_start(**tokens: Any) -> dict[str, Any]:
    """The first event of Anthropic's stream."""
    counted = tokens or {"input_tokens": 7, "output_tokens": 1}
    return {"type": "message_start", "message": {"role": "assistant", "usage": counted}}


def block(index: int, opened: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole block of Anthropic's stream."""
    at = {"index": index}
    return [
        {"type": "content_block_start", **at, "content_block": opened},
        *({"type": "content_block_delta", **at, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", **at},
    ]


def message_end(
    stop_reason: str, *, stop_sequence: str | None = None, **tokens: Any
) -> dict[str, Any]:
    """The last event but one of Anthropic's stream."""
    counted = tokens or {"output_tokens": 2}
    delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    return {"type": "message_delta", "delta": delta, "usage": counted}
