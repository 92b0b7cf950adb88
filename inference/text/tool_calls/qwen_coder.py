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

from collections.abc import Sequence
from dataclasses import dataclass

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    any_of,
    callable_tools,
    head_rules,
    literal,
    marker,
    special_marker_ids,
)
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
    SeedCall,
    TaggedCall,
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


def qwen_coder_grammar(
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    *,
    tags: CallTags,
    parallel: bool,
    tokenizer: Tokenizer,
) -> str | None:
    """Raises ``UnsupportedSchemaError`` for what tags cannot express."""
    called = callable_tools(tools, choice, parallel=parallel)
    if not called:
        return None
    style = tags.style
    is_free = choice.mode == "auto"
    start = answer_rules(
        tags.opens,
        choice,
        parallel=parallel,
        tokenizer=tokenizer,
        between="\n",
        also="bare function" if is_free else "",
    )
    rules = [
        *start,
        *(head_rules("bare", FUNCTION, tokenizer) if is_free else ()),
        f"rest: {_FUNCTION_LINE} function {_NEWLINE} {marker(tokenizer, tags.closes)}",
        f"function: {any_of('function', len(called))}",
        *style.common_rules(),
    ]
    for index, tool in enumerate(called):
        rules += function_rules(f"function_{index}", tool, choice, style)
    return "\n".join(rules)


class QwenCoderFormat:
    name = "qwen_coder"
    tags: CallTags = QWEN_TAGS
    reader: type[TaggedCall] = TaggedCall

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (self.tags.opens, self.tags.closes))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            if opening == opens and character in "[{":
                return JsonCalls(known)
            return self.reader(known, is_wrapped=opening == opens)

        opens = self.tags.opens
        return MarkedCallParser(
            [opens, FUNCTION], begin, closings=[self.tags.closes], closed=[opens]
        )

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Raises ``UnsupportedSchemaError``."""
        return qwen_coder_grammar(
            tools, choice, tags=self.tags, parallel=parallel, tokenizer=tokenizer
        )


class SeedFormat(QwenCoderFormat):
    name = "seed"
    tags = SEED_TAGS
    reader = SeedCall
