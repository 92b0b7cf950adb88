"""The interface of the wire APIs: one request, and the events of its answer.

chat, responses, messages   one file for each API: its requests, and its events as ours; pure
endpoints                   sends them, and has each endpoint's models and limits
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from helexa_acp.history import Image, Part, ToolResult, Turn, Usage, UserTurn

MAX_NAME_LENGTH = 64
NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
Reason = Literal["stop", "length", "refusal"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    name: str
    description: str
    parameters: Json
    """A JSON schema of type object."""

    def function(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    model: str
    system: str
    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    asks_for_thinking: bool = True
    """Whether to request thoughts from an API that thinks only on request."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtSealed:
    """``sealed`` goes back with the thought."""

    sealed: Any


@dataclass(slots=True)
class CallMade:
    """``arguments`` is the model's text: JSON, or meant to be."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    reason: Reason
    usage: Usage


WireEvent = TextDelta | ThoughtDelta | ThoughtSealed | CallMade | Finished


@dataclass(slots=True)
class AnswerState:
    """Calls become events when the answer is complete."""

    calls: list[CallMade] = field(default_factory=list)
    reason: Reason = "stop"
    usage: Usage = field(default_factory=Usage)
    is_ended: bool = False

    def finish(self) -> list[WireEvent]:
        """Raises ValueError where the stream was incomplete."""
        if not self.is_ended:
            raise ValueError("it ended before the answer did")
        return [*self.calls, Finished(self.reason, self.usage)]


class JsonObject:
    """A streamed JSON object whose keys are attributes; a missing one is ``None``."""

    __slots__ = ("raw",)

    def __init__(self, raw: Json) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        value = self.raw.get(name)
        if isinstance(value, list):
            return [JsonObject(one) if isinstance(one, dict) else one for one in value]
        return JsonObject(value) if isinstance(value, dict) else value

    def without_nulls(self) -> Json:
        return {key: value for key, value in self.raw.items() if value is not None}


def openai_usage(counts: JsonObject | None, given: str, made: str) -> Usage:
    """``given`` and ``made`` are the API's words for the prompt's and the answer's tokens."""
    if counts is None:
        return Usage()
    cached = getattr(getattr(counts, f"{given}_tokens_details"), "cached_tokens", None)
    thought = getattr(getattr(counts, f"{made}_tokens_details"), "reasoning_tokens", None)
    return Usage(
        input_tokens=getattr(counts, f"{given}_tokens") or 0,
        output_tokens=getattr(counts, f"{made}_tokens") or 0,
        cached_tokens=cached or 0,
        thought_tokens=thought or 0,
    )


def images_after_results(turns: Iterable[Turn]) -> list[Turn]:
    """For APIs whose results are text alone: images follow in a user's turn."""
    moved: list[Turn] = []
    images: list[Part] = []
    for turn in (*turns, None):
        if not isinstance(turn, ToolResult) and images:
            moved.append(UserTurn(tuple(images)))
            images = []
        if isinstance(turn, ToolResult):
            images += [part for part in turn.parts if isinstance(part, Image)]
        if turn is not None:
            moved.append(turn)
    return moved


def data_url(image: Image) -> str:
    return f"data:{image.mime_type};base64,{image.data}"


def bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def wire_name(name: str) -> str:
    """A tool's name that every API accepts: letters, digits, ``_`` and ``-``, 1 to 64 of them."""
    return NOT_ALLOWED.sub("_", name)[:MAX_NAME_LENGTH] or "_"
