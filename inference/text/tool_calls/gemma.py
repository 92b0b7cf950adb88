"""Calls as FunctionGemma and Gemma 4 write them.

    <start_function_call>call:f{city:<escape>Paris<escape>,days:3}<end_function_call>
    <|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Gemma 3 has no format of its own: its templates ask for JSON or Python, as Llama's do. Grammars
refuse the keywords of a schema that lark cannot express.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from inference.protocol.generation import ToolDefinition
from inference.text.errors import UnsupportedSchemaError
from inference.text.grammars import literal
from inference.text.tool_calls.argument_values import (
    LITERALS,
    MAX_DEPTH,
    WHITESPACE,
    KnownTools,
    allowed_types,
    alternatives,
    compact_json,
    listed_values,
    read_json,
)
from inference.text.tool_calls.call_parser import CallFormat, Notation
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    any_of,
    arguments_schema,
    head_rules,
    in_order,
    members_of,
)
from inference.text.tool_calls.json_calls import CLOSERS, WrittenObject, repaired_string
from inference.text.tool_calls.json_formats import NAME, headed_notation

CALL = "call:"
REFUSED_KEYWORDS = (
    *("pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "contains"),
    *("minProperties", "maxProperties", "patternProperties", "propertyNames", "not", "if"),
    *("prefixItems", "dependentRequired", "dependentSchemas"),
)

_FREE_RULES = (
    'any_object: "{" (any_member ("," any_member)*)? "}"',
    'any_member: KEY ":" any_value',
    'any_array: "[" (any_value ("," any_value)*)? "]"',
    'any_value: text | NUMBER | "true" | "false" | "null" | any_object | any_array',
    r"KEY: /[A-Za-z_][A-Za-z0-9_.\-]*/",
    r"NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?/",
    r"INTEGER: /-?(0|[1-9][0-9]*)/",
)
_KEY = re.compile(r"[^\s:,{}\[\]<>\"']+")
_RULES = {"integer": "INTEGER", "number": "NUMBER", "null": '"null"', "string": "text"} | {
    "boolean": '("true" | "false")'
}


class GemmaMarkers(NamedTuple):
    name: str
    opens: str
    closes: str
    quote: str


class _Values:
    """A rule for each place in the tool's schema, so that a schema may lead back to itself."""

    def __init__(
        self, tool: ToolDefinition, root: Mapping[str, Any], prefix: str, quote: str
    ) -> None:
        self.rules: list[str] = []
        self._tool = tool
        self._root = root
        self._prefix = prefix
        self._quote = quote
        self._names: dict[int, str] = {}

    def of_object(self, schema: Mapping[str, Any], steps: tuple[str, ...]) -> str:
        self._check(schema, steps)
        known, required = members_of(self._tool, schema)
        if not known and schema.get("additionalProperties") is not False:
            return "any_object"
        members = []
        for key, value in known.items():
            path = (*steps, "properties", key)
            if self._tool.strict and not _KEY.fullmatch(key):
                raise UnsupportedSchemaError(self._tool, path, _message(key))
            if value is not False and _KEY.fullmatch(key):
                rule = f"{literal(f'{key}:')} {self._of(value, path)}"
                members.append((rule, key in required))
        rule = f"{self._prefix}_object_{len(self.rules)}"
        self.rules += in_order(rule, members, '","')
        return f'"{{" {rule}_first_0 "}}"'

    def _of(self, schema: object, steps: tuple[str, ...]) -> str:
        name = self._names.get(id(schema))
        if name is None:
            name = self._names[id(schema)] = f"{self._prefix}_{len(self._names)}"
            rules: list[str] = []
            for option in alternatives(schema, self._root):
                rules += self._of_option(option, steps)
            self.rules.append(f"{name}: {' | '.join(dict.fromkeys(rules))}")
        return name

    def _of_option(self, option: Mapping[str, Any], steps: tuple[str, ...]) -> list[str]:
        self._check(option, steps)
        if listed := listed_values(option):
            return [self._listed(value, steps) for value in listed]
        types = allowed_types(option)
        if types >= {"object", "array", "string"}:
            return ["any_value"]
        rules = [_RULES[name] for name in sorted(types) if name in _RULES]
        if "object" in types:
            rules.append(self.of_object(option, steps))
        if "array" in types:
            items = option.get("items", True)
            item = "any_value" if items is True else self._of(items, (*steps, "items"))
            rules.append(f'"[" ({item} ("," {item})*)? "]"')
        return rules

    def _listed(self, value: object, steps: tuple[str, ...]) -> str:
        if isinstance(value, str):
            return f"{self._quote} {literal(value)} {self._quote}" if value else "text"
        if isinstance(value, dict | list):
            raise UnsupportedSchemaError(self._tool, steps, _message("a listed object or array"))
        return literal(compact_json(value))

    def _check(self, schema: Mapping[str, Any], steps: tuple[str, ...]) -> None:
        for keyword in REFUSED_KEYWORDS:
            if keyword in schema:
                raise UnsupportedSchemaError(self._tool, (*steps, keyword), _message(keyword))


