"""Calls written as JSON: objects in a row, lists of objects, or a head and its arguments. Pure.

    {…}      {…}; {…}      {…}\\n{…}      [{…}, {…}]      f:0 {…}

Usual mistakes are repaired, where that drops no text and has one meaning:

    {"arguments": {"name": "f", "a": 1}}              the name inside of the arguments
    {"arguments": {"a": 1}}                           no name, and one tool takes just these
    {"name": "f", "arguments": "{\\"a\\": 1}"}          the arguments as a string
    {"name": "f", "a": 1}                             the arguments beside the name
    {"function": {"name": "f", "arguments": {…}}}     the API's own form
    {"name": "f", "arguments": {…}}}                  up to three closing braces too many
    {"name": "f", "arguments": {"a": True, }          Python's words, a comma or a brace at the end
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
    compact_json,
    fitted,
    is_encodable,
    read_json,
)
from inference.text.tool_calls.block_ends import BracketEnds
from inference.text.tool_calls.call_parser import Notation, Parsed, ReadCall, begins_by

ARGUMENTS_KEYS = ("arguments", "parameters")
CALL_KEYS = frozenset({"name", *ARGUMENTS_KEYS, "function", "type", "id"})
"""Keys that a call object may have at its top."""
LABELS = frozenset({"type", "id"})
"""Keys beside a call that are no part of it."""
NO_SYNONYMS: Mapping[str, str] = MappingProxyType({})
MAX_EXTRA_BRACES = 3
CLOSERS = {"{": "}", "[": "]"}

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[-+.0-9A-Za-z]+|[{}\[\]:,]|[ \t\r\n]+', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")
_DECODER = json.JSONDecoder(strict=False)


class WrittenObject(NamedTuple):
    text: str
    """Repaired, without white space outside of strings."""
    end: int
    value: dict[str, Any]
    lacks_brace: bool = False
    """Whether its own closing brace is missing."""
    has_trailing_comma: bool = False
    """Whether a member or an item may be missing behind a comma."""


def read_object(text: str, start: int) -> WrittenObject:
    """The object whose brace stands at ``start``. Corrects control characters in strings, unknown
    escapes, trailing commas, Python's True, False and None. Raises ``ValueError`` for what cannot
    be JSON, and ``RecursionError``."""
    tokens: list[str] = []
    opened: list[str] = []
    has_trailing_comma = lacks_brace = False
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
            has_trailing_comma = _drop_comma(tokens) or has_trailing_comma
        position = found.end()
        if not token.isspace():
            tokens.append(_repaired_token(token))
        if not opened:
            break
    if opened:
        lacks_brace = opened == ["}"]
        if not lacks_brace or tokens[-1] == ",":
            raise ValueError("an object without an end")
        tokens.append("}")
    value = read_json(" ".join(tokens))
    return WrittenObject("".join(tokens), position, value, lacks_brace, has_trailing_comma)


def _drop_comma(tokens: list[str]) -> bool:
    if tokens[-1] != ",":
        return False
    tokens.pop()
    if tokens[-1] in CLOSERS:
        raise ValueError("a comma behind nothing")
    return True


def _repaired_token(token: str) -> str:
    if token[0] == '"':
        return repaired_string(token)
    if token in "{}[]:,":
        return token
    literal = LITERALS.get(token)
    is_number = len(token) <= MAX_SCALAR_LENGTH and NUMBER.fullmatch(token)
    if literal is None and not is_number:
        raise ValueError("a word that is no value")
    return literal or token


def repaired_string(string: str) -> str:
    """An escape that JSON does not have was meant as it stands: its backslash is doubled."""
    escaped = _ESCAPE.sub(_repaired_escape, string)
    return _CONTROL_CHARACTER.sub(lambda found: json.dumps(found.group())[1:-1], escaped)


def _repaired_escape(escape: re.Match[str]) -> str:
    after = escape.group(1)
    if after == "'":
        return after
    is_known = len(after) > 1 or after in '"\\/bfnrt'
    return escape.group() if is_known else f"\\{escape.group()}"


def _member_text(text: str, name: str) -> str:
    """The JSON text of a member's value in an object without white space."""
    position = 1
    while True:
        key, colon = _DECODER.raw_decode(text, position)
        _, end = _DECODER.raw_decode(text, colon + 1)
        if key == name:
            return text[colon + 1 : end]
        position = end + 1


