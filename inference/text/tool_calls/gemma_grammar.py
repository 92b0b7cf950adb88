"""Gemma's calls as llguidance lark text.

Follows the parts of a schema that lark can express: objects, arrays, texts, numbers, enums, unions
and references. Other keywords are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import ToolDefinition
from inference.text.errors import UnsupportedSchemaError
from inference.text.tool_calls.argument_values import allowed_types, alternatives, listed_values
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    any_of,
    arguments_schema,
    head_rules,
    literal,
)
from inference.text.tool_calls.json_text import compact_json

CALL = "call:"
REFUSED_KEYWORDS = (
    *("pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "contains"),
    *("minProperties", "maxProperties", "patternProperties", "propertyNames", "not", "if"),
    *("prefixItems", "dependentRequired", "dependentSchemas"),
)
"""Constraints that the rules below do not hold a value to."""

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
_SCALARS = {"integer": "INTEGER", "number": "NUMBER", "boolean": '("true" | "false")'}
_RULES = {**_SCALARS, "null": '"null"', "string": "text"}


@dataclass(frozen=True, slots=True)
class GemmaMarkers:
    opens: str
    closes: str
    quote: str


def gemma_rules(wanted: WantedCalls, markers: GemmaMarkers) -> list[str]:
    """Raises ``UnsupportedSchemaError`` for what the rules cannot hold."""
    quote = wanted.marker(markers.quote)
    rules = [
        *wanted.answer_rules(markers.opens),
        f"rest: call_body {wanted.marker(markers.closes)}",
        f"call_body: {any_of('call', len(wanted.tools))}",
        f"text: {quote} text_end",
        *head_rules("text_end", markers.quote, wanted.tokenizer),
        *_FREE_RULES,
    ]
    for index, tool in enumerate(wanted.tools):
        head, arguments = literal(f"{CALL}{tool.name}"), "any_object"
        if tool.strict or wanted.are_forced:
            schema = arguments_schema(tool, wanted.choice)
            values = _Values(tool, schema, f"value_{index}", quote)
            arguments = values.of_object(schema, ())
            rules += values.rules
        rules.append(f"call_{index}: {head} {arguments}")
    return rules


class _Values:
    """One tool's values: a rule for each place in its schema, so that a schema may lead back to
    itself."""

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
        """Members come in the schema's order, the optional ones or not."""
        self._check(schema, steps)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        is_list = isinstance(required, list) and all(isinstance(key, str) for key in required)
        if not isinstance(properties, dict) or not is_list:
            message = "required is a list and properties an object"
            raise UnsupportedSchemaError(self._tool, (), message)
        known = dict.fromkeys(required, True) | properties
        if not known and schema.get("additionalProperties") is not False:
            return "any_object"
        members = []
        for key, value in known.items():
            path = (*steps, "properties", key)
            if self._tool.strict and not _fits_key(key):
                raise UnsupportedSchemaError(self._tool, path, _message(key))
            if value is not False and _fits_key(key):
                rule = f"{literal(f'{key}:')} {self._of(value, path)}"
                members.append((rule, key in required))
        return f'"{{" {_in_order(members)} "}}"' if members else '"{}"'

    def _of(self, schema: object, steps: tuple[str, ...]) -> str:
        """The name of its rule."""
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


def _fits_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


def _in_order(members: Sequence[tuple[str, bool]]) -> str:
    """Commas stand between those that are there: which member comes first decides."""
    first: list[str] = []
    for index, (member, is_required) in enumerate(members):
        rest = "".join(
            f' "," {later}' if needed else f' ("," {later})?'
            for later, needed in members[index + 1 :]
        )
        first.append(f"{member}{rest}")
        if is_required:
            return f"({' | '.join(first)})"
    return f"({' | '.join(first)})?"
