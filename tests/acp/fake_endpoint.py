"""An LLM server that answers with the texts of tests, on loopback: in three dialects, as helexa's
own encoders write them. Streams of other servers are in ``test_recorded_streams``."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from inference.protocol import events as protocol
from inference.wire.anthropic import messages
from inference.wire.dialect import RequestContext
from inference.wire.openai import chat
from inference.wire.responses import request as responses

SHOWN = RequestContext(headers={"x-include-thinking": "1"})
HELLO = [{"role": "user", "content": "Hello."}]
DIALECTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (
        chat.parse,
        {"messages": HELLO, "stream_options": {"include_usage": True}},
    ),
    "/v1/responses": (responses.parse, {"input": "Hello."}),
    "/v1/messages": (
        messages.parse,
        {"messages": HELLO, "max_tokens": 9, "thinking": {"type": "adaptive"}},
    ),
}
"""How a request of each is parsed, and one that streams with all that an answer may have."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """Names and arguments; arguments that are a string are sent as they are."""
    thought: str = ""
    reason: Any = "stop"
    num_input: int = 100
    num_output: int = 10
    call_id: str = "call"
    edited: tuple[bytes, bytes] = (b"\0", b"")
    """What stands in place of which bytes of the stream."""

    def events(self) -> list[protocol.Event]:
        at: dict[str, Any] = {"request_id": "r"}
        made: list[protocol.Event] = [protocol.Accepted(**at, prompt_tokens=self.num_input)]
        if self.thought:
            made.append(protocol.ReasoningDelta(**at, text="", opens="<think>"))
            made += [protocol.ReasoningDelta(**at, text=one) for one in _pieces(self.thought)]
            made.append(protocol.ReasoningDelta(**at, text="", closes="</think>"))
        made += [protocol.Delta(**at, text=piece) for piece in _pieces(self.text)]
        for index, (name, arguments) in enumerate(self.calls):
            of_call = {**at, "call_index": index}
            call_id = f"{self.call_id}_{index}"
            made.append(protocol.ToolCallStarted(**of_call, call_id=call_id, name=name))
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            pieces = _pieces(written)
            made += [protocol.ToolCallDelta(**of_call, arguments=piece) for piece in pieces]
        reason = "tool_calls" if self.calls and self.reason == "stop" else self.reason
        usage = protocol.Usage(prompt_tokens=self.num_input, completion_tokens=self.num_output)
        ended = protocol.ChoiceFinished(**at, reason=reason)
        return [*made, ended, protocol.Finished(**at, usage=usage)]


def _pieces(text: str) -> list[str]:
    return [text[i : i + 3] for i in range(0, len(text), 3)]


def written(path: str, events: list[protocol.Event]) -> bytes:
    parse, body = DIALECTS[path]
    request = parse(json.dumps({"model": "m", "stream": True, **body}).encode(), SHOWN)
    encoder = request.stream_encoder(request_id="r", clock=lambda: 1)
    return b"".join(map(encoder.encode, events))


@dataclass(frozen=True, slots=True)
class Refuse:
    """Without a message it is no JSON."""

    status: int
    message: str | None
    code: str = "refused"
    headers: str = "X-None: 1"


@dataclass(slots=True)
class Hang:
    """Sends ``text``, then nothing more. ``left`` is set when the client has closed the stream."""

    text: str = ""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class BreakOff:
    text: str = ""


Answer = Reply | Refuse | Hang | BreakOff


@dataclass(frozen=True, slots=True)
class Received:
    method: str
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
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeEndpoint]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield self
        server.close()

    def will(self, *answers: Answer) -> None:
        """From now on; earlier answers that are left are forgotten."""
        self.answers = deque(answers)

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return [one.body for one in self.received if one.path in DIALECTS]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.received.append(received := await read_request(reader))
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
        path, body = received.path, received.body
        if path == "/v1/models":
            await self.may_list.wait()
            write(writer, 200, {"object": "list", "data": self.models})
            return True
        if path.startswith("/v1/models/"):
            name = unquote(path.removeprefix("/v1/models/"))
            is_known = name in self.aliases or any(one["id"] == name for one in self.models)
            write(writer, 200 if is_known else 404, {"id": name})
            return True
        if path == "/v1/messages/count_tokens":
            count = None if self.counts is None else self.counts(body)
            write(writer, 404 if count is None else 200, {"input_tokens": count})
            return True
        limit = self.max_characters
        answer = self.answers[0]
        if limit is not None and len(json.dumps(body)) > limit:
            message = f"The prompt is too long: the limit is {limit} characters."
            answer = Refuse(400, message, "context_length_exceeded")
        elif len(self.answers) > 1:
            self.answers.popleft()
        if isinstance(answer, Refuse):
            error = {"message": answer.message, "code": answer.code, "type": "invalid"}
            refusal = None if answer.message is None else {"type": "error", "error": error}
            write(writer, answer.status, refusal, answer.headers)
            return True
        is_whole = isinstance(answer, Reply)
        reply = answer if is_whole else Reply(answer.text)
        events = reply.events() if is_whole else reply.events()[:-2]
        # The stream's end is the connection's.
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + written(path, events).replace(*reply.edited))
        await writer.drain()
        if isinstance(answer, Hang):
            answer.begun.set()
            await reader.read()
            answer.left.set()
        return False


async def read_request(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    method, url, _ = first.split()
    path = urlsplit(url).path  # of a whole URL, where it is asked as a proxy
    return Received(method, path, headers, json.loads(data) if data else {})


def write(writer: asyncio.StreamWriter, status: int, body: Any, headers: str = "X-None: 1") -> None:
    """``body`` is JSON, or bytes; ``None`` is sent as no JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b"<html>"
    kind = "" if "Content-Type" in headers else "Content-Type: application/json\r\n"
    head = f"HTTP/1.1 {status} X\r\n{kind}Content-Length: {len(data)}\r\n{headers}\r\n\r\n"
    writer.write(head.encode() + data)
