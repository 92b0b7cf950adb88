"""Thoughts and calls in an answer's text, and tools as text for endpoints whose API has none. Pure.

The format is that of NousResearch's Hermes models, which many others were trained on: tools are in
the system prompt, calls come as ``<tool_call>`` JSON, results go back as ``<tool_response>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from helexa_acp.history import (
    INVALID_CALL,
    AssistantTurn,
    Image,
    Part,
    Text,
    ToolResult,
    Turn,
    UserTurn,
    text_of,
)
from helexa_acp.wire import ToolSpec

THOUGHT_MARKERS = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
CALL_OPENS, CALL_CLOSES = "<tool_call>", "</tool_call>"
INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class Kind(Enum):
    TEXT = "text"
    THOUGHT = "thought"
    CALL = "call"
    """The inside of a ``<tool_call>``; always whole."""


@dataclass(frozen=True, slots=True)
class Piece:
    kind: Kind
    text: str


class Splitter:
    """Feed it the text as it comes, then flush. A thought is only recognised at the beginning:
    prose about ``<think>`` stays prose. Calls are parsed only with ``finds_calls``."""

    def __init__(self, *, finds_calls: bool) -> None:
        self._finds_calls = finds_calls
        self._held = ""
        self._kind = Kind.TEXT
        self._closes = ""
        self._is_at_start = True
        self._skips_newlines = False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return [piece for piece in pieces if piece.text]

    def flush(self) -> list[Piece]:
        """Returns the text held back, as its present kind."""
        rest, self._held = self._held, ""
        return [Piece(self._kind, rest)] if rest else []

    def _step(self, pieces: list[Piece]) -> bool:
        """Whether it moved to another kind, and there may be more to do."""
        if self._kind is not Kind.TEXT:
            return self._inside(pieces)
        if self._skips_newlines:
            self._held = self._held.lstrip("\n")
            self._skips_newlines = not self._held
        if self._is_at_start:
            decided = self._start(pieces)
            if decided is not None:
                return decided
        if not self._finds_calls:
            pieces.append(Piece(Kind.TEXT, self._take(len(self._held))))
            return False
        before, marker, after = self._held.partition(CALL_OPENS)
        if marker:
            pieces.append(Piece(Kind.TEXT, before))
            self._held, self._kind, self._closes = after, Kind.CALL, CALL_CLOSES
            return True
        keep = _overlap(self._held, CALL_OPENS)
        pieces.append(Piece(Kind.TEXT, self._take(len(self._held) - keep)))
        return False

    def _start(self, pieces: list[Piece]) -> bool | None:
        """``None``: this is no thought, and never will be one."""
        begun = self._held.lstrip()
        for opens, closes in THOUGHT_MARKERS.items():
            if begun.startswith(opens):
                self._held, self._kind, self._closes = begun[len(opens) :], Kind.THOUGHT, closes
                self._is_at_start = False
                return True
        if any(opens.startswith(begun) for opens in THOUGHT_MARKERS):
            return False
        self._is_at_start = False
        return None

    def _inside(self, pieces: list[Piece]) -> bool:
        inside, marker, after = self._held.partition(self._closes)
        if marker:
            pieces.append(Piece(self._kind, inside))
            self._skips_newlines = self._kind is Kind.THOUGHT
            self._held, self._kind = after, Kind.TEXT
            return True
        if self._kind is Kind.THOUGHT:
            keep = _overlap(self._held, self._closes)
            pieces.append(Piece(Kind.THOUGHT, self._take(len(self._held) - keep)))
        return False

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


def _overlap(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that ``marker`` begins with."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


def tools_prompt(tools: Sequence[ToolSpec]) -> str:
    signatures = "\n".join(
        json.dumps(
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
        )
        for tool in tools
    )
    return INSTRUCTIONS.format(signatures=signatures)


def as_text(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The conversation with calls and results written out as text."""
    written: list[Turn] = []
    for turn in turns:
        match turn:
            case AssistantTurn(calls=calls) if calls:
                written.append(AssistantTurn(text=_called(turn), images=turn.images))
            case ToolResult():
                response: tuple[Part, ...] = (
                    Text(f"<tool_response>\n{text_of(turn.parts)}\n</tool_response>"),
                    *(part for part in turn.parts if isinstance(part, Image)),
                )
                if written and isinstance(before := written[-1], UserTurn):
                    written[-1] = UserTurn(before.parts + response)
                else:
                    written.append(UserTurn(response))
            case _:
                written.append(turn)
    return tuple(written)


def _called(turn: AssistantTurn) -> str:
    calls = [
        f"<tool_call>\n{_call_json(call.name, call.arguments)}\n</tool_call>" for call in turn.calls
    ]
    return "\n".join([turn.text, *calls] if turn.text else calls)


def _call_json(name: str, arguments: dict[str, Any]) -> str:
    if name == INVALID_CALL:
        return str(arguments.get("written", ""))
    return json.dumps({"name": name, "arguments": arguments})
