"""GLM 4.5 and later: calls as a name and pairs of tags, with each argument's value as plain text.

    <tool_call>f
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

GLM 4.7 leaves the newlines out. A value ends at the ``</arg_value>`` behind which the call
continues or ends. Calls in JSON are read as well. Whitespace around the calls is left out.
"""

from __future__ import annotations

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
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE
from inference.text.tool_calls.tag_rules import TagStyle, function_rules
from inference.text.tool_calls.tagged_call import (
    CLOSE,
    OPEN,
    SPACE,
    TAG_TEXT,
    TaggedCall,
    Tags,
)

KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"


GLM_TAGS = Tags(
    function="",
    name=rf"[ \t\r]*([^{WHITESPACE}\[\]<>\"']{{1,300}})[ \t\r]*[<\n]",
    name_begun=r"[^<>\n]{1,300}",
    keeps_name_end=True,
    argument=KEY,
    key=f"(?P<key>{TAG_TEXT}){KEY_END}{SPACE}{VALUE}",
    value_end=VALUE_END,
    ends=(CLOSE,),
    closing=CLOSE,
    doubts=rf"{KEY}|{KEY_END}|{VALUE}|{VALUE_END}(?! )|</arg(?!_key>|_value>)",
)


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
        is_held = stream is not None
        return TaggedCall(tools, GLM_TAGS, is_wrapped=True, follows_grammar=is_held)

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
