"""Encodes Ollama's answers: lines of JSON, or one body. A call is sent whole: its arguments are an
object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.wire.openai.answers import finish_reason, token_object

LINE_END = b"\n"
TOKENS = (Delta, ReasoningDelta, ToolCallStarted, ToolCallDelta)
FineClock = Callable[[], float]
"""Unix seconds, with a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    model: str
    is_chat: bool

    def body(self, text: str, more: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        if self.is_chat:
            return {"message": {"role": "assistant", "content": text, **more}, **end}
        return {"response": text, **more, **end}

    def line(self, now_unix_s: float, body: dict[str, Any], *, done: bool = False) -> bytes:
        head = {"model": self.model, "created_at": timestamp(now_unix_s)}
        return orjson.dumps({**head, **body, "done": done})

    def waiting_line(self, now_unix_s: float) -> bytes:
        """JSON lines have no comments."""
        return self.line(now_unix_s, self.body("", {}, {})) + LINE_END

    def loaded_body(self, now_unix_s: float) -> bytes:
        return self.line(now_unix_s, self.body("", {}, {"done_reason": "load"}), done=True)


def timestamp(unix_s: float) -> str:
    return (
        datetime.fromtimestamp(unix_s, UTC)
        .isoformat(timespec="microseconds")
        .removesuffix("+00:00")
        + "Z"
    )


class OllamaBodyEncoder:
    def __init__(self, shape: Shape, clock: FineClock, *, shows_thinking: bool = True) -> None:
        self._shape = shape
        self._shows_thinking = shows_thinking
        self._clock = clock
        self._asked_s = self._started_s = clock()
        self._first_s: float | None = None
        self._call: ToolCallStarted | None = None
        self._arguments: list[str] = []
        self._reason = ""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[orjson.Fragment] | None = None

    def asked_at(self, unix_s: float) -> None:
        self._asked_s = min(unix_s, self._started_s)

    def encode(self, event: Event) -> bytes:
        if self._first_s is None and isinstance(event, TOKENS):
            self._first_s = self._clock()
        match event:
            case Delta() if event.text or event.logprobs:
                return self._add(event.text, {}, event.logprobs)
            case ReasoningDelta() if event.text and self._shows_thinking:
                return self._add("", {"thinking": event.text}, None)
            case ToolCallStarted():
                return self._end_call(event)
            case ToolCallDelta():
                self._arguments.append(event.arguments)
            case ChoiceFinished():
                self._reason = finish_reason(event.reason)
                return self._end_call(None)
            case Finished():
                return self._finish(self._end(event.usage))
        return b""

    def _end_call(self, following: ToolCallStarted | None) -> bytes:
        """Arguments that are no object, such as truncated ones, are sent as text."""
        call, self._call = self._call, following
        text = "".join(self._arguments) or "{}"
        self._arguments = []
        if call is None:
            return b""
        try:
            arguments = orjson.loads(text)
        except orjson.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            return self._add(call.name + text, {}, None)
        function = {"index": call.call_index, "name": call.name, "arguments": arguments}
        return self._add("", {"tool_calls": [{"id": call.call_id, "function": function}]}, None)

    def _end(self, usage: Usage) -> dict[str, Any]:
        """A call's reason is ``stop`` in this API."""
        now_s = self._clock()
        first_s = now_s if self._first_s is None else self._first_s
        return {
            "done_reason": "length" if self._reason == "length" else "stop",
            "total_duration": _nanoseconds(now_s - self._asked_s),
            "load_duration": _nanoseconds(self._started_s - self._asked_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first_s - self._started_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(now_s - first_s),
        }

    def _add(self, text: str, more: dict[str, Any], logprobs: list[TextLogprob] | None) -> bytes:
        self._texts.append(text)
        self._thoughts.append(more.get("thinking", ""))
        self._calls += more.get("tool_calls", [])
        if logprobs is not None:
            encoded = [orjson.Fragment(orjson.dumps(token_object(one))) for one in logprobs]
            self._logprobs = self._logprobs or []
            self._logprobs += encoded
        return b""

    def _finish(self, end: dict[str, Any]) -> bytes:
        thinking = "".join(self._thoughts)
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if self._calls:
            more["tool_calls"] = self._calls
        if self._logprobs is not None:
            end["logprobs"] = self._logprobs
        body = self._shape.body("".join(self._texts), more, end)
        return self._shape.line(self._clock(), body, done=True)


class OllamaStreamEncoder(OllamaBodyEncoder):
    def _add(self, text: str, more: dict[str, Any], logprobs: list[TextLogprob] | None) -> bytes:
        end = {} if logprobs is None else {"logprobs": list(map(token_object, logprobs))}
        return self._shape.line(self._clock(), self._shape.body(text, more, end)) + LINE_END

    def _finish(self, end: dict[str, Any]) -> bytes:
        return self._shape.line(self._clock(), self._shape.body("", {}, end), done=True) + LINE_END


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
