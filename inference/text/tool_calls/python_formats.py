"""Formats whose calls are a list of Python's: LFM2's between special tokens, and those of Llama 3.1
and later, which are JSON or Python without markers, or JSON behind ``<|python_tag|>``.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>                    LFM2
    {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}      Llama
    <|python_tag|>{"name": "f", "parameters": {"a": 1}}
    [f(a=1, b="x"), g()]

LFM2's JSON objects are read too; its grammars ask for Python with JSON's ``true``, ``false`` and
``null``. Without Llama's tag, JSON is looked for where a line begins and a Python list where the
answer begins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.grammars import OPTIONS, OUR_OPTIONS, literal
from inference.text.tool_calls.argument_values import (
    KnownTools,
    python_as_json,
)
from inference.text.tool_calls.call_parser import CallFormat, Notation, Parsed, ReadCall, begins_by
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    WantedCalls,
    any_of,
    declared_arguments,
    in_order,
    json_call_rules,
    json_rule,
    value_schema,
)
from inference.text.tool_calls.json_calls import JsonStyle, json_notation

_START = re.compile(r"\s*(?:\[\s*(?:[A-Za-z0-9_.-]+(?P<begun>\()?)?)?")
_HEAD = re.compile(r"\s*(?P<name>[A-Za-z0-9_.-]+)\(")
_AFTER = re.compile(r"\s*(?P<mark>[\],])?")


def python_notation() -> Notation:
    """Arguments must be literals with names."""
    return Notation(begins_by(_START), parse_python_calls)


def parse_python_calls(text: str) -> Parsed | None:
    calls: list[ReadCall] = []
    position = text.index("[") + 1
    while (head := _HEAD.match(text, position)) is not None:
        try:
            arguments, stop = python_as_json(text, head.end() - 1, is_call=True)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        calls.append(ReadCall(head["name"], arguments))
        after = _AFTER.match(text, stop)
        assert after is not None
        if after["mark"] != ",":
            return Parsed(calls, after.end() if after["mark"] else stop)
        position = after.end()
    return None


LFM2_OPEN = "<|tool_call_start|>"
LFM2_CLOSE = "<|tool_call_end|>"


class Lfm2Format(CallFormat):
    name = "lfm2"
    openings = (LFM2_OPEN,)
    closings = (LFM2_CLOSE,)
    markers = (LFM2_OPEN, LFM2_CLOSE)

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return json_notation(tools), python_notation()

    def _rules(self, wanted: WantedCalls) -> list[str]:
        rules = [
            *wanted.answer_rules(LFM2_OPEN, is_section=True),
            f'rest: "[" one{wanted.more("one", ", ")} "]" {wanted.marker(LFM2_CLOSE)}',
            f"one: {any_of('one', len(wanted.tools))}",
            'any_argument: /[A-Za-z_][A-Za-z0-9_]*/ "=" any_value',
            json_rule("any_value", {OUR_OPTIONS: OPTIONS}),
        ]
        for index, tool in enumerate(wanted.tools):
            rules += python_call_rules(f"one_{index}", tool, wanted.choice)
        return rules


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def python_call_rules(rule: str, tool: ToolDefinition, choice: ToolChoice) -> list[str]:
    """``f(a=1, b="x")``, with JSON's values. Raises ``UnsupportedSchemaError``."""
    begin, comma = literal(f"{tool.name}("), literal(", ")
    declared = declared_arguments(tool, choice, lambda key: bool(_IDENTIFIER.fullmatch(key)))
    if declared is None:
        return [f'{rule}: {begin} (any_argument ({comma} any_argument)*)? ")"']
    rules, members = [f'{rule}: {begin} {rule}_first_0 ")"'], []
    for number, (key, schema) in enumerate(declared.properties.items()):
        value = f"{rule}_{number}"
        members.append((f"{literal(key + '=')} {value}", key in declared.required))
        rules.append(json_rule(value, value_schema(schema, declared.root)))
    return [*rules, *in_order(rule, members, comma)]


LLAMA_TAG = "<|python_tag|>"
BARE = ("{", "[")

# Free text beside strict tools: nothing that the parser would take for a call.
_CALL_LINE = (
    r"/((.|\n)*\n)?[ \t\r\n]*\{[ \t\r\n]*"
    r'"(name|type|id|function|parameters|arguments)"(.|\n)*/'
)
_LIST_START = r"/[ \t\r\n]*\[(.|\n)*/"
_SPELLED_TAG = r"/(.|\n)*<\|python_tag\|>(.|\n)*/"
_FREE_TERMINAL = f"FREE: /(.|\\n)*/ & ~{_CALL_LINE} & ~{_LIST_START} & ~{_SPELLED_TAG}"


class Llama3Format(CallFormat):
    """Every model of this format writes JSON, which grammars ask for."""

    name = "llama3"
    markers = (LLAMA_TAG,)
    openings = (LLAMA_TAG, *BARE)
    bare = BARE

    def opens(self, marker: str, *, is_first: bool, begins_line: bool) -> bool:
        return marker == LLAMA_TAG or is_first or (marker == "{" and begins_line)

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        style = JsonStyle(is_marked=marker == LLAMA_TAG)
        return json_notation(tools, style), python_notation()

    def _rules(self, wanted: WantedCalls) -> list[str]:
        rules = [
            f"calls: object{wanted.more('object', '; ')}",
            *json_call_rules(wanted, CallKeys(arguments="parameters")),
        ]
        if wanted.are_forced:
            return ["start: calls", *rules]
        tag_id = wanted.marker_ids.get(LLAMA_TAG)
        tagged = "" if tag_id is None else f" | FREE <[{tag_id}]> calls | <[{tag_id}]> calls"
        return [f"start: FREE | calls{tagged}", _FREE_TERMINAL, *rules]
