"""Thoughts and calls in an answer's text, and tools as text for endpoints whose API has none. Pure.

The format is that of NousResearch's Hermes models, which many others were trained on: tools are in
the system prompt, calls come as ``<tool_call>`` JSON, results go back as ``<tool_response>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from helexa_acp.wire import CallMade, TextDelta, ThoughtDelta, ToolSpec

THOUGHT_MARKERS = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
TextEvent = TextDelta | ThoughtDelta | CallMade
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


class Splitter:
    """Feed it the text as it comes, then flush. A thought is only recognised at the beginning:
    prose about ``<think>`` stays prose. A call's text is its arguments, and always whole."""

    def __init__(self) -> None:
        self._held = ""
        self._closes = ""
        """The marker that ends the thought or call; empty in a text."""
        self._is_at_start = True
        self._skips_newlines = False

    def feed(self, text: str) -> list[TextEvent]:
        self._held += text
        pieces: list[TextEvent] = []
        while self._step(pieces):
            pass
        return pieces

    def flush(self) -> list[TextEvent]:
        """Returns the text held back, as its present kind."""
        pieces: list[TextEvent] = []
        rest, self._held = self._held, ""
        self._add(pieces, rest)
        return pieces

    def _add(self, pieces: list[TextEvent], text: str) -> None:
        if not text:
            return
        if not self._closes:
            pieces.append(TextDelta(text))
        elif self._closes == CALL_CLOSES:
            pieces.append(CallMade("", "", text))
        else:
            pieces.append(ThoughtDelta(text))

    def _step(self, pieces: list[TextEvent]) -> bool:
        """Whether it moved to another kind, and there may be more to do."""
        if self._closes:
            return self._inside(pieces)
        if self._skips_newlines:
            self._held = self._held.lstrip("\n")
            self._skips_newlines = not self._held
        if self._is_at_start:
            decided = self._start()
            if decided is not None:
                return decided
        before, marker, after = self._held.partition(CALL_OPENS)
        if marker:
            self._add(pieces, before)
            self._held, self._closes = after, CALL_CLOSES
            return True
        self._release(pieces, CALL_OPENS)
        return False

    def _start(self) -> bool | None:
        """``None``: this is no thought, and never will be one."""
        begun = self._held.lstrip()
        for opens, closes in THOUGHT_MARKERS.items():
            if begun.startswith(opens):
                self._held, self._closes = begun[len(opens) :], closes
                self._is_at_start = False
                return True
        if any(opens.startswith(begun) for opens in THOUGHT_MARKERS):
            return False
        self._is_at_start = False
        return None

    def _inside(self, pieces: list[TextEvent]) -> bool:
        inside, marker, after = self._held.partition(self._closes)
        if marker:
            self._add(pieces, inside)
            self._skips_newlines = self._closes != CALL_CLOSES
            self._held, self._closes = after, ""
            return True
        if self._closes != CALL_CLOSES:
            self._release(pieces, self._closes)
        return False

    def _release(self, pieces: list[TextEvent], marker: str) -> None:
        """All but an end that ``marker`` may begin with."""
        length = len(self._held) - _overlap(self._held, marker)
        self._add(pieces, self._held[:length])
        self._held = self._held[length:]


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
