"""An upstream's lines of Ollama's chat or generate as our events. Pure.

    line ─▶ accept ─▶ think | write | calls ─▶ done: usage ─▶ finish ─▶ end

A call comes whole. An answer that is not streamed is one such line.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event, FinishReason, Usage
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from inference.wire.upstream.chat_chunks import logprobs_of

CHOICE = 0
"""An answer is one choice."""
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class Function(msgspec.Struct):
    name: str | None = None
    arguments: dict[str, Any] | None = None


class Call(msgspec.Struct):
    function: Function
    id: str | None = None


class Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class Line(msgspec.Struct):
    message: Message | None = None
    response: str | None = None
    """A text of generate, whose thoughts are beside it."""
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    logprobs: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(Line).decode


class OllamaEvents:
    """An ``AnswerReader``."""

    def __init__(self, answer: AnswerEvents, *, wants_logprobs: bool = False) -> None:
        self._answer = answer
        self._wants_logprobs = wants_logprobs

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        try:
            line = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamFaultError("what is no line of an answer") from error
        if line.error is not None:
            raise UpstreamErrorObject(line.error)
        if line.message is None and line.response is None:
            raise UpstreamFaultError("a line without a message")
        self._answer.accept()
        self._grow(line, line.message or Message(line.response, line.thinking))
        if line.done:
            self._stop(line)
        return self._answer.take()

    def _grow(self, line: Line, added: Message) -> None:
        if added.thinking:
            self._answer.think(CHOICE, added.thinking)
        is_wanted = self._wants_logprobs and line.logprobs is not None
        logprobs = logprobs_of({"content": line.logprobs}) if is_wanted else None
        if added.content or logprobs:
            self._answer.write(CHOICE, added.content or "", logprobs)
        for call in added.tool_calls or ():
            key = self._answer.begin_call(CHOICE, None, call.function.name, call.id)
            arguments = orjson.dumps(call.function.arguments or {}).decode()
            self._answer.add_arguments(CHOICE, key, arguments)
        if added.tool_calls:
            self._answer.send_calls(CHOICE)

    def _stop(self, line: Line) -> None:
        reason = REASONS.get(line.done_reason or "stop")
        if reason is None:
            raise UpstreamFaultError("an unknown reason for an answer's end")
        self._answer.reported_usage = _usage_of(line)
        self._answer.finish(CHOICE, reason)
        self._answer.end()


def _usage_of(line: Line) -> Usage | None:
    """``None``: it cannot be read."""
    prompt, completion = line.prompt_eval_count, line.eval_count
    if prompt is None or completion is None or min(prompt, completion) < 0:
        return None
    return Usage(prompt_tokens=prompt, completion_tokens=completion)
