"""Calls written as JSON: objects in a row, lists of objects, or a head and its arguments.

    {…}      {…}; {…}      {…}\\n{…}      [{…}, {…}]      f:0 {…}

Usual mistakes are repaired, where that drops no text and has one meaning:

    {"arguments": {"name": "f", "a": 1}}              the name inside of the arguments
    {"arguments": {"a": 1}}                           no name, and one tool takes just these
    {"name": "f", "arguments": "{\\"a\\": 1}"}          the arguments as a string
    {"name": "f", "a": 1}                             the arguments beside the name
    {"function": {"name": "f", "arguments": {…}}}     the API's own form
    {"name": "f", "arguments": {…}}}                  up to three closing braces too many
    {"name": "f", "arguments": {"a": True}            Python's words, a brace missing at the end
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from inference.text.tool_calls.argument_values import (
    LITERALS,
    MAX_DEPTH,
    MAX_SCALAR_LENGTH,
    NUMBER,
    KnownTools,
    fitted,
    is_encodable,
    read_json,
)
from inference.text.tool_calls.call_parser import Notation, Parsed, ReadCall, begins_by

ARGUMENTS_KEYS = ("arguments", "parameters")
CALL_KEYS = frozenset({"name", *ARGUMENTS_KEYS, "function", "type", "id"})
LABELS = frozenset({"type", "id"})
"""These stand beside a call and are no part of it."""
NO_SYNONYMS: Mapping[str, str] = MappingProxyType({})
MAX_EXTRA_BRACES = 3
CLOSERS = {"{": "}", "[": "]"}

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[-+.0-9A-Za-z]+|[{}\[\]:,]|[ \t\r\n]+', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")


class WrittenObject(NamedTuple):
    value: dict[str, Any]
    end: int
    lacks_brace: bool = False


def read_object(text: str, start: int) -> WrittenObject:
    """``start`` is the brace's. Corrects control characters in strings, unknown escapes, and
    Python's True, False and None. Raises ``ValueError`` for what cannot be JSON."""
    tokens: list[str] = []
    opened: list[str] = []
    position = start
    while (found := _TOKEN.match(text, position)) is not None:
        token = found.group()
        if token in CLOSERS:
            opened.append(CLOSERS[token])
            if len(opened) > MAX_DEPTH:
                raise ValueError("too many brackets in one another")
        elif token in ("}", "]"):
            if token != opened[-1]:
                break
            opened.pop()
        position = found.end()
        tokens.append(_repaired_token(token))
        if not opened:
            break
    if opened and opened != ["}"]:
        raise ValueError("an object without an end")
    return WrittenObject(read_json("".join([*tokens, *opened])), position, bool(opened))


def _repaired_token(token: str) -> str:
    if token[0] == '"':
        return repaired_string(token)
    if token in "{}[]:," or token.isspace():
        return token
    literal = LITERALS.get(token)
    is_number = len(token) <= MAX_SCALAR_LENGTH and NUMBER.fullmatch(token)
    if literal is None and not is_number:
        raise ValueError("a word that is no value")
    return literal or token


def repaired_string(string: str) -> str:
    """Doubles the backslash of an escape that JSON does not have."""
    escaped = _ESCAPE.sub(_repaired_escape, string)
    return _CONTROL_CHARACTER.sub(lambda found: json.dumps(found.group())[1:-1], escaped)


def _repaired_escape(escape: re.Match[str]) -> str:
    after = escape.group(1)
    if after == "'":
        return after
    is_known = len(after) > 1 or after in '"\\/bfnrt'
    return escape.group() if is_known else f"\\{escape.group()}"


class JsonStyle(NamedTuple):
    is_marked: bool = True
    """Without a marker, an object with other keys than a call's is the answer itself."""
    synonyms: Mapping[str, str] = NO_SYNONYMS
    """Maps the format's keys to a call's."""


_START = re.compile(r"\s*\[?\s*(?P<begun>\{)?")
_UNMARKED_START = re.compile(r'\s*\[?\s*(?:\{(?:\{?\s*(?P<begun>")?)?)?')
_CALL_KEY = f'"(?:{"|".join(sorted(CALL_KEYS))})"'
_FOREIGN = re.compile(
    rf'\s*\[?\s*\{{\{{?\s*(?:{_CALL_KEY}\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)*'
    rf'(?!{_CALL_KEY})"(?:[^"\\]|\\.)*"'
)
"""Matches an object's own keys up to one that no call has."""


MARKED = JsonStyle()


def json_notation(tools: KnownTools, style: JsonStyle = MARKED) -> Notation:
    return Notation(
        begins_by(_START if style.is_marked else _UNMARKED_START),
        partial(parse_json_calls, tools=tools, style=style),
        partial(_head, style.synonyms),
        None if style.is_marked else _FOREIGN,
    )


