"""The interface of the wire APIs: one request, and the events of its answer.

chat, responses, messages   one file for each API: its requests, and its events as ours; pure
client                      sends them, with the openai SDK's client for all three
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from helexa_acp.history import Image, Part, ToolResult, Turn, Usage, UserTurn

MAX_NAME_LENGTH = 64
NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
Reason = Literal["stop", "length", "refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type object."""


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
    """The thought so far is complete; ``sealed`` goes back with it."""

    sealed: Any


@dataclass(frozen=True, slots=True)
class ImageMade:
    image: Image


@dataclass(frozen=True, slots=True)
class CallMade:
    """``arguments`` is the model's text: JSON, or meant to be."""

    call_id: str
    name: str
    arguments: str


@dataclass(slots=True)
class OpenCall:
    """A call whose pieces are still coming."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def made(self) -> CallMade:
        return CallMade(self.call_id, self.name, self.arguments)


@dataclass(frozen=True, slots=True)
class Finished:
    reason: Reason
    usage: Usage


WireEvent = TextDelta | ThoughtDelta | ThoughtSealed | ImageMade | CallMade | Finished


class JsonObject:
    """A streamed JSON object: its keys as attributes; ``None`` for a missing one. The SDK's own
    models of it take a second to build for the first event."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        value = self.raw.get(name)
        if isinstance(value, list):
            return [JsonObject(one) if isinstance(one, dict) else one for one in value]
        return JsonObject(value) if isinstance(value, dict) else value

    def without_nulls(self) -> dict[str, Any]:
        kept: dict[str, Any] = _without_nulls(self.raw)
        return kept


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def images_after_results(turns: Iterable[Turn]) -> list[Turn]:
    """For APIs whose results are text alone: images follow the last of the results, in a user's
    turn."""
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


def bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def wire_name(name: str) -> str:
    """A tool's name that every API accepts: letters, digits, ``_`` and ``-``, 1 to 64 of them."""
    return NOT_ALLOWED.sub("_", name)[:MAX_NAME_LENGTH] or "_"