def _message(what: str) -> str:
    return f"this model's calls cannot be held to {what!r}"


FUNCTION_GEMMA = GemmaMarkers(
    "function_gemma", "<start_function_call>", "<end_function_call>", "<escape>"
)
GEMMA_4 = GemmaMarkers("gemma_4", "<|tool_call>", "<tool_call|>", '<|"|>')

_BARE_KEY = re.compile(r"""[^\s<>"'|\\]+""")
_COLON = re.compile(f"[{WHITESPACE}]*:")


class GemmaFormat(CallFormat):
    def __init__(self, markers: GemmaMarkers) -> None:
        self.name = markers.name
        self.openings = (markers.opens,)
        self.closings = (markers.closes,)
        self.markers = (markers.opens, markers.closes, markers.quote)
        self._gemma = markers

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        def read(text: str, start: int) -> WrittenObject:
            end = text.rindex("}") + 1
            return WrittenObject(
                read_json(arguments_as_json(text[start:end], self._gemma.quote)), end
            )

        headed = headed_notation(rf"{CALL}[ \t]*{NAME}", tools, read=read)
        return (headed._replace(head=None),)  # what is no JSON is not streamed

    def _rules(self, wanted: WantedCalls) -> list[str]:
        markers = self._gemma
        quote = wanted.marker(markers.quote)
        rules = [
            *wanted.answer_rules(markers.opens),
            f"rest: call_body {wanted.marker(markers.closes)}",
            f"call_body: {any_of('call', len(wanted.tools))}",
            f"text: {quote} text_end",
            *head_rules("text_end", markers.quote, wanted),
            *_FREE_RULES,
        ]
        for index, tool in enumerate(wanted.tools):
            arguments = "any_object"
            if tool.strict or wanted.are_forced:
                schema = arguments_schema(tool, wanted.choice)
                values = _Values(tool, schema, f"value_{index}", quote)
                arguments = values.of_object(schema, ())
                rules += values.rules
            rules.append(f"call_{index}: {literal(f'{CALL}{tool.name}')} {arguments}")
        return rules


def arguments_as_json(written: str, quote: str) -> str:
    """Converts a whole block of arguments to a JSON object.

        {city:<escape>Paris<escape>,days:3,near:[{lat:1.5}]}  ─▶  {"city":"Paris","days":3,…}

    Texts know no escapes. Raises ``ValueError`` for other text; the result may still be no JSON.
    """
    marked = re.escape(quote)
    token = re.compile(
        rf'{marked}(?P<text>.*?){marked}|(?P<json>"(?:[^"\\]|\\.)*")|(?P<mark>[{{}}\[\]:,])'
        rf"|(?P<space>[{WHITESPACE}]+)|(?P<bare>[^{WHITESPACE}<\"{{}}\[\]:,][^<\"{{}}\[\]:,]*)",
        re.DOTALL,
    )
    read: list[str] = []
    depth, position = 0, 0
    while position < len(written):
        found = token.match(written, position)
        if found is None or depth > MAX_DEPTH:
            raise ValueError("no value")
        position = found.end()
        is_key = _COLON.match(written, position) is not None
        piece = found.group()
        match found.lastgroup:
            case "space":
                continue
            case "mark":
                depth += (piece in CLOSERS) - (piece in CLOSERS.values())
            case "text":
                piece = compact_json(found["text"])
            case "json":
                piece = repaired_string(piece)
            case "bare" if is_key:
                piece = piece.strip(WHITESPACE)
                if not _BARE_KEY.fullmatch(piece):
                    raise ValueError("no key")
                piece = compact_json(piece)
            case _:
                piece = LITERALS.get(word := piece.strip(WHITESPACE), word)
        read.append(piece)
    return "".join(read)
