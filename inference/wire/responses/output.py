"""The response object, and its growing output items.

    item added ─▶ (content part added) ─▶ delta … ─▶ text done ─▶ (part done) ─▶ item done

Items return these events without sequence numbers, and for deltas only the frame around the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import orjson

from inference.protocol.events import Accepted, TextLogprob, Usage
from inference.wire.errors import ApiError
from inference.wire.openai.answers import json_array, token_object
from inference.wire.openai.chat_turns import FREELY
from inference.wire.responses.fields import ENCRYPTED_REASONING, PLAIN_TEXT, Reasoning, carried
from inference.wire.responses.tools import NO_TOOLS, GivenTools, Member

Status = Literal["in_progress", "completed", "incomplete"]
NamedEvent = tuple[str, dict[str, Any]]
"""The type, and fields without ``type`` and ``sequence_number``."""


class OutputItem(ABC):
    def __init__(
        self, item_id: str, output_index: int, text: str, part: str, place: dict[str, Any]
    ) -> None:
        """``text``, ``part``: prefixes of event types; ``part`` may be empty. ``place``: common
        fields."""
        self._id = item_id
        self._output_index = output_index
        self._text_event, self._part_event = f"response.{text}", f"response.{part}" if part else ""
        self._place = {"item_id": item_id, "output_index": output_index, **place}
        self._texts: list[str] = []
        delta = f"{self._text_event}.delta"
        head = orjson.dumps({"type": delta, **self._place, **self.of_deltas})[:-1]
        self._delta_head = b"event: " + delta.encode() + b"\ndata: " + head + b',"delta":'

    of_deltas: Mapping[str, Any] = {}

    def delta(self, text: str, sequence_number: int) -> bytes:
        self._texts.append(text)
        return b'%b%b,"sequence_number":%d}\n\n' % (
            self._delta_head,
            orjson.dumps(text),
            sequence_number,
        )

    def opening(self) -> list[NamedEvent]:
        return [self._item("added", "in_progress"), *self._part_events("added")]

    def closing(self, status: Status) -> list[NamedEvent]:
        done = f"{self._text_event}.done", {**self._place, **self._done()}
        return [done, *self._part_events("done"), self._item("done", status)]

    @abstractmethod
    def as_object(self, status: Status) -> dict[str, Any]: ...
    def _part(self) -> dict[str, Any]:
        return {}

    def _done(self) -> dict[str, Any]:
        return {"text": self._text}

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _item(self, stage: str, status: Status) -> NamedEvent:
        fields = {"output_index": self._output_index, "item": self.as_object(status)}
        return f"response.output_item.{stage}", fields

    def _part_events(self, stage: str) -> list[NamedEvent]:
        if not self._part_event:
            return []
        return [(f"{self._part_event}.{stage}", {**self._place, "part": self._part()})]


class MessageItem(OutputItem):
    of_deltas: Mapping[str, Any] = {"logprobs": []}

    def __init__(self, item_id: str, output_index: int) -> None:
        super().__init__(item_id, output_index, "output_text", "content_part", {"content_index": 0})
        self._logprobs: list[bytes] = []
        self._all_logprobs = orjson.Fragment(b"[]")

    def delta_with_logprobs(self, text: str, tokens: list[TextLogprob]) -> NamedEvent:
        logprobs = [orjson.dumps(token_object(token)) for token in tokens]
        self._texts.append(text)
        self._logprobs += logprobs
        fields = {**self._place, "delta": text, "logprobs": json_array(logprobs)}
        return f"{self._text_event}.delta", fields

    def closing(self, status: Status) -> list[NamedEvent]:
        self._all_logprobs = json_array(self._logprobs)
        return super().closing(status)

    def _done(self) -> dict[str, Any]:
        return {"text": self._text, "logprobs": self._all_logprobs}

    def as_object(self, status: Status) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [] if status == "in_progress" else [self._part()],
        }

    def _part(self) -> dict[str, Any]:
        head = {"type": "output_text", "text": self._text}
        return {**head, "annotations": [], "logprobs": self._all_logprobs}


class ReasoningItem(OutputItem):
    """Clients that requested a summary ignore ``content``. ``carries``: ``encrypted_content``."""

    def __init__(self, item_id: str, output_index: int, *, as_summary: bool, carries: bool) -> None:
        self._field = "summary" if as_summary else "content"
        self._part_type = "summary_text" if as_summary else "reasoning_text"
        self._carries = carries
        text = "reasoning_summary_text" if as_summary else "reasoning_text"
        part = "reasoning_summary_part" if as_summary else "content_part"
        super().__init__(item_id, output_index, text, part, {f"{self._field}_index": 0})

    def as_object(self, status: Status) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._id, "type": "reasoning", "status": status}
        item |= {"summary": [], "content": []}
        if status != "in_progress":
            item[self._field] = [self._part()]
        if self._carries:
            item["encrypted_content"] = carried(self._text)
        return item

    def _part(self) -> dict[str, Any]:
        return {"type": self._part_type, "text": self._text}


class CallItem(OutputItem):
    def __init__(
        self, item_id: str, output_index: int, *, call_id: str, name: str, namespace: str | None
    ) -> None:
        super().__init__(item_id, output_index, "function_call_arguments", "", {})
        self._call_id = call_id
        self._name = name
        self._namespace = {} if namespace is None else {"namespace": namespace}

    def _done(self) -> dict[str, Any]:
        return {"name": self._name, "arguments": self._text}

    def as_object(self, status: Status) -> dict[str, Any]:
        head = {"id": self._id, "type": "function_call", "status": status, "call_id": self._call_id}
        return {**head, **self._namespace, **self._done()}


def without_logprobs(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The model cannot read log probabilities in its input."""
    return [
        {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}
        if item["type"] == "message"
        else item
        for item in output
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """``members``: the functions of namespaces, by their names in the prompt."""

    echo: dict[str, Any]
    members: Mapping[str, Member]
    summarises: bool
    carries_reasoning: bool
    background: bool
    pads_deltas: bool = False


def response_id(request_id: str) -> str:
    return f"resp_{request_id}"


def sampling_echo(event: Accepted) -> dict[str, float]:
    return {} if event.sampling is None else msgspec.structs.asdict(event.sampling)


def lost_turns(event: Accepted) -> dict[str, Any]:
    if not event.num_lost_turns:
        return {}
    return {"truncated": {"dropped_turns": event.num_lost_turns}}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Cache writes are never charged."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def response_error(error: ApiError) -> dict[str, Any]:
    """A failed response has one of few codes."""
    code = "server_error"
    if error.status == 429:
        code = "rate_limit_exceeded"
    elif error.status < 500:
        code = "invalid_prompt"
    return {"code": code, "message": error.message}


ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
)

