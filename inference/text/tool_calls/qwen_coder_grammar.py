"""The Qwen-Coder format as llguidance lark text.

Arguments come in the order of the schema's properties, the optional ones or not. Text values are
free up to their closing tag; all others are JSON after their own schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.bare_calls import rerooted
from inference.text.compiling import OUR_OPTIONS
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
from inference.text.tool_calls.tagged_call import (
    CLOSE,
    FUNCTION,
    FUNCTION_END,
    OPEN,
    PARAMETER,
    fits_tag,
)
from inference.text.tool_calls.tagged_value import PARAMETER_END

TEXT_KEYWORDS = ("pattern", "format", "minLength", "maxLength")
"""Constraints on strings: a value written as plain text cannot be held to them."""
ROOT_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
    *("$schema", "$id", "$comment", "title", "description", "default", "examples"),
}
"""What is understood at the top of a tool's schema."""

_NEWLINE = literal("\n")
_FUNCTION_LINE = literal(f"\n{FUNCTION}")
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
        f"rest: {_FUNCTION_LINE} function {_NEWLINE} {marker(tokenizer, CLOSE)}",
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
    root = arguments_schema(tool, choice)
    if unknown := sorted(root.keys() - ROOT_KEYWORDS - {OUR_OPTIONS}):
        if tool.strict:
            raise _unsupported(tool, (unknown[0],))
        return [f"{rule}: {begin} any_argument* {end}"]
    required, declared = root.get("required", []), root.get("properties", {})
    is_list = isinstance(required, list) and all(isinstance(key, str) for key in required)
    if not is_list or not isinstance(declared, dict):
        raise UnsupportedSchemaError(tool, (), "required is a list and properties an object")
    properties = dict.fromkeys(required, True) | declared
    arguments, values = [], []
    for number, (key, schema) in enumerate(properties.items()):
        if tool.strict and not fits_tag(key):
            raise _unsupported(tool, ("properties", key))
        if schema is False or not fits_tag(key):
            continue
        argument = f"{literal(PARAMETER + key + '>')} {_NEWLINE} {rule}_{number}"
        arguments.append(argument if key in required else f"({argument})?")
        if tool.strict:
            _check_text(tool, key, alternatives(schema, root))
        values.append(_value_rule(f"{rule}_{number}", schema, root))
    return [f"{rule}: {' '.join([begin, *arguments, end])}", *values]


def _check_text(tool: ToolDefinition, key: str, options: Sequence[Mapping[str, Any]]) -> None:
    texts = [option for option in options if "string" in allowed_types(option)]
    for keyword in TEXT_KEYWORDS:
        if any(keyword in option and not listed_values(option) for option in texts):
            raise _unsupported(tool, ("properties", key, keyword))


def _value_rule(rule: str, schema: Any, root: Mapping[str, Any]) -> str:
    options = alternatives(schema, root)
    if all(listed_values(option) for option in options):
        listed = [value for option in options for value in listed_values(option)]
        texts = [value if isinstance(value, str) else compact_json(value) for value in listed]
        return f"{rule}: ({' | '.join(map(literal, texts))}) {_VALUE_END}"
    if any("string" in allowed_types(option) for option in options):
        return f"{rule}: text_value {_NEWLINE}"
    # The schema's references start at the tool's whole schema, which comes along.
    whole = {key: value for key, value in root.items() if key != OUR_OPTIONS}
    value = {
        **rerooted(schema, "#/$defs/tool"),
        "$defs": {"tool": rerooted(whole, "#/$defs/tool")},
        OUR_OPTIONS: root[OUR_OPTIONS],
    }
    return f"{rule}: {rule}_json {_VALUE_END}\n{json_rule(f'{rule}_json', value)}"


def _unsupported(tool: ToolDefinition, steps: tuple[str, ...]) -> UnsupportedSchemaError:
    message = f"this model writes arguments as plain text, which cannot be held to {steps[-1]!r}"
    return UnsupportedSchemaError(tool, steps, message)
