"""Encodes a chat completion: events in, chunks or one body out.

    event ─▶ added(event) ─▶ ChatStreamEncoder      each addition is a chunk
                          └▶ ChatChoice             additions are put together, as an SDK would

Both encode the results of ``added``, so a stream and a body of the same events cannot differ. Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    Delta,
    Event,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.wire.openai.answers import (
    AskedAnswer,
    Choice,
    StreamEncoder,
    json_array,
    token_object,
)


class Reasoning(StrEnum):
    HIDDEN = "hidden"
    FIELD = "field"
    INLINE = "inline"
    """Reasoning is sent in ``content``, between its markers."""


def added(event: Event, reasoning: Reasoning) -> dict[str, Any]:
    """The event's addition to its choice's message; may be empty."""
    match event:
        case Delta(text=text) if text:
            return {"content": text}
        case ReasoningDelta() if reasoning is not Reasoning.HIDDEN:
            return _reasoning(event, reasoning)
        case ToolCallStarted():
            function = {"name": event.name, "arguments": ""}
            call = {"id": event.call_id, "type": "function", "function": function}
            return {"tool_calls": [{"index": event.call_index, **call}]}
        case ToolCallDelta():
            piece = {"arguments": event.arguments}
            return {"tool_calls": [{"index": event.call_index, "function": piece}]}
    return {}


def _reasoning(event: ReasoningDelta, reasoning: Reasoning) -> dict[str, Any]:
    if reasoning is Reasoning.FIELD:
        return {"reasoning_content": event.text} if event.text else {}
    closes = event.closes or event.missing_close or ""
    inline = f"{event.opens or ''}{event.text}{closes}"
    return {"content": inline} if inline else {}


ROLE: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}


class ChatStreamEncoder(StreamEncoder):
    """One request's events as server-sent events: a role chunk for each choice, then at most one
    chunk for each event, then usage where requested, then [DONE]."""

    text, text_end = b'"delta":{"content":', b"}"
    empty: dict[str, Any] = {"delta": {}}

    def __init__(self, head: dict[str, Any], asked: AskedAnswer, *, reasoning: Reasoning) -> None:
        super().__init__(head, asked.usage, asked.generation.n)
        self._reasoning = reasoning

    def _begin(self, event: Accepted) -> bytes:
        ids = event.prompt_token_ids
        more = None if ids is None else {"prompt_token_ids": ids[0]}
        role = {"delta": ROLE}
        return b"".join([self._chunk(index, role, more_head=more) for index in self._indices])

    def _other(self, event: Event) -> bytes:
        match event:
            case Delta():
                tokens = [token_object(token) for token in event.logprobs or ()]
                logprobs = {"content": tokens, "refusal": None}
                delta = {"delta": {"content": event.text}}
                return self._chunk(event.index, delta, logprobs=logprobs)
            case ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                delta = added(event, self._reasoning)
                return self._chunk(event.index, {"delta": delta}) if delta else b""
        return b""


class ChatChoice(Choice):
    def __init__(self, reasoning: Reasoning, *, shows_logprobs: bool) -> None:
        super().__init__()
        self._reasoning = reasoning
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self._calls: list[tuple[dict[str, Any], list[str]]] = []
        """The calls as in the body, with their arguments in pieces."""
        self._tokens: list[bytes] | None = [] if shows_logprobs else None

    def add(self, event: Event) -> None:
        if isinstance(event, Delta) and self._tokens is not None:
            self._tokens += [orjson.dumps(token_object(token)) for token in event.logprobs or ()]
        for name, value in added(event, self._reasoning).items():
            if name == "tool_calls":
                self._add_call(*value)
            else:
                self._texts[name].append(value)

    def _add_call(self, call: dict[str, Any]) -> None:
        index = call.pop("index")
        if index == len(self._calls):
            self._calls.append((call, []))
        self._calls[index][1].append(call["function"]["arguments"])

    def content(self) -> dict[str, Any]:
        content = "".join(self._texts["content"])
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._calls and not content else content,
            "refusal": None,
            "annotations": [],
        }
        if self._reasoning is Reasoning.FIELD:
            message["reasoning_content"] = "".join(self._texts["reasoning_content"]) or None
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(pieces)}}
                for call, pieces in self._calls
            ]
        return {"message": message}

    def logprobs(self) -> dict[str, Any] | None:
        if self._tokens is None:
            return None
        return {"content": json_array(self._tokens), "refusal": None}
