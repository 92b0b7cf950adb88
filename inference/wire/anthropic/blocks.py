"""One answer's events as content blocks, before anybody writes them down.

    Delta | ReasoningDelta | ToolCallStarted | ToolCallDelta ─▶ (Opened Grew* Closed)*

The only place that decides where a block begins and ends, for streams and for bodies. Pure.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Literal

from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.wire.anthropic.fields import Display

Kind = Literal["text", "thinking", "tool_use"]


@dataclass(frozen=True, slots=True)
class Opened:
    kind: Kind
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Grew:
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """``signature`` is a thinking block's."""

    signature: str | None = None


Step = Opened | Grew | Closed


class Signature:
    """A fingerprint of a thinking block's text, because clients expect the field and send it back.
    Equal texts have equal signatures. It proves nothing, and nothing checks it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"helexa thinking\n")

    def feed(self, text: str) -> None:
        self._hash.update(text.encode())

    def __str__(self) -> str:
        return base64.b64encode(self._hash.digest()).decode()


class Blocks:
    """One answer's content as blocks, one open at a time. A block of text or thinking opens with
    its first character, so none is empty."""

    def __init__(self, thinking: Display) -> None:
        self._thinking = thinking
        self._open: Kind | None = None
        self._signature = Signature()

    def take(self, event: Event) -> list[Step]:
        match event:
            case Delta():
                return self._grow("text", event.text) if event.text else []
            case ReasoningDelta():
                return self._think(event)
            case ToolCallStarted():
                closed = self._close()
                self._open = "tool_use"
                return [*closed, Opened("tool_use", _tool_use_id(event.call_id), event.name)]
            case ToolCallDelta():
                return [Grew("tool_use", event.arguments)]
            case ChoiceFinished():
                return self._close()
        return []

    def _think(self, event: ReasoningDelta) -> list[Step]:
        if self._thinking == "hidden":
            return []
        steps: list[Step] = []
        if event.text:
            steps = self._grow("thinking", event.text)
            self._signature.feed(event.text)
            if self._thinking == "omitted":
                steps.pop()
        if event.closes is not None and self._open == "thinking":
            steps += self._close()
        return steps

    def _grow(self, kind: Kind, text: str) -> list[Step]:
        if self._open == kind:
            return [Grew(kind, text)]
        steps = self._close()
        self._open = kind
        return [*steps, Opened(kind), Grew(kind, text)]

    def _close(self) -> list[Step]:
        kind, self._open = self._open, None
        if kind is None:
            return []
        if kind != "thinking":
            return [Closed()]
        signature, self._signature = self._signature, Signature()
        return [Closed(str(signature))]


def _tool_use_id(call_id: str) -> str:
    """Ids are made without a dialect; this one's clients know them by their own prefix."""
    return "toolu_" + call_id.removeprefix("call_")
