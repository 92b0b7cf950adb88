"""Arguments as JSON values of the types in the tool's schema, from text and from JSON.

    "3" as an integer ─▶ 3      "3" as a string ─▶ "3"      "three" as an integer ─▶ "three"
                                 3  as a string ─▶ "3"      "[1]" as an array ─▶ [1]

Other text stays a string, and JSON stays as written: the client, who knows its tool, answers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from inference.protocol.generation import ToolDefinition
from inference.text.schema_places import referenced

WHITESPACE = " \t\r\n"
MAX_SCALAR_LENGTH = 400
"""Python refuses to read integers of a few thousand digits."""
MAX_DEPTH = 64
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(text: str) -> Any:
    """Raises ``ValueError``, also for a duplicate key, whose value is ambiguous."""
    return json.loads(text, strict=False, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


def compact_json(value: object) -> str:
    """Raises ``ValueError`` for infinity and NaN, and ``TypeError``."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _SURROGATE.search(text):  # half of a pair, which no encoding can carry
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def is_encodable(text: str) -> bool:
    """An escape may name half of a surrogate pair."""
    return not _SURROGATE.search(text)


class KnownTools:
    """Schemas are the client's: parts of an unexpected shape count as absent."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._schemas = {tool.name: tool.parameters or {} for tool in tools}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        return self._schemas.get(name, {})

    def properties(self, name: str) -> Mapping[str, Any]:
        properties = self.schema(name).get("properties")
        return properties if isinstance(properties, dict) else {}

    def named_by(self, arguments: Collection[str]) -> str | None:
        fitting = [name for name in self._schemas if self.takes(name, arguments)]
        return fitting[0] if len(fitting) == 1 else None

    def takes(self, name: str, arguments: Collection[str]) -> bool:
        required = self.schema(name).get("required")
        needed = required if isinstance(required, list) else []
        given = list(arguments)  # a schema's ``required`` may name anything
        return set(given) <= self.properties(name).keys() and all(
            argument in given for argument in needed
        )


_INTEGER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
_TYPES: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def as_json(text: str, schema: object, root: Mapping[str, Any]) -> str:
    """``root`` is where the schema's references lead."""
    options = alternatives(schema, root)
    for option in options:
        if (chosen := _listed(text, option)) is not None:
            return chosen
    types = {name for option in options for name in allowed_types(option)}
    converted = _converted(text.strip(), types)
    return compact_json(text) if converted is None else converted


def is_text(schema: object, root: Mapping[str, Any]) -> bool:
    """Such a value can be streamed before it is whole."""
    return all(allowed_types(option) == {"string"} for option in alternatives(schema, root))


