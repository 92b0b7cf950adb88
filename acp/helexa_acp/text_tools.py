"""Thoughts and calls in an answer's text, and tools as text for endpoints whose API has none. Pure.

The format is that of NousResearch's Hermes models, which many others were trained on: tools are in
the system prompt, calls come as ``<tool_call>`` JSON, results go back as ``<tool_response>``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from helexa_acp import history
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
        return list(self._pieces())

    def flush(self) -> list[TextEvent]:
        """Returns the text held back, as its present kind."""
        return list(self._released(len(self._held)))

    def _pieces(self) -> Iterator[TextEvent]:
        while True:
            if self._skips_newlines:
                self._held = self._held.lstrip("\n")
                self._skips_newlines = not self._held
            if self._is_at_start and not self._starts():
                return
            marker = self._closes or CALL_OPENS
            found = self._held.find(marker)
            if found < 0:
                if marker != CALL_CLOSES:
                    yield from self._released(len(self._held) - _overlap(self._held, marker))
                return
            yield from self._released(found)
            self._held = self._held[len(marker) :]
            self._skips_newlines = bool(self._closes) and self._closes != CALL_CLOSES
            self._closes = "" if self._closes else CALL_CLOSES

    def _starts(self) -> bool:
        """Whether it is decided if the answer begins with a thought."""
        begun = self._held.lstrip()
        for opens, closes in THOUGHT_MARKERS.items():
            if begun.startswith(opens):
                self._held, self._closes = begun[len(opens) :], closes
        self._is_at_start = not self._closes and any(
            opens.startswith(begun) for opens in THOUGHT_MARKERS
        )
        return not self._is_at_start

    def _released(self, length: int) -> Iterator[TextEvent]:
        text, self._held = self._held[:length], self._held[length:]
        if not text:
            return
        if not self._closes:
            yield TextDelta(text)
        elif self._closes == CALL_CLOSES:
            yield CallMade(arguments=text)
        else:
            yield ThoughtDelta(text)


def _overlap(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that ``marker`` begins with."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


def tools_prompt(tools: Sequence[ToolSpec]) -> str:
    signatures = [json.dumps({"type": "function", "function": one.function()}) for one in tools]
    return INSTRUCTIONS.format(signatures="\n".join(signatures))


def as_text(turns: Sequence[history.Turn]) -> tuple[history.Turn, ...]:
    """The conversation with calls and results written out as text."""
    written: list[history.Turn] = []
    for turn in turns:
        match turn:
            case history.AssistantTurn(calls=calls) if calls:
                text = "\n".join([*filter(None, [turn.text]), *map(_called, calls)])
                written.append(history.AssistantTurn(text=text))
            case history.ToolResult():
                response: tuple[history.Part, ...] = (
                    history.Text(
                        f"<tool_response>\n{history.text_of(turn.parts)}\n</tool_response>"
                    ),
                    *(part for part in turn.parts if isinstance(part, history.Image)),
                )
                if written and isinstance(before := written[-1], history.UserTurn):
                    written[-1] = history.UserTurn(before.parts + response)
                else:
                    written.append(history.UserTurn(response))
            case _:
                written.append(turn)
    return tuple(written)


def _called(call: history.ToolCall) -> str:
    if call.name == history.INVALID_CALL:
        text = str(call.arguments.get("written", ""))
    else:
        text = json.dumps({"name": call.name, "arguments": call.arguments})
    return f"{CALL_OPENS}\n{text}\n{CALL_CLOSES}"
