"""LFM2: a Python list of calls between special tokens.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>

JSON objects between them, which its prompts may ask for, are read too. Grammars ask for Python with
JSON's values, which are the same but for ``true``, ``false`` and ``null``.
"""

from __future__ import annotations

import re

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.grammars.parts import OPTIONS, OUR_OPTIONS
from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import WantedCalls, any_of, json_rule, literal
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.pythonic_calls import PythonicCalls
from inference.text.tool_calls.tag_rules import declared_arguments, value_schema

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"


class Lfm2Format(MarkedFormat):
    name = "lfm2"
    openings = (START,)
    closings = (END,)
    markers = (START, END)

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> CallReader:
        if character == "{":
            return JsonCalls(tools)
        return PythonicCalls(is_opened=False, keeps_json=True)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        rules = [
            *wanted.answer_rules(START, is_section=True),
            f'rest: "[" one{wanted.more("one", ", ")} "]" {wanted.marker(END)}',
            f"one: {any_of('one', len(wanted.tools))}",
            *COMMON_RULES,
        ]
        for index, tool in enumerate(wanted.tools):
            rules += python_call_rules(f"one_{index}", tool, wanted.choice)
        return rules


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
