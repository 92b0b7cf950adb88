"""An answer while it comes, and what it is when it has come. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from helexa_acp.conversation.history import (
    INVALID_CALL,
    AssistantTurn,
    Image,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    clean,
    interrupted,
)
from helexa_acp.rounds.repair import NotUnderstood, Signature, understand
from helexa_acp.rounds.splitting import Kind, Piece
from helexa_acp.tools.base import Tool
from helexa_acp.wire.base import CallMade, Reason


@dataclass(slots=True)
class Draft:
    """Belongs to one request; holds what has come so far, also when no more will."""

    text: str = ""
    thought: str = ""
    thoughts: list[Thought] = field(default_factory=list)
    calls: list[CallMade] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    reason: Reason = "stop"
    usage: Usage = field(default_factory=Usage)
    is_begun: bool = False

    def take(self, piece: Piece) -> None:
        """A piece of a text that may hold thoughts and calls."""
        match piece.kind:
            case Kind.TEXT:
                self.text += piece.text
            case Kind.THOUGHT:
                self.thought += piece.text
            case Kind.CALL:
                self.calls.append(CallMade("", "", piece.text))

    def seal(self, sealed: Any) -> None:
        self.thoughts.append(Thought(self.thought, sealed))
        self.thought = ""

    def turn(self, calls: tuple[ToolCall, ...] = ()) -> AssistantTurn:
        unsealed = (Thought(clean(self.thought)),) if self.thought else ()
        return AssistantTurn(
            text=clean(self.text),
            thoughts=(*self.thoughts, *unsealed),
            calls=calls,
            images=tuple(self.images),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.thought or self.thoughts or self.images)


@dataclass(frozen=True, slots=True)
class Misread:
    """A call that could not be understood, and the message to the model about it."""

    call: ToolCall
    result: ToolResult


def understood(
    made: list[CallMade], tools: dict[str, Tool], history: list[Turn]
) -> tuple[list[ToolCall], list[Misread]]:
    """The calls, in order, each under an id of its own; and those among them that are misread."""
    taken = {turn.call_id for turn in history if isinstance(turn, ToolResult)}
    calls: list[ToolCall] = []
    misread: list[Misread] = []
    for one in made:
        call_id = clean(one.call_id)
        if not call_id or call_id in taken:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        taken.add(call_id)
        found = understand(one.name, one.arguments, [_signature(tool) for tool in tools.values()])
        if isinstance(found, NotUnderstood):
            written = {"name": clean(one.name), "written": clean(one.arguments)}
            call = ToolCall(call_id, INVALID_CALL, written)
            why = f"ERROR: this call was not understood: {found.why}. Nothing was done."
            misread.append(Misread(call, interrupted(call, why)))
        else:
            call = ToolCall(call_id, found.name, found.arguments)
        calls.append(call)
    return calls, misread


def _signature(tool: Tool) -> Signature:
    parameters = tool.spec.parameters
    required = parameters.get("required")
    return Signature(
        tool.spec.name,
        frozenset(parameters.get("properties") or ()),
        frozenset(required if isinstance(required, list) else ()),
    )


def error_parts(message: str) -> tuple[Text, ...]:
    return (Text(f"ERROR: {message}"),)