_HEAD = re.compile(
    r'[\s}\],;\[]*\{\s*(?:"\w+"\s*:\s*"[^"\\]*"\s*,\s*)?'
    r'"(?P<key>\w+)"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


def _head(synonyms: Mapping[str, str], text: str, position: int) -> tuple[str, int] | None:
    """Reads only the form that grammars hold answers to."""
    found = _HEAD.match(text, position)
    if found is None or synonyms.get(found["key"], found["key"]) != "name":
        return None
    name = read_json(repaired_string(found["name"]))
    return (name, found.end()) if is_name(name) else None


_BETWEEN = re.compile(
    rf"(?P<braces>(?:\s*\}}){{0,{MAX_EXTRA_BRACES}}})(?P<closed>[\s,;]*\])?(?P<gap>[\s,;]*)"
)


def parse_json_calls(text: str, *, tools: KnownTools, style: JsonStyle) -> Parsed | None:
    calls: list[ReadCall] = []
    start = _START.match(text)
    assert start is not None
    is_list, end = "[" in start.group(), 0
    position = start.end() - len(start["begun"] or "")
    while text.startswith("{", position):
        is_doubled = text.startswith("{{", position)
        try:
            written = read_object(text, position + is_doubled)
            call = _call_of(written, tools, style)
            if call is None:
                return None
            calls.append(ReadCall.of(call[0], fitted(call[1], tools.schema(call[0]))))
        except (ValueError, RecursionError):
            return None
        between = _BETWEEN.match(text, written.end)
        assert between is not None
        has_inner = is_doubled or any(isinstance(one, dict) for one in written.value.values())
        if between["braces"] and not has_inner:
            return None  # the brace may end an object whose beginning is missing
        if between["closed"] and not is_list:
            return Parsed(calls, between.end("braces"))
        position, end = between.end(), between.start("gap")
    return Parsed(calls, end) if calls else None


_Arguments = dict[str, Any]
_Call = tuple[str, _Arguments]


def _call_of(written: WrittenObject, tools: KnownTools, style: JsonStyle) -> _Call | None:
    """Adds a last brace, unless arguments have objects of their own: it could be theirs."""
    given = written.value
    members = {style.synonyms.get(key, key): value for key, value in given.items()}
    if len(members) < len(given) or not (style.is_marked or members.keys() <= CALL_KEYS):
        return None
    if written.lacks_brace:
        key, last = next(reversed(members.items()), ("", None))
        if key not in ARGUMENTS_KEYS or not isinstance(last, dict) or _has_objects(last):
            return None
    return _named_call(members, tools, is_marked=style.is_marked)


def _has_objects(value: object) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(one, dict) or _has_objects(one) for one in inner)


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and is_encodable(value)


def _named_call(members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool) -> _Call | None:
    if isinstance(function := members.get("function"), dict):
        is_alone = members.keys() - LABELS == {"function"}
        return _named_call(function, tools, is_marked=is_marked) if is_alone else None
    names = [key for key in ("name", "function") if members.get(key)]
    keys = [key for key in ARGUMENTS_KEYS if key in members]
    name = members[names[0]] if names else None
    if len(names) > 1 or len(keys) > 1 or not (name is None or is_name(name)):
        return None
    if keys:
        arguments = _as_object(members[keys[0]])
        if arguments is None or members.keys() - CALL_KEYS:
            return None
        if name is None:
            return _nameless(arguments, tools)
        # A label beside the arguments may be one of them, behind a brace too early.
        labels = {key for key in LABELS & members.keys() if members[key] != "function"}
        may_be_arguments = (labels & tools.properties(name).keys()) - arguments.keys()
        return None if may_be_arguments else (name, arguments)
    if name is None:
        return None
    beside = {key: value for key, value in members.items() if key not in names}
    if beside.get("type") == "function":
        del beside["type"]
    if name in tools:
        return (name, beside) if beside.keys() <= tools.properties(name).keys() else None
    return (name, {}) if is_marked and not beside else None


def _as_object(value: object) -> _Arguments | None:
    """Reads a string as JSON; nothing at all is an empty object."""
    value = read_json(value or "null") if isinstance(value, str) else value
    return {} if value is None else value if isinstance(value, dict) else None


def _nameless(arguments: _Arguments, tools: KnownTools) -> _Call | None:
    """``None`` where it could be two calls."""
    named = tools.named_by(arguments)
    by_arguments = None if named is None else (named, arguments)
    inner = arguments.get("name")
    if not isinstance(inner, str) or inner not in tools:
        return by_arguments
    rest = {key: value for key, value in arguments.items() if key != "name"}
    if len(rest) == 1 and (key := next(iter(rest))) in ARGUMENTS_KEYS:
        nested = _as_object(rest[key])
        return None if nested is None else (inner, nested)
    by_name = (inner, rest) if tools.takes(inner, rest) else None
    return None if by_name and by_arguments else by_name or by_arguments