def alternatives(schema: object, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Resolves unions and references. An argument without a schema (``None``) is a string."""
    found: list[Mapping[str, Any]] = []
    waiting = [schema]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, dict):
            found.append({} if one is True else {"type": "string"})
        elif id(one) not in seen:
            seen.add(id(one))
            options = _options(one, root)
            waiting += options
            found += [] if options else [_merged(one, root)]
    return found


def _options(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[object]:
    if isinstance(schema.get("$ref"), str):
        place = referenced(root, schema)
        return [None if place is None else place.schema]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(keyword), list):
            return options
    return []


def _merged(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = schema.get("allOf")
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts if isinstance(parts, list) else []:
        options = _options(part, root) if isinstance(part, dict) else []
        target = options[0] if options else part
        merged |= target if isinstance(target, dict) else {}
    return merged


def allowed_types(schema: Mapping[str, Any]) -> set[str]:
    """A schema without ``type`` allows all."""
    declared = schema.get("type")
    listed_types = declared if isinstance(declared, list) else [declared]
    names = {name for name in listed_types if isinstance(name, str)}
    if not names and (listed := listed_values(schema)):
        return {_TYPES[type(value)] for value in listed}
    if not names:
        names |= {"object"} if "properties" in schema else set()
        names |= {"array"} if "items" in schema else set()
    if names and schema.get("nullable") is True:
        names.add("null")
    return names or set(_TYPES.values())


def listed_values(schema: Mapping[str, Any]) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else []


def _listed(text: str, schema: Mapping[str, Any]) -> str | None:
    values = listed_values(schema)
    if text in values:
        return compact_json(text)
    return next((written for value in values if (written := compact_json(value)) == text), None)


def _converted(text: str, types: Collection[str]) -> str | None:
    word = text.lower()
    if word in ("null", "none"):
        return "null" if "null" in types else None
    if word in ("true", "false"):
        return word if "boolean" in types else None
    if len(text) <= MAX_SCALAR_LENGTH and NUMBER.fullmatch(text):
        whole = _INTEGER.fullmatch(text) if "integer" in types else None
        return whole.group(1) if whole else text if "number" in types else None
    for as_written in (str, _literal_as_json) if text.startswith(("{", "[")) else ():
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = read_json(as_written(text))
            if _TYPES[type(value)] in types:
                return compact_json(value)
    return None


def fitted(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same object where nothing changes."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return arguments
    changed = {
        key: found
        for key, value in arguments.items()
        if key in properties and (found := _fitted(value, properties[key], schema)) is not value
    }
    return {**arguments, **changed} if changed else arguments


def _fitted(value: Any, schema: object, root: Mapping[str, Any]) -> Any:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not (is_integer or isinstance(value, str)):
        return value
    types = {name for one in alternatives(schema, root) for name in allowed_types(one)}
    if is_integer:
        return str(value) if types == {"string"} else value
    found = value if "string" in types else json.loads(as_json(value, schema, root))
    return value if isinstance(found, str) else found


LITERALS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PYTHON_ESCAPES = frozenset("\\'\"abfnrtvxNuU\n")
_PYTHON_TOKEN = re.compile(
    r"(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    rf"|(?P<number>{NUMBER.pattern})(?![\w.])"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<equals>[ \t\r\n]*=)?"
    r"|(?P<opens>[\[({])|(?P<closes>[\])}])|(?P<mark>[,:])|(?P<space>[ \t\r\n]+)",
    re.DOTALL,
)
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


def _literal_as_json(text: str) -> str:
    found, end = python_as_json(text, 0)
    if end < len(text):
        raise ValueError("text behind the literal")
    return found


def python_as_json(text: str, position: int, *, is_call: bool = False) -> tuple[str, int]:
    """JSON of the list, object or call's named arguments at ``position``, which Python or JSON has
    written, and its end. Raises ``ValueError`` or ``SyntaxError``, also for comments, adjacent
    strings, numbers in another base."""
    read: list[str] = []
    opened: list[tuple[str, str, int]] = []
    with_commas: set[int] = set()
    while opened or not read:
        found = _PYTHON_TOKEN.match(text, position)
        if found is None:
            raise ValueError("no plain literal")
        piece, position = found.group(), found.end()
        is_argument = is_call and len(opened) == 1
        match found.lastgroup:
            case "string":
                piece = compact_json(ast.literal_eval(_ESCAPE.sub(_python_escape, piece)))
            case "equals" if is_argument:
                read.append(compact_json(found["name"]))
                piece = ":"
            case "name" if piece in LITERALS:
                piece = LITERALS[piece]
            case "name" | "equals":
                raise ValueError("a name is no literal")
            case "opens":
                is_object = piece == "{" or (is_call and not opened)
                opened.append((_CLOSERS[piece], "}" if is_object else "]", len(read)))
                if len(opened) > MAX_DEPTH:
                    raise ValueError("too many brackets in one another")
                piece = "{" if is_object else "["
            case "closes":
                closer, written, start = opened.pop()
                is_tuple = start in with_commas or len(read) == start + 1
                if piece != closer or not (is_tuple or (piece, written) != (")", "]")):
                    raise ValueError("a bracket that closes nothing, or a value in parentheses")
                piece = written
            case "mark" if piece == ",":
                with_commas.add(opened[-1][2])
            case "mark" if is_argument:
                raise ValueError("no named argument")
        if not piece.isspace():
            read.append(piece)
    read_json(" ".join(read))
    return "".join(read), position


def _python_escape(escape: re.Match[str]) -> str:
    """Python keeps the backslash of an unknown escape. ``\\1`` is a character to Python and a group
    in regular expressions."""
    if escape.group(1) in "01234567":
        raise ValueError("an escape by digits has two readings")
    return escape.group() if escape.group(1) in _PYTHON_ESCAPES else f"\\{escape.group()}"


class JsonCopy:
    """Copies one JSON object as it is generated, without the white space outside of strings."""

    def __init__(self) -> None:
        self.is_running = True
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def feed(self, text: str, start: int) -> tuple[str, int]:
        """Returns the copy of ``text`` from ``start``, at first an opening brace, and its end."""
        copied: list[str] = []
        position = start
        while position < len(text) and self.is_running:
            run = (_STRING_RUN if self._is_in_string else _PLAIN_RUN).match(text, position)
            piece = run.group() if run and not self._is_escaped else text[position]
            position += len(piece)
            if self._is_in_string or not piece.isspace():
                copied.append(piece)
            self._count(piece)
        return "".join(copied), position

    def _count(self, piece: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif piece == '"':
            self._is_in_string = not self._is_in_string
        elif self._is_in_string:
            self._is_escaped = piece == "\\"
        elif piece in ("{", "["):
            self._depth += 1
        elif piece in ("}", "]"):
            self._depth -= 1
            self.is_running = self._depth > 0


_STRING_RUN = re.compile(r'[^"\\]+')
_PLAIN_RUN = re.compile(r'[^"{}\[\]\s]+|\s+')
