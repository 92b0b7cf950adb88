"""LFM2: a Python list of calls between special tokens.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>

JSON objects between them, which its prompts may ask for, are read too. Grammars ask for Python with
JSON's values, which are the same but for ``true``, ``false`` and ``null``.
"""

from __future__ import annotations

import ast
import re

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.grammars.parts import OPTIONS, OUR_OPTIONS
from inference.text.tool_calls.argument_values import literal_value, parse_literals
from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools, ReadCall
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    any_of,
    declared_arguments,
    json_rule,
    literal,
    value_schema,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE, compact_json, read_json

_NAME_CHARACTER = re.compile(r"[A-Za-z0-9_.-]")
_PLAIN_RUN = re.compile(r"""[^'"\\()\[\]{}]+""")


class PythonicCalls(CallReader):
    """Reads the calls of a Python list. A call is held back until its closing parenthesis. Its
    arguments must be literals, with names; JSON's true, false and null are understood too."""

    def __init__(self, *, is_opened: bool = True, keeps_json: bool = False) -> None:
        """``is_opened``: it begins behind the bracket. ``keeps_json``: a value that is JSON and
        none of Python's, such as a number that is too large for it, is kept as it was written."""
        super().__init__()
        self._keeps_json = keeps_json
        self._name = ""
        self._arguments: list[str] = []
        self._depth = 0
        self._quote = ""
        self._is_escaped = False
        self._is_whole = False
        self._read = self._read_name if is_opened else self._read_bracket

    def feed(self, text: str, start: int) -> int:
        position = start
        while position < len(text) and not self.is_done:
            end = self._read(text, position)
            self._tail.append(text[position:end])
            position = end
            if self._depth == 0 and self._arguments:
                self._end_call()
            elif self._is_whole:
                self._tail.clear()
                self._end()
        return position

    def close(self) -> None:
        if self._name or self._arguments:
            self._break()
        self._end()

    def _read_bracket(self, text: str, position: int) -> int:
        if text[position] != "[":
            return self._end(position)
        self._read = self._read_name
        return position + 1

    def _read_name(self, text: str, position: int) -> int:
        character = text[position]
        if character == "(" and self._name:
            self.has_begun = True
            self._read = self._read_arguments
            return position
        if _NAME_CHARACTER.match(character):
            self._name += character
            return position + 1
        if character in WHITESPACE and not self._name:
            return position + 1
        self.calls.clear()
        return self._end(position)

    def _read_arguments(self, text: str, position: int) -> int:
        run = _PLAIN_RUN.match(text, position)
        piece = run.group() if run and not self._is_escaped else text[position]
        self._arguments.append(piece)
        if self._is_escaped:
            self._is_escaped = False
        elif self._quote:
            self._is_escaped = piece == "\\"
            self._quote = "" if piece == self._quote else self._quote
        elif piece in ("'", '"'):
            self._quote = piece
        elif piece in "([{":
            self._depth += 1
        elif piece in ")]}":
            self._depth -= 1
        return position + len(piece)

    def _end_call(self) -> None:
        arguments = _as_json("".join(self._arguments), keeps_json=self._keeps_json)
        self._arguments.clear()
        if arguments is None:
            self._break()
            return
        self.calls.append(ReadCall(self._name, arguments))
        self._name = ""
        self._tail.clear()
        self._read = self._read_between

    def _read_between(self, text: str, position: int) -> int:
        character = text[position]
        if character == ",":
            self._read = self._read_name
        elif character == "]":
            self._is_whole = True
        elif character not in WHITESPACE:
            return self._end(position)
        return position + 1


def _as_json(arguments: str, *, keeps_json: bool) -> str | None:
    """``(a=1, b="x")`` as a JSON object; ``None`` when it is anything but named literals."""
    try:
        source = f"f{arguments}"
        call = parse_literals(source)
        if not isinstance(call, ast.Call) or call.args:
            return None
        names = [keyword.arg for keyword in call.keywords]
        if None in names or len(set(names)) < len(names):
            return None
        members = (
            f"{compact_json(one.arg)}:{_value(one.value, source, keeps_json=keeps_json)}"
            for one in call.keywords
        )
        return f"{{{','.join(members)}}}"
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, source: str, *, keeps_json: bool) -> str:
    try:
        return compact_json(literal_value(node))
    except ValueError:
        written = ast.get_source_segment(source, node) if keeps_json else None
        if written is None:
            raise
        read_json(written)
        return written


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
"""Rules that ``python_call_rules`` refer to."""

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
    return _IDENTIFIER.fullmatch(name) is not None
