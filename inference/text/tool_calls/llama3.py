"""Llama 3.1 and later: JSON or Python calls without markers, or behind ``<|python_tag|>``.

    {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}
    <|python_tag|>{"name": "f", "parameters": {"a": 1}}
    [f(a=1, b="x"), g()]

Without the tag, JSON is looked for where a line begins and a Python list where the answer begins.
An object with other keys than a call's is text at its first such key.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tool_calls.call_format import CallFormat
from inference.text.tool_calls.call_parser import CallParser
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    WantedCalls,
    json_call_rules,
    marker_token_id,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE
from inference.text.tool_calls.lfm2 import PythonicCalls

TAG = "<|python_tag|>"
OPENINGS = (TAG, "{", "[")

# Free text beside strict tools: nothing that the parser would take for a call.
_CALL_LINE = (
    r"/((.|\n)*\n)?[ \t\r\n]*\{[ \t\r\n]*"
    r'"(name|type|id|function|parameters|arguments)"(.|\n)*/'
)
_LIST_START = r"/[ \t\r\n]*\[(.|\n)*/"
_SPELLED_TAG = r"/(.|\n)*<\|python_tag\|>(.|\n)*/"
_FREE_TERMINAL = f"FREE: /(.|\\n)*/ & ~{_CALL_LINE} & ~{_LIST_START} & ~{_SPELLED_TAG}"


class Llama3Format(CallFormat):
    """Grammars ask for JSON, which every model of this format writes. Beside free text calls come
    at the answer's beginning or behind the tag."""

    name = "llama3"
    markers = (TAG,)

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return Llama3Parser(tools)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        rules = [
            f"calls: object{wanted.more('object', '; ')}",
            *json_call_rules(wanted, CallKeys(arguments="parameters")),
        ]
        if wanted.are_forced:
            return ["start: calls", *rules]
        tag_id = marker_token_id(wanted.tokenizer, TAG)
        tagged = "" if tag_id is None else f" | FREE <[{tag_id}]> calls | <[{tag_id}]> calls"
        return [f"start: FREE | calls{tagged}", _FREE_TERMINAL, *rules]


class Llama3Parser(CallParser):
    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        super().__init__(OPENINGS)
        self._tools = KnownTools(tools)
        self._is_tagged = False

    def _confirms(self) -> bool:
        return self._text.found == TAG or (self._text.has_text and self._may_begin_call(self._text))

    def _found(self, position: int) -> int:
        if self._text.found == TAG:
            self._lead = [self._text.space, TAG]
            self._is_tagged, self._read = True, self._read_start
        elif self._may_begin_call(self._text):
            self._lead = [self._text.space]
            self._is_tagged, self._read = False, self._read_start
            position -= 1  # the bracket is read again
        else:
            self._text.reject()
        self._parts.add_text(self._text.take())
        return position

    @staticmethod
    def _may_begin_call(text: FreeText) -> bool:
        """A bracket without the tag before it."""
        return not text.has_text or (text.found == "{" and "\n" in text.space)

    def _read_start(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE or character == "[":
            self._lead.append(character)
            self._read = self._read_list_start if character == "[" else self._read_start
            return position + 1
        return self._begin_json(position) if character == "{" else self._refuse(position)

    def _read_list_start(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE:
            self._lead.append(character)
            return position + 1
        if character == "{":
            return self._begin_json(position)
        self._begin_calls(PythonicCalls(), "".join(self._lead))
        return position

    def _begin_json(self, position: int) -> int:
        lead = "".join(self._lead)
        calls = JsonCalls(self._tools, is_marked=self._is_tagged, stream=self._stream)
        if "[" in lead:
            calls.feed("[", 0)
        self._begin_calls(calls, lead)
        return position

    def _refuse(self, position: int) -> int:
        self._parts.add_text("".join(self._lead))
        self._resume_text(follows_call=False)
        return position
