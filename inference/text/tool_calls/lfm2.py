"""LFM2: a Python list of calls between special tokens.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>

JSON objects between them, which its prompts may ask for, are read too. Grammars ask for Python with
JSON's values, which are the same but for ``true``, ``false`` and ``null``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.grammars.parts import OPTIONS, OUR_OPTIONS
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    any_of,
    callable_tools,
    json_rule,
    literal,
    marker,
    special_marker_ids,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.pythonic_calls import PythonicCalls
from inference.text.tool_calls.tag_rules import declared_arguments, value_schema

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"


class Lfm2Format:
    name = "lfm2"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (START, END))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            return (
                JsonCalls(known)
                if character == "{"
                else PythonicCalls(is_opened=False, keeps_json=True)
            )

        return MarkedCallParser([START], begin, closings=[END])

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Raises ``UnsupportedSchemaError``."""
        called = callable_tools(tools, choice, parallel=parallel)
        if not called:
            return None
        many = parallel and choice.mode != "required"
        more = f" ({literal(', ')} one)*" if parallel else ""
        rules = [
            *answer_rules(START, choice, parallel=many, tokenizer=tokenizer, between=""),
            f'rest: "[" one{more} "]" {marker(tokenizer, END)}',
            f"one: {any_of('one', len(called))}",
            *COMMON_RULES,
        ]
        for index, tool in enumerate(called):
            rules += python_call_rules(f"one_{index}", tool, choice)
        return "\n".join(rules)


COMMON_RULES = (
    'any_argument: /[A-Za-z_][A-Za-z0-9_]*/ "=" any_value',
    json_rule("any_value", {OUR_OPTIONS: OPTIONS}),
)
"""What ``python_call_rules`` refer to."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def python_call_rules(rule: str, tool: ToolDefinition, choice: ToolChoice) -> list[str]:
    """Rules of a call in Python's form, ``f(a=1, b="x")``, with JSON's values. Arguments come in
    the order of the schema's properties, the optional ones or not:

        f(first)    first: argument more | the next first
                    more: ", " argument more | the next more

    Raises ``UnsupportedSchemaError`` for what Python cannot express.
    """
    begin, comma = literal(f"{tool.name}("), literal(", ")
    declared = declared_arguments(tool, choice, fits_python)
    if declared is None:
        return [f'{rule}: {begin} (any_argument ({comma} any_argument)*)? ")"']
    rules, count = [f'{rule}: {begin} {rule}_first_0 ")"'], len(declared.properties)
    for number, (key, schema) in enumerate(declared.properties.items()):
        here, then = f"{rule}_{number}", f"{rule}_more_{number + 1}"
        is_optional = key not in declared.required
        rules += [
            f"{rule}_first_{number}: {here} {then}"
            + (f" | {rule}_first_{number + 1}" if is_optional else ""),
            f"{rule}_more_{number}: {comma} {here} {then}" + (f" | {then}" if is_optional else ""),
            f"{here}: {literal(key + '=')} {here}_json",
            json_rule(f"{here}_json", value_schema(schema, declared.root)),
        ]
    return [*rules, f'{rule}_first_{count}: ""', f'{rule}_more_{count}: ""']


def fits_python(name: str) -> bool:
    """Whether it is the name of an argument."""
    return _IDENTIFIER.fullmatch(name) is not None
