"""GLM, Qwen-Coder and Seed-OSS: calls as tags, with each argument's value as plain text.

    <tool_call>f                 <tool_call>             <seed:tool_call>
    <arg_key>a</arg_key>         <function=f>            <function=f>
    <arg_value>1</arg_value>     <parameter=a>           <parameter=a>1</parameter>
    </tool_call>                 1                       </function>
                                 </parameter>            </seed:tool_call>
                                 </function>
                                 </tool_call>

A value ends at the closing tag behind which the call continues or ends. Calls in JSON, as relatives
write them, are read between the outer tags. Whitespace around the calls is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedFormat, Opening
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.grammar_rules import (
    TagStyle,
    WantedCalls,
    any_of,
    function_rules,
    head_rules,
    literal,
    marker,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE
from inference.text.tool_calls.tagged_call import (
    FUNCTION,
    MAX_TAG_LENGTH,
    PARAMETER,
    PARAMETER_END,
    SPACE,
    TAG_TEXT,
    TaggedCall,
    Tags,
)

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
SEED_OPEN = "<seed:tool_call>"
SEED_CLOSE = "</seed:tool_call>"
FUNCTION_END = "</function>"
KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"


GLM_TAGS = Tags(
    function="",
    name=rf"[ \t\r]*([^{WHITESPACE}\[\]<>\"']{{1,{MAX_TAG_LENGTH}}})[ \t\r]*[<\n]",
    name_begun=TAG_TEXT,
    keeps_name_end=True,
    argument=KEY,
    key=f"(?P<key>{TAG_TEXT}){KEY_END}{SPACE}{VALUE}",
    value_end=VALUE_END,
    ends=(CLOSE,),
    closing=CLOSE,
    doubts=rf"{KEY}|{KEY_END}|{VALUE}|{VALUE_END}(?! )|</arg(?!_key>|_value>)",
)


class GlmFormat(MarkedFormat):
    """GLM 4.5 and later; 4.7 leaves the newlines out."""

    name = "glm"
    openings = (OPEN,)
    closings = (CLOSE,)
    markers = (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)

    def __init__(self, *, has_lines: bool = True) -> None:
        """``has_lines``: newlines between the tags. Both forms are read; grammars ask for the
        model's own."""
        self._newline = "\n" if has_lines else ""

    def reader(self, at: Opening) -> CallReader:
        if at.character in "[{":
            return JsonCalls(at.tools)
        is_held = at.stream is not None
        return TaggedCall(at.tools, GLM_TAGS, is_wrapped=True, follows_grammar=is_held)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        return [
            *wanted.answer_rules(OPEN, between="\n"),
            f"rest: function {wanted.marker(CLOSE)}",
            f"function: {any_of('function', len(wanted.tools))}",
            *function_rules("function", wanted, self._style(wanted.tokenizer)),
        ]

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


_NEWLINE = literal("\n")
_FUNCTION_LINE = literal(f"\n{FUNCTION}")


@dataclass(frozen=True, slots=True)
class CallTags:
    """The texts around one call, and around its values."""

    opens: str
    closes: str
    has_own_lines: bool

    @property
    def call(self) -> Tags:
        broken_end = rf"|\n{PARAMETER_END}" if self.has_own_lines else ""
        return Tags(
            name=f"({TAG_TEXT})>",
            name_begun=TAG_TEXT,
            needs_known_name=True,
            key=f"(?P<key>{TAG_TEXT})>",
            ends=(FUNCTION_END, self.closes),
            closing=self.closes,
            doubts=rf"{PARAMETER}[^<>\n]+>|{PARAMETER_END}(?! ){broken_end}",
            has_own_lines=self.has_own_lines,
        )

    @property
    def style(self) -> TagStyle:
        line = f" {_NEWLINE}" if self.has_own_lines else ""
        before_end = "\n" if self.has_own_lines else ""
        return TagStyle(
            begin=lambda name: literal(f"{name}>\n"),
            end=literal(FUNCTION_END),
            key=lambda key: f"{literal(f'{PARAMETER}{key}>')}{line}",
            any_key=f'{literal(PARAMETER)} /[^<>\\n]+/ ">"{line}',
            value_end=literal(f"{before_end}{PARAMETER_END}\n"),
            text_value=(
                f"text_body[lazy]: TEXT {literal(PARAMETER_END)}",
                f"text_value: text_body {_NEWLINE}",
            ),
        )


QWEN_TAGS = CallTags(OPEN, CLOSE, has_own_lines=True)
SEED_TAGS = CallTags(SEED_OPEN, SEED_CLOSE, has_own_lines=False)


class QwenCoderFormat(MarkedFormat):
    """The outer tags may be missing, as they are in the field, when the tool is one that was
    offered. One newline at either end of a value is the format's."""

    name = "qwen_coder"
    tags: CallTags = QWEN_TAGS

    def __init__(self) -> None:
        self.openings = (self.tags.opens, FUNCTION)
        self.closings = (self.tags.closes,)
        self.closed = (self.tags.opens,)
        self.markers = (self.tags.opens, self.tags.closes)

    def reader(self, at: Opening) -> CallReader:
        is_wrapped = at.marker == self.tags.opens
        if is_wrapped and at.character in "[{":
            return JsonCalls(at.tools)
        return TaggedCall(at.tools, self.tags.call, is_wrapped=is_wrapped)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        is_free = wanted.choice.mode == "auto"
        also = "bare function" if is_free else ""
        return [
            *wanted.answer_rules(self.tags.opens, between="\n", also=also),
            *(head_rules("bare", FUNCTION, wanted.tokenizer) if is_free else ()),
            f"rest: {_FUNCTION_LINE} function {_NEWLINE} {wanted.marker(self.tags.closes)}",
            f"function: {any_of('function', len(wanted.tools))}",
            *function_rules("function", wanted, self.tags.style),
        ]


class SeedFormat(QwenCoderFormat):
    name = "seed"
    tags = SEED_TAGS