class JsonStyle(NamedTuple):
    is_marked: bool = True
    """Whether the calls stand behind a marker. Without one, an object with other keys than a call's
    is the answer itself, and a name alone no call."""
    synonyms: Mapping[str, str] = NO_SYNONYMS
    """The format's keys, and those of a call that they stand for."""


_START = re.compile(r"\s*\[?\s*(?P<begun>\{)?")
_UNMARKED_START = re.compile(r'\s*\[?\s*(?:\{(?:\{?\s*(?P<begun>")?)?)?')
_CALL_KEY = f'"(?:{"|".join(sorted(CALL_KEYS))})"'
_FOREIGN = re.compile(
    rf'\s*\[?\s*\{{\{{?\s*(?:{_CALL_KEY}\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)*'
    rf'(?!{_CALL_KEY})"(?:[^"\\]|\\.)*"'
)
"""An object's own keys up to one that no call has."""


MARKED = JsonStyle()


def json_notation(tools: KnownTools, style: JsonStyle = MARKED) -> Notation:
    return Notation(
        begins_by(_START if style.is_marked else _UNMARKED_START),
        lambda _text, markers: BracketEnds(markers),
        partial(parse_json_calls, tools=tools, style=style),
        partial(_head, style.synonyms),
        None if style.is_marked else _FOREIGN,
    )


