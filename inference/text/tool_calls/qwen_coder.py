"""Qwen-Coder and Seed-OSS: calls as tags, with each argument's value as plain text.

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

The outer tags may be missing, as they are in the field, when the tool is one that was offered. One
newline at either end of a value is the format's. A value ends at the ``</parameter>`` behind which
the call continues or ends. Calls in JSON, as relatives write them, are read between the outer tags.
Whitespace around the calls is left out. Seed-OSS writes ``<seed:tool_call>`` around a call, and
values to the character:

    <seed:tool_call>
    <function=f>
    <parameter=a>1</parameter>
    </function>
    </seed:tool_call>
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import WantedCalls, any_of, head_rules, literal
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.tag_rules import TagStyle, function_rules
from inference.text.tool_calls.tagged_call import (
    CLOSE,
    FUNCTION,
    FUNCTION_END,
    OPEN,
    PARAMETER,
    PARAMETER_END,
    SEED_CLOSE,
    SEED_OPEN,
    TAG_TEXT,
    TaggedCall,
    Tags,
)

_NEWLINE = literal("\n")
_FUNCTION_LINE = literal(f"\n{FUNCTION}")


@dataclass(frozen=True, slots=True)
class CallTags:
    """What stands around one call, and around its values."""

    opens: str
    closes: str
    has_own_lines: bool
    """Whether one newline at either end of a value is the format's."""

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
    name = "qwen_coder"
    tags: CallTags = QWEN_TAGS

    def __init__(self) -> None:
        self.openings = (self.tags.opens, FUNCTION)
        self.closings = (self.tags.closes,)
        self.closed = (self.tags.opens,)
        self.markers = (self.tags.opens, self.tags.closes)

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> CallReader:
        is_wrapped = opening == self.tags.opens
        if is_wrapped and character in "[{":
            return JsonCalls(tools)
        return TaggedCall(tools, self.tags.call, is_wrapped=is_wrapped)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        style = self.tags.style
        is_free = wanted.choice.mode == "auto"
        also = "bare function" if is_free else ""
        rules = [
            *wanted.answer_rules(self.tags.opens, between="\n", also=also),
            *(head_rules("bare", FUNCTION, wanted.tokenizer) if is_free else ()),
            f"rest: {_FUNCTION_LINE} function {_NEWLINE} {wanted.marker(self.tags.closes)}",
            f"function: {any_of('function', len(wanted.tools))}",
            *style.common_rules(),
        ]
        for index, tool in enumerate(wanted.tools):
            rules += function_rules(f"function_{index}", tool, wanted.choice, style)
        return rules


class SeedFormat(QwenCoderFormat):
    name = "seed"
    tags = SEED_TAGS
