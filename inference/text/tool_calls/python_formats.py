"""Formats whose calls are a list of Python's: LFM2's between special tokens, and those of Llama 3.1
and later, which are JSON or Python without markers, or JSON behind ``<|python_tag|>``.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>                    LFM2
    {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}      Llama
    <|python_tag|>{"name": "f", "parameters": {"a": 1}}
    [f(a=1, b="x"), g()]

LFM2's prompts may ask for JSON objects between its tokens, which are read too; its grammars ask for
Python with JSON's values, which are the same but for ``true``, ``false`` and ``null``.

Without Llama's tag, JSON is looked for where a line begins and a Python list where the answer
begins. An object with other keys than a call's is text at its first such key.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.grammars.parts import OPTIONS, OUR_OPTIONS
from inference.text.tool_calls.argument_values import literal_value, parse_literals
from inference.text.tool_calls.call_parser import CallFormat, CallParser, MarkedFormat, Opening
from inference.text.tool_calls.call_reader import CallReader, FreeText, KnownTools, ReadCall
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    WantedCalls,
    any_of,
    declared_arguments,
    json_call_rules,
    json_rule,
    literal,
    marker_token_id,
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

    def reader(self, at: Opening) -> CallReader:
        if at.character == "{":
            return JsonCalls(at.tools)
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


LLAMA_TAG = "<|python_tag|>"
LLAMA_OPENINGS = (LLAMA_TAG, "{", "[")

# Free text beside strict tools: nothing that the parser would take for a call.
_CALL_LINE = (
    r"/((.|\n)*\n)?[ \t\r\n]*\{[ \t\r\n]*"
    r'"(name|type|id|function|parameters|arguments)"(.|\n)*/'
)
_LIST_START = r"/[ \t\r\n]*\[(.|\n)*/"
_SPELLED_TAG = r"/(.|\n)*<\|python_tag\|>(.|\n)*/"
_FREE_TERMINAL = f"FREE: /(.|\\n)*/ & ~{_CALL_LINE} & ~{_LIST_START} & ~{_SPELLED_TAG}"


class Llama3Format(CallFormat):
    """Grammars ask for JSON, which every model of this format writes. Beside free text calls come
    at the answer's beginning or behind the tag."""

    name = "llama3"
    markers = (LLAMA_TAG,)

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return Llama3Parser(tools)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        rules = [
            f"calls: object{wanted.more('object', '; ')}",
            *json_call_rules(wanted, CallKeys(arguments="parameters")),
        ]
        if wanted.are_forced:
            return ["start: calls", *rules]
        tag_id = marker_token_id(wanted.tokenizer, LLAMA_TAG)
        tagged = "" if tag_id is None else f" | FREE <[{tag_id}]> calls | <[{tag_id}]> calls"
        return [f"start: FREE | calls{tagged}", _FREE_TERMINAL, *rules]


class Llama3Parser(CallParser):
    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        super().__init__(LLAMA_OPENINGS)
        self._tools = KnownTools(tools)
        self._is_tagged = False

    def _confirms(self) -> bool:
        text = self._text
        return text.found == LLAMA_TAG or (text.has_text and self._may_begin_call(text))

    def _found(self, position: int) -> int:
        if self._text.found == LLAMA_TAG:
            self._lead = [self._text.space, LLAMA_TAG]
            self._is_tagged, self._read = True, self._read_start
        elif self._may_begin_call(self._text):
            self._lead = [self._text.space]
            self._is_tagged, self._read = False, self._read_start
            position -= 1  # the bracket is read again
        else:
            self._text.reject()
        self._parts.add_text(self._text.take())
        return position

    @staticmethod
    def _may_begin_call(text: FreeText) -> bool:
        """A bracket without the tag before it."""
        return not text.has_text or (text.found == "{" and "\n" in text.space)

    def _read_start(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE or character == "[":
            self._lead.append(character)
            self._read = self._read_list_start if character == "[" else self._read_start
            return position + 1
        return self._begin_json(position) if character == "{" else self._refuse(position)

    def _read_list_start(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE:
            self._lead.append(character)
            return position + 1
        if character == "{":
            return self._begin_json(position)
        self._begin_calls(PythonicCalls(), "".join(self._lead))
        return position

    def _begin_json(self, position: int) -> int:
        lead = "".join(self._lead)
        calls = JsonCalls(self._tools, is_marked=self._is_tagged, stream=self._stream)
        if "[" in lead:
            calls.feed("[", 0)
        self._begin_calls(calls, lead)
        return position

    def _refuse(self, position: int) -> int:
        self._parts.add_text("".join(self._lead))
        self._resume_text(follows_call=False)
        return position
