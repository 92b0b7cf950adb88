"""Encodes a chat completion: events in, chunks or one body out.

    event ─▶ added(event) ─▶ ChatStreamEncoder      each addition is a chunk
                          └▶ ChatBodyEncoder        additions are put together, as an SDK would

Both encode the results of ``added``, so a stream and a body of the same events cannot differ. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    OutputTokens,
    PromptScored,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.protocol.generation import GenerationRequest
from inference.wire.openai.answers import (
    Chunks,
    PromptLogprobs,
    UsageReporting,
    body_parts,
    finish_reason,
    head_of,
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


class ChatStreamEncoder:
    """One request's events as server-sent events: a role chunk for each choice, then at most one
    chunk for each event, then usage where requested, then [DONE]."""

    def __init__(self, chunks: Chunks, num_choices: int, reasoning: Reasoning) -> None:
        self._chunks = chunks
        self._num_choices = num_choices
        self._reasoning = reasoning
        self._content: list[bytes] = []
        self._content_end = b'},"logprobs":null,"finish_reason":null}' + chunks.end

    def encode(self, event: Event) -> bytes:
        match event:
            case Delta(logprobs=None):  # most events are this one
                if not event.text:
                    return b""
                return self._content[event.index] + orjson.dumps(event.text) + self._content_end
            case Delta():
                logprobs = _logprobs(event.logprobs or [])
                return self._chunk(event.index, {"content": event.text}, logprobs=logprobs)
            case ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                delta = added(event, self._reasoning)
                return self._chunk(event.index, delta) if delta else b""
            case OutputTokens():
                content = {"delta": {}, "token_ids": event.token_ids}
                return self._chunks.choice(event.index, content)
            case Accepted():
                return self._begin(event)
            case ChoiceFinished():
                return self._chunk(event.index, {}, finish_reason=finish_reason(event.reason))
            case Finished():
                return self._chunks.last(event)
        return b""

    def _begin(self, event: Accepted) -> bytes:
        self._chunks.begin(event)
        indices = range(self._num_choices)
        start = self._chunks.start
        self._content = [start + b'{"index":%d,"delta":{"content":' % index for index in indices]
        more = prompt_ids_of(event)
        return b"".join(self._chunk(index, ROLE, more_head=more) for index in indices)

    def _chunk(self, index: int, delta: dict[str, Any], **more: Any) -> bytes:
        return self._chunks.choice(index, {"delta": delta}, **more)


@dataclass(slots=True)
class Choice:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The calls as in the body, with their arguments still in pieces."""
    arguments: list[list[str]] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""

    def add(self, delta: dict[str, Any]) -> None:
        if "content" in delta:
            self.content.append(delta["content"])
        if "reasoning_content" in delta:
            self.reasoning.append(delta["reasoning_content"])
        for call in delta.get("tool_calls", ()):
            self._add_call(call)

    def _add_call(self, call: dict[str, Any]) -> None:
        if call["index"] == len(self.calls):
            self.calls.append({name: value for name, value in call.items() if name != "index"})
            self.arguments.append([])
        self.arguments[call["index"]].append(call["function"]["arguments"])

    def message(self, reasoning: Reasoning) -> dict[str, Any]:
        content = "".join(self.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not content else content,
            "refusal": None,
            "annotations": [],
        }
        if reasoning is Reasoning.FIELD:
            message["reasoning_content"] = "".join(self.reasoning) or None
        if self.calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(pieces)}}
                for call, pieces in zip(self.calls, self.arguments, strict=True)
            ]
        return message


class ChatBodyEncoder:
    def __init__(
        self,
        head: dict[str, Any],
        generation: GenerationRequest,
        reasoning: Reasoning,
        usage: UsageReporting,
    ) -> None:
        self._head = head
        self._usage = usage
        self._reasoning = reasoning
        self._shows_logprobs = generation.sampling.top_logprobs is not None
        self._shows_token_ids = generation.returns_token_ids
        self._choices = [Choice() for _ in range(generation.n)]
        self._prompt_logprobs: PromptLogprobs | None = None
        if generation.sampling.prompt_logprobs is not None:
            self._prompt_logprobs = PromptLogprobs(num_prompts=1)

    def encode(self, event: Event) -> bytes:
        return b"".join(self.parts(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        match event:
            case Accepted():
                self._head = head_of(self._head, event) | (prompt_ids_of(event) or {})
            case PromptScored() if self._prompt_logprobs is not None:
                self._prompt_logprobs.add(event)
            case OutputTokens():
                self._choices[event.index].token_ids += event.token_ids
            case Delta():
                choice = self._choices[event.index]
                choice.add(added(event, self._reasoning))
                choice.logprobs.extend(map(_token_json, event.logprobs or ()))
            case ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                self._choices[event.index].add(added(event, self._reasoning))
            case ChoiceFinished():
                self._choices[event.index].finish_reason = finish_reason(event.reason)
            case Finished():
                yield from self._body(event)

    def _body(self, event: Finished) -> Iterator[bytes]:
        choices = (
            {
                "index": index,
                "message": choice.message(self._reasoning),
                "logprobs": _joined(choice.logprobs) if self._shows_logprobs else None,
                "finish_reason": choice.finish_reason,
                **({"token_ids": choice.token_ids} if self._shows_token_ids else {}),
            }
            for index, choice in enumerate(self._choices)
        )
        head = self._head
        if self._prompt_logprobs is not None:
            head = {**head, "prompt_logprobs": self._prompt_logprobs.of_prompt(0)}
        return body_parts(head, choices, event, self._usage)


def prompt_ids_of(event: Accepted) -> dict[str, Any] | None:
    return (
        None if event.prompt_token_ids is None else {"prompt_token_ids": event.prompt_token_ids[0]}
    )


def _logprobs(tokens: list[TextLogprob]) -> dict[str, Any]:
    return {"content": [token_object(token) for token in tokens], "refusal": None}


def _token_json(token: TextLogprob) -> bytes:
    return orjson.dumps(token_object(token))


def _joined(tokens: list[bytes]) -> dict[str, Any]:
    return {"content": json_array(tokens), "refusal": None}
