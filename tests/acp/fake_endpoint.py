"""An LLM server of three dialects that answers with the texts of tests, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.acp import fake_dialects
from tests.acp.fake_dialects import Reply


@dataclass(frozen=True, slots=True)
class Refuse:
    status: int
    message: str
    code: str = "refused"


@dataclass(slots=True)
class Hang:
    """Sends ``text``, then nothing more. ``left`` is set when the client has closed the stream."""

    text: str = ""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class BreakOff:
    """Sends ``text`` and closes the connection without an end."""

    text: str = ""


Answer = Reply | Refuse | Hang | BreakOff


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class FakeEndpoint:
    """Answers prompts in the order of ``answers``; the last one is repeated."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.received: list[Received] = []
        self.models: list[dict[str, Any]] = [{"id": "fake-model", "limit": {"context": 100_000}}]
        self.aliases: set[str] = set()
        """Known by name, and in no list."""
        self.counts: Callable[[dict[str, Any]], int] | None = None
        self.max_characters: int | None = None
        """A longer prompt is beyond the context."""
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    def will(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    @property
    def prompts(self) -> list[dict[str, Any]]:
        """The bodies of the requests for answers."""
        paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
        return [one.body for one in self.received if one.path in paths]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while received := await _read_request(reader):
                self.received.append(received)
                if not await self._answer(received, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            writer.close()

    async def _answer(
        self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection stays open."""
        if received.path == "/v1/models":
            _write(writer, 200, {"object": "list", "data": self.models})
            return True
        if received.path.startswith("/v1/models/"):
            name = unquote(received.path.removeprefix("/v1/models/"))
            is_known = name in self.aliases or any(one["id"] == name for one in self.models)
            _write(writer, 200 if is_known else 404, {"id": name})
            return True
        if received.path == "/v1/messages/count_tokens":
            if self.counts is None:
                _write(writer, 404, {"error": {"message": "not here"}})
            else:
                _write(writer, 200, {"input_tokens": self.counts(received.body)})
            return True
        limit = self.max_characters
        if limit is not None and len(json.dumps(received.body)) > limit:
            message = f"The prompt is too long: the limit is {limit} characters."
            _refuse(writer, Refuse(400, message, "context_length_exceeded"))
            return True
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        frames = fake_dialects.FRAMES[received.path]
        match answer:
            case Refuse():
                _refuse(writer, answer)
            case Reply():
                _write_head(writer)
                writer.write("".join(frames(answer)).encode())
                await writer.drain()
                return False
            case BreakOff(text):
                _write_head(writer)
                writer.write("".join(frames(Reply(text))[: fake_dialects.NUM_BEGINNING]).encode())
                await writer.drain()
                return False
            case Hang(text):
                _write_head(writer)
                writer.write("".join(frames(Reply(text))[: fake_dialects.NUM_BEGINNING]).encode())
                await writer.drain()
                answer.begun.set()
                await reader.read()
                answer.left.set()
                return False
        return True


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    path = urlsplit(first.split()[1]).path  # of a whole URL, where it is asked as a proxy
    return Received(path, headers, json.loads(data) if data else {})


def _write(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(f"{head}\r\n\r\n".encode() + data)


def _refuse(writer: asyncio.StreamWriter, refusal: Refuse) -> None:
    error = {"message": refusal.message, "code": refusal.code, "type": "invalid_request_error"}
    _write(writer, refusal.status, {"type": "error", "error": error})


def _write_head(writer: asyncio.StreamWriter) -> None:
    """The stream's end is the connection's."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