_HEAD = re.compile(
    r'[\s}\],;\[]*\{\s*(?:"\w+"\s*:\s*"[^"\\]*"\s*,\s*)?'
    r'"(?P<key>\w+)"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


def _head(synonyms: Mapping[str, str], text: str, position: int) -> tuple[str, int] | None:
    """A call up to its arguments, as grammars hold answers to it."""
    found = _HEAD.match(text, position)
    if found is None or synonyms.get(found["key"], found["key"]) != "name":
        return None
    name = read_json(repaired_string(found["name"]))
    return (name, found.end()) if is_name(name) else None


_BRACES = rf"(?:\s*\}}){{0,{MAX_EXTRA_BRACES}}}"
_BETWEEN = re.compile(rf"(?P<braces>{_BRACES})(?P<gap>[\s,;]*)")
_BETWEEN_IN_LIST = re.compile(
    rf"(?P<braces>{_BRACES})(?P<closed>[\s,;]*\]{_BRACES})?(?P<gap>[\s,;]*)"
)


def parse_json_calls(text: str, *, tools: KnownTools, style: JsonStyle) -> Parsed | None:
    calls: list[ReadCall] = []
    start = _START.match(text)
    assert start is not None
    position, end = start.end() - len(start["begun"] or ""), 0
    is_list, gap = "[" in start.group(), ""
    while text.startswith("{", position):
        is_doubled = text.startswith("{{", position)
        try:
            written = read_object(text, position + is_doubled)
            call = parse_call(written, tools, style)
        except (ValueError, RecursionError):
            call = None
        if call is None:
            is_inside = not gap or ("\n" not in gap and _starts_no_call(text, position, style))
            return None if is_inside or not calls else Parsed(calls, end, is_broken=True)
        calls.append(call)
        between = (_BETWEEN_IN_LIST if is_list else _BETWEEN).match(text, written.end)
        assert between is not None
        is_closed = is_list and bool(between["closed"])
        is_list, gap = is_list and not is_closed, between["gap"]
        position, end = between.end(), between.start("gap")
        if _is_part_of(text, written, between["braces"], is_doubled=is_doubled):
            return None
        if between["braces"] and not gap and text.startswith("{", position):
            return None
    return Parsed(calls, end) if calls else None


def _is_part_of(text: str, written: WrittenObject, braces: str, *, is_doubled: bool) -> bool:
    """Whether what follows an object may be a part of it: behind a missing brace of its own, and a
    brace too many, which may end an object inside of it whose beginning is missing."""
    if written.lacks_brace:
        return text[written.end : written.end + 1] in ("{", "}", ",", ";")
    inner = (written.value.get(key) for key in (*ARGUMENTS_KEYS, "function"))
    may_lack_opening = not (is_doubled or any(isinstance(one, dict) for one in inner))
    return may_lack_opening and bool(braces)


_FIRST_KEY = re.compile(r'\{\{?\s*(?P<key>"(?:[^"\\]|\\.)*")', re.DOTALL)


def _starts_no_call(text: str, position: int, style: JsonStyle) -> bool:
    first = _FIRST_KEY.match(text, position)
    if first is None:
        return re.compile(r"\{\s*\}").match(text, position) is not None
    try:
        key = read_json(repaired_string(first["key"]))
    except ValueError:
        return True
    return style.synonyms.get(key, key) not in CALL_KEYS


_Arguments = dict[str, Any]
_Call = tuple[str, _Arguments]


def parse_call(written: WrittenObject, tools: KnownTools, style: JsonStyle) -> ReadCall | None:
    """The call that an object makes. A missing brace is added where it can only be the last one:
    behind arguments with objects of their own it could be any of theirs. Raises ``ValueError``."""
    given = written.value
    members = {style.synonyms.get(key, key): value for key, value in given.items()}
    if len(members) < len(given) or not (style.is_marked or members.keys() <= CALL_KEYS):
        return None
    if written.lacks_brace and (
        written.has_trailing_comma or not _ends_in_plain_arguments(members)
    ):
        return None
    call = _call_of(members, tools, is_marked=style.is_marked)
    if call is None:
        return None
    name, arguments = call[0], fitted(call[1], tools.schema(call[0]))
    if written.has_trailing_comma and not tools.may_be_all(name, arguments):
        return None
    kept = next((key for key in ARGUMENTS_KEYS if members.get(key) is arguments), None)
    # As they were written, unless a repair has changed them.
    text = compact_json(arguments) if kept is None else _member_text(written.text, kept)
    return ReadCall(name, text)


def _ends_in_plain_arguments(members: dict[str, Any]) -> bool:
    key, arguments = next(reversed(members.items()), ("", None))
    return key in ARGUMENTS_KEYS and isinstance(arguments, dict) and not _has_objects(arguments)


def _has_objects(value: object) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(one, dict) or _has_objects(one) for one in inner)


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and is_encodable(value)


def _call_of(members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool) -> _Call | None:
    if isinstance(function := members.get("function"), dict):
        is_alone = members.keys() - LABELS == {"function"}
        return _call_of(function, tools, is_marked=is_marked) if is_alone else None
    names = [key for key in ("name", "function") if members.get(key)]
    keys = [key for key in ARGUMENTS_KEYS if key in members]
    name = members[names[0]] if names else None
    if len(names) > 1 or len(keys) > 1 or not (name is None or is_name(name)):
        return None
    if keys:
        return _with_arguments(name, members, _as_object(members[keys[0]]), tools)
    if name is None:
        return None
    beside = {key: value for key, value in members.items() if key not in names}
    if beside.get("type") == "function":
        del beside["type"]
    if name in tools:
        return (name, beside) if beside.keys() <= tools.properties(name).keys() else None
    return (name, {}) if is_marked and not beside else None


def _with_arguments(
    name: str | None, members: Mapping[str, Any], arguments: _Arguments | None, tools: KnownTools
) -> _Call | None:
    if arguments is None or members.keys() - CALL_KEYS:
        return None
    if name is None:
        return _nameless(arguments, tools)
    # A label beside the arguments may be one of them, behind a brace too early.
    labels = {key for key in LABELS & members.keys() if members[key] != "function"}
    may_be_arguments = (labels & tools.properties(name).keys()) - arguments.keys()
    return None if may_be_arguments else (name, arguments)


def _as_object(value: object) -> _Arguments | None:
    """A JSON object, also one written as a string; nothing at all stands for an empty one. Raises
    ``ValueError``."""
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
