"""An LLM server of three dialects that answers with the texts of tests, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

NUM_BEGINNING = 4
"""The number of frames that begin an answer and end none, in every dialect."""
REASONS = {
    "/v1/chat/completions": {"stop": "stop", "length": "length", "refusal": "content_filter"},
    "/v1/messages": {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"},
}


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """Names and arguments; arguments that are a string are sent as they are."""
    thought: str = ""
    reason: str = "stop"
    num_input: int = 100
    num_output: int = 10
    call_id: str = "call"

    def written_calls(self) -> list[tuple[str, str, str]]:
        return [
            (f"{self.call_id}_{i}", name, args if isinstance(args, str) else json.dumps(args))
            for i, (name, args) in enumerate(self.calls)
        ]


def _data(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n"


def _pieces(text: str) -> list[str]:
    return [text[i : i + 3] for i in range(0, len(text), 3)]


def chat_frames(script: Reply) -> list[str]:
    def chunk(reason: str | None = None, **delta: Any) -> str:
        return _data({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    content = (f"<think>{script.thought}</think>" if script.thought else "") + script.text
    frames = [chunk(role="assistant", content=""), *(chunk(content=p) for p in _pieces(content))]
    for index, (call_id, name, written) in enumerate(script.written_calls()):
        begun = {"index": index, "id": call_id, "type": "function", "function": {"name": name}}
        frames.append(chunk(tool_calls=[begun]))
        for piece in _pieces(written):
            frames.append(chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}]))
    usage = {"prompt_tokens": script.num_input, "completion_tokens": script.num_output}
    frames.append(chunk(REASONS["/v1/chat/completions"][script.reason]))
    return [*frames, _data({"choices": [], "usage": usage}), "data: [DONE]\n\n"]


def responses_frames(script: Reply) -> list[str]:
    bodies: list[dict[str, Any]] = [{"type": "response.created", "response": {}}]
    bodies.append({"type": "response.in_progress", "response": {}})
    for kind, text in (("reasoning_text", script.thought), ("output_text", script.text)):
        bodies += [{"type": f"response.{kind}.delta", "delta": piece} for piece in _pieces(text)]
    for call_id, name, written in script.written_calls():
        call = {"type": "function_call", "id": "f", "call_id": call_id, "name": name}
        bodies.append({"type": "response.output_item.done", "item": call | {"arguments": written}})
    usage = {"input_tokens": script.num_input, "output_tokens": script.num_output}
    status = "completed" if script.reason == "stop" else "incomplete"
    cause = {"length": "max_output_tokens", "refusal": "content_filter"}.get(script.reason)
    ended = {"output": [], "usage": usage, "incomplete_details": {"reason": cause}}
    return [*map(_event, bodies), _event({"type": f"response.{status}", "response": ended})]


def messages_frames(script: Reply) -> list[str]:
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if script.thought:
        thinking = [{"type": "thinking_delta", "thinking": p} for p in _pieces(script.thought)]
        signed = {"type": "signature_delta", "signature": f"signed {len(script.thought)}"}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*thinking, signed]))
    if script.text:
        texts = [{"type": "text_delta", "text": piece} for piece in _pieces(script.text)]
        blocks.append(({"type": "text", "text": ""}, texts))
    for call_id, name, written in script.written_calls():
        pieces = [{"type": "input_json_delta", "partial_json": p} for p in _pieces(written)]
        blocks.append(({"type": "tool_use", "id": call_id, "name": name, "input": {}}, pieces))
    usage = {"input_tokens": script.num_input, "output_tokens": 0}
    bodies: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": usage}}]
    for block, deltas in blocks:
        bodies.append({"type": "content_block_start", "content_block": block})
        bodies += [{"type": "content_block_delta", "delta": delta} for delta in deltas]
        bodies.append({"type": "content_block_stop"})
    reason = REASONS["/v1/messages"][script.reason]
    usage = {"output_tokens": script.num_output}
    bodies.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage})
    return [_event(body) for body in [*bodies, {"type": "message_stop"}]]


FRAMES: dict[str, Callable[[Reply], list[str]]] = {
    "/v1/chat/completions": chat_frames,
    "/v1/responses": responses_frames,
    "/v1/messages": messages_frames,
}


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
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    def will(self, *answers: Answer) -> None:
        """From now on; earlier answers that are left are forgotten."""
        self.answers = deque(answers)

    @property
    def prompts(self) -> list[dict[str, Any]]:
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
            await self.may_list.wait()
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
        frames = FRAMES[received.path]
        if isinstance(answer, Refuse):
            _refuse(writer, answer)
            return True
        written = answer if isinstance(answer, Reply) else Reply(answer.text)
        num_frames = None if isinstance(answer, Reply) else NUM_BEGINNING
        # The stream's end is the connection's.
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        writer.write((head + "".join(frames(written)[:num_frames])).encode())
        await writer.drain()
        if isinstance(answer, Hang):
            answer.begun.set()
            await reader.read()
            answer.left.set()
        return False


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    path = urlsplit(first.split()[1]).path  # of a whole URL, where it is asked as a proxy
    return Received(path, headers, json.loads(data) if data else {})


def _write(
    writer: asyncio.StreamWriter,
    status: int,
    body: dict[str, Any] | None,
    headers: str = "X-None: 1",
) -> None:
    data = b"<html>" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(f"{head}\r\n{headers}\r\n\r\n".encode() + data)


def _refuse(writer: asyncio.StreamWriter, refusal: Refuse) -> None:
    error = {"message": refusal.message, "code": refusal.code, "type": "invalid_request_error"}
    body = None if refusal.message is None else {"type": "error", "error": error}
    _write(writer, refusal.status, body, refusal.headers)
