"""The Qwen-Coder format as llguidance lark text."""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    callable_tools,
    head_rules,
    literal,
    marker,
)
from inference.text.tool_calls.tag_rules import TagStyle, function_rules
from inference.text.tool_calls.tagged_call import CLOSE, FUNCTION, FUNCTION_END, OPEN, PARAMETER
from inference.text.tool_calls.tagged_value import PARAMETER_END

_NEWLINE = literal("\n")
_FUNCTION_LINE = literal(f"\n{FUNCTION}")
_STYLE = TagStyle(
    begin=lambda name: literal(f"{name}>\n"),
    end=literal(FUNCTION_END),
    key=lambda key: f"{literal(f'{PARAMETER}{key}>')} {_NEWLINE}",
    any_key=f'{literal(PARAMETER)} /[^<>\\n]+/ ">" {_NEWLINE}',
    value_end=literal(f"\n{PARAMETER_END}\n"),
    text_value=(
        f"text_body[lazy]: TEXT {literal(PARAMETER_END)}",
        f"text_value: text_body {_NEWLINE}",
    ),
)


def qwen_coder_grammar(
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    *,
    parallel: bool,
    tokenizer: Tokenizer,
) -> str | None:
    """Raises ``UnsupportedSchemaError`` for what a strict tool asks and tags cannot express."""
    called = callable_tools(tools, choice, parallel=parallel)
    if not called:
        return None
    is_free = choice.mode == "auto"
    start = answer_rules(
        OPEN,
        choice,
        parallel=parallel,
        tokenizer=tokenizer,
        between="\n",
        also="bare function" if is_free else "",
    )
    rules = [
        *start,
        *(head_rules("bare", FUNCTION, tokenizer) if is_free else ()),
        f"rest: {_FUNCTION_LINE} function {_NEWLINE} {marker(tokenizer, CLOSE)}",
        f"function: {' | '.join(f'function_{index}' for index in range(len(called)))}",
        *_STYLE.common_rules(),
    ]
    for index, tool in enumerate(called):
        rules += function_rules(f"function_{index}", tool, choice, _STYLE)
    return "\n".join(rules)
