"""The Qwen-Coder format as llguidance lark text.

Arguments come in the order of the schema's properties, the optional ones or not. Text values are
free up to their closing tag; all others are JSON after their own schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.argument_values import (
    allowed_types,
    alternatives,
    listed_values,
)
from inference.text.tool_calls.errors import UnsupportedSchemaError
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    arguments_schema,
    callable_tools,
    head_rules,
    json_rule,
    literal,
    marker,
)
from inference.text.tool_calls.json_scanner import compact_json
from inference.text.tool_calls.tagged_call import CLOSE, FUNCTION, FUNCTION_END, OPEN, PARAMETER
from inference.text.tool_calls.tagged_value import PARAMETER_END

TEXT_KEYWORDS = ("pattern", "format", "minLength", "maxLength")
"""Constraints on strings: a value written as plain text cannot be held to them."""
ROOT_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
    *("$schema", "$id", "$comment", "title", "description", "default", "examples"),
}
"""What is understood at the top of a tool's schema."""

_NEWLINE = literal("\n")
_VALUE_END = literal(f"\n{PARAMETER_END}\n")


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
        f"rest: {literal(f'{chr(10)}{FUNCTION}')} function {_NEWLINE} {marker(tokenizer, CLOSE)}",
        f"function: {' | '.join(f'function_{index}' for index in range(len(called)))}",
        f"text_value[lazy]: TEXT {literal(PARAMETER_END)}",
        f'any_argument: {literal(PARAMETER)} /[^<>\\n]+/ ">" {_NEWLINE} text_value {_NEWLINE}',
    ]
    for index, tool in enumerate(called):
        rules += _function_rules(f"function_{index}", tool, choice)
    return "\n".join(rules)


def _function_rules(rule: str, tool: ToolDefinition, choice: ToolChoice) -> list[str]:
    begin, end = literal(f"{tool.name}>\n"), literal(FUNCTION_END)
    if not tool.strict and choice.mode != "required":
        return [f"{rule}: {begin} any_argument* {end}"]
    schema = arguments_schema(tool, choice)
    if unknown := sorted(schema.keys() - ROOT_KEYWORDS - {"x-guidance"}):
        if tool.strict:
            raise _unsupported(unknown[0], f"{tool.path}.parameters.{unknown[0]}")
        return [f"{rule}: {begin} any_argument* {end}"]
    required = schema.get("required", [])
    properties = {
        **schema.get("properties", {}),
        **{key: True for key in required if key not in schema.get("properties", {})},
    }
    arguments, values = [], []
    for number, (key, value) in enumerate(properties.items()):
        argument = f"{literal(f'{PARAMETER}{key}>{chr(10)}')} {rule}_{number}"
        arguments.append(argument if key in required else f"({argument})?")
        path = f"{tool.path}.parameters.properties.{key}"
        values.append(_value_rule(f"{rule}_{number}", value, schema, path if tool.strict else None))
    return [f"{rule}: {' '.join([begin, *arguments, end])}", *values]


def _value_rule(rule: str, schema: Any, root: Mapping[str, Any], path: str | None) -> str:
    """``path`` is given where the schema must be kept to the letter."""
    options = alternatives(schema, root)
    listed = [value for option in options for value in listed_values(option)]
    if listed and all(listed_values(option) for option in options):
        texts = [value if isinstance(value, str) else compact_json(value) for value in listed]
        return f"{rule}: ({' | '.join(map(literal, texts))}) {_VALUE_END}"
    if not any("string" in allowed_types(option) for option in options):
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        value = {**shared, **schema, "x-guidance": root["x-guidance"]}
        return f"{rule}: {rule}_json {_VALUE_END}\n{json_rule(f'{rule}_json', value)}"
    for keyword in TEXT_KEYWORDS:
        if path is not None and any(keyword in option for option in options):
            raise _unsupported(keyword, f"{path}.{keyword}")
    return f"{rule}: text_value {_NEWLINE}"


def _unsupported(keyword: str, path: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(
        f"this model writes arguments as plain text, which cannot be held to {keyword!r}", path
    )
