"""GLM 4.5 and later: calls as a name and pairs of tags, with each argument's value as plain text.

    <tool_call>f
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

GLM 4.7 leaves the newlines out. A value ends at the ``</arg_value>`` behind which the call
continues or ends. Calls in JSON are read as well. Whitespace around the calls is left out.
"""

from __future__ import annotations

import re

from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    any_of,
    head_rules,
    literal,
    marker,
)
from inference.text.tool_calls.headed_call import plain_name
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE
from inference.text.tool_calls.tag_rules import TagStyle, function_rules
from inference.text.tool_calls.tagged_call import CLOSE, OPEN, PARAMETER, TaggedCall

KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"
NO_DOUBTS = re.compile("(?!)")


class GlmCall(TaggedCall):
    AFTER_VALUE = (KEY, CLOSE)
    VALUE_END = VALUE_END
    DOUBTS = re.compile(
        rf"{KEY}|{KEY_END}|{VALUE}|{VALUE_END}(?! )|</arg(?!_key>|_value>)",
    )
    HAS_OWN_LINES = False

    def __init__(self, tools: KnownTools, *, follows_grammar: bool) -> None:
        """``follows_grammar``: a value that names the format's tags is whole all the same."""
        super().__init__(tools, is_wrapped=True)
        if follows_grammar:
            self.DOUBTS = NO_DOUBTS
        self._read = self._read_name

    def _go_to(self, tag: str, position: int) -> int:
        if tag == VALUE:
            self._begin_value()
        elif tag == KEY_END:
            self._expect((VALUE,))
        else:
            return super()._go_to(PARAMETER if tag == KEY else tag, position)
        return position

    def _read_name(self, text: str, position: int) -> int:
        """It ends with its line or where the next tag begins."""
        if text[position] not in "\n<":
            return self._read_tag_text(text, position)
        name = plain_name(self._tag_text.strip(WHITESPACE))
        if name is None:
            return self._break(position)
        self._name = name
        self._tag_text = ""
        self._begin_arguments()
        return position

    def _read_key(self, text: str, position: int) -> int:
        if text[position] != "<":
            return self._read_tag_text(text, position)
        key = self._take_tag_text()
        if key is None:
            return self._break(position)
        self._key = key
        self._expect((KEY_END,))
        return position


class GlmFormat(MarkedFormat):
    name = "glm"
    openings = (OPEN,)
    closings = (CLOSE,)
    markers = (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)

    def __init__(self, *, has_lines: bool = True) -> None:
        """``has_lines``: newlines between the tags. Both forms are read; grammars ask for the
        model's own."""
        self._newline = "\n" if has_lines else ""

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> CallReader:
        if character in "[{":
            return JsonCalls(tools)
        return GlmCall(tools, follows_grammar=stream is not None)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        style = self._style(wanted.tokenizer)
        rules = [
            *wanted.answer_rules(OPEN, between="\n"),
            f"rest: function {wanted.marker(CLOSE)}",
            f"function: {any_of('function', len(wanted.tools))}",
            *style.common_rules(),
        ]
        for index, tool in enumerate(wanted.tools):
            rules += function_rules(f"function_{index}", tool, wanted.choice, style)
        return rules

    def _style(self, tokenizer: Tokenizer) -> TagStyle:
        line = f" {literal(self._newline)}" if self._newline else ""
        key, key_end, value, value_end = (
            marker(tokenizer, text) for text in (KEY, KEY_END, VALUE, VALUE_END)
        )
        return TagStyle(
            begin=lambda name: literal(name + self._newline),
            end="",
            key=lambda name: f"{key} {literal(name)} {key_end}{line} {value}",
            any_key=f"{key} /[^<>\\n]+/ {key_end}{line} {value}",
            value_end=f"{value_end}{line}",
            text_value=(
                *head_rules("text_body", VALUE_END, tokenizer),
                f"text_value: text_body{line}",
            ),
        )