NEUTRAL_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Echoed until the model's own defaults are known."""


def answer_settings(read: dict[str, Any], *, store: bool, background: bool) -> AnswerSettings:
    wanted: Reasoning = read.get("reasoning", Reasoning())
    given: GivenTools = read.get("tools", NO_TOOLS)
    echo = {
        "model": read["model"],
        "background": background,
        "store": store,
        **{name: read.get(name) for name in ECHOED},
        **{name: read.get(name, neutral) for name, neutral in NEUTRAL_SAMPLING.items()},
        "metadata": read.get("metadata", {}),
        "parallel_tool_calls": read.get("parallel_tool_calls", True),
        "reasoning": {"effort": wanted.effort, "summary": wanted.summary},
        "service_tier": "default",
        "text": read.get("text", PLAIN_TEXT).as_object(),
        "tool_choice": read.get("tool_choice", FREELY).given,
        "tools": given.as_objects,
        "top_logprobs": read.get("top_logprobs", 0),
        "truncation": read.get("truncation", "disabled"),
    }
    return AnswerSettings(
        echo=echo,
        members=given.members,
        summarises=wanted.summary is not None,
        carries_reasoning=ENCRYPTED_REASONING in read.get("include", ()),
        background=background,
        pads_deltas=read.get("stream_options", {}).get("include_obfuscation", False),
    )
