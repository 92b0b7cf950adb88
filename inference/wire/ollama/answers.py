"""Encodes Ollama's answers: lines of JSON, or one body.

    event ─▶ added(event) ─▶ OllamaStreamEncoder      each addition is a line
                          └▶ OllamaBodyEncoder        additions are put together
                 the last of both: why it ended, how many tokens, how long each part took

A call is sent whole: its arguments are an object. Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
FineClock = Callable[[], float]
"""Unix seconds, with a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """``model``: the client's name for it. A chat's text is in a message, ``generate``'s is a
    field."""

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
        """Empty: JSON lines have no comments."""
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


class _Times:
    def __init__(self, clock: FineClock) -> None:
        self._clock = clock
        self.asked_s = self.started_s = self._first_s = clock()
        self._has_first = False

    def token_came(self) -> None:
        if not self._has_first:
            self._has_first, self._first_s = True, self._clock()

    def fields(self, usage: Usage) -> dict[str, int]:
        now_s = self._clock()
        first_s = self._first_s if self._has_first else now_s
        return {
            "total_duration": _nanoseconds(now_s - self.asked_s),
            "load_duration": _nanoseconds(self.started_s - self.asked_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first_s - self.started_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(now_s - first_s),
        }


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


@dataclass(slots=True)
class _Call:
    name: str
    call_id: str
    index: int
    pieces: list[str] = field(default_factory=list)

    def encoded(self) -> tuple[str, dict[str, Any]]:
        """Text and calls. Arguments that are no object, such as truncated ones, are sent as
        text."""
        text = "".join(self.pieces) or "{}"
        try:
            arguments = orjson.loads(text)
        except orjson.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            return self.name + text, {}
        function = {"index": self.index, "name": self.name, "arguments": arguments}
        return "", {"tool_calls": [{"id": self.call_id, "function": function}]}


class _Answer:
    def __init__(self, shape: Shape, clock: FineClock, *, shows_thinking: bool = True) -> None:
        self._shape = shape
        self._shows_thinking = shows_thinking
        self._clock = clock
        self._times = _Times(clock)
        self._call: _Call | None = None
        self._reason = ""

    def asked_at(self, unix_s: float) -> None:
        """Sets the time of the client's request: the time before the encoder was made counts as
        loading."""
        self._times.asked_s = min(unix_s, self._times.started_s)

    def _added(self, event: Event) -> tuple[str, dict[str, Any]] | None:
        """Text and calls; ``None``: nothing to send yet."""
        match event:
            case Delta() | ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                self._times.token_came()
        match event:
            case Delta() if event.text or event.logprobs:
                return event.text, {}
            case ReasoningDelta(text=text) if text and self._shows_thinking:
                return "", {"thinking": text}
            case ToolCallStarted():
                ended, self._call = self._call, _Call(event.name, event.call_id, event.call_index)
                return None if ended is None else ended.encoded()
            case ToolCallDelta():
                assert self._call is not None, "arguments came before their call"
                self._call.pieces.append(event.arguments)
            case ChoiceFinished():
                self._reason = finish_reason(event.reason)
                ended, self._call = self._call, None
                return None if ended is None else ended.encoded()
        return None

    def _end(self, usage: Usage) -> dict[str, Any]:
        """A call's reason is ``stop`` in this API."""
        reason = "length" if self._reason == "length" else "stop"
        return {"done_reason": reason, **self._times.fields(usage)}


class OllamaStreamEncoder(_Answer):
    def encode(self, event: Event) -> bytes:
        if isinstance(event, Finished):
            body = self._shape.body("", {}, self._end(event.usage))
            return self._shape.line(self._clock(), body, done=True) + LINE_END
        added = self._added(event)
        if added is None:
            return b""
        logprobs = event.logprobs if isinstance(event, Delta) else None
        end = {} if logprobs is None else {"logprobs": _logprobs(logprobs)}
        body = self._shape.body(*added, end)
        return self._shape.line(self._clock(), body) + LINE_END


class OllamaBodyEncoder(_Answer):
    def __init__(self, shape: Shape, clock: FineClock, *, shows_thinking: bool = True) -> None:
        super().__init__(shape, clock, shows_thinking=shows_thinking)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[orjson.Fragment] | None = None

    def encode(self, event: Event) -> bytes:
        if isinstance(event, Finished):
            return self._body(event.usage)
        added = self._added(event)
        if added is not None:
            text, more = added
            self._texts.append(text)
            self._thoughts.append(more.get("thinking", ""))
            self._calls += more.get("tool_calls", [])
        if isinstance(event, Delta) and event.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += map(orjson.Fragment, map(orjson.dumps, _logprobs(event.logprobs)))
        return b""

    def _body(self, usage: Usage) -> bytes:
        more: dict[str, Any] = {}
        if thinking := "".join(self._thoughts):
            more["thinking"] = thinking
        if self._calls:
            more["tool_calls"] = self._calls
        end = self._end(usage)
        if self._logprobs is not None:
            end["logprobs"] = self._logprobs
        body = self._shape.body("".join(self._texts), more, end)
        return self._shape.line(self._clock(), body, done=True)


def _logprobs(tokens: list[TextLogprob]) -> list[dict[str, Any]]:
    return [token_object(token) for token in tokens]
