"""Interprets a whole call, with repairs for usual mistakes.

    {"arguments": {"name": "f", "a": 1}}              the name inside of the arguments
    {"arguments": {"a": 1}}                           no name, and one tool takes just these
    {"name": "f", "arguments": "{\\"a\\": 1}"}          the arguments as a string
    {"name": "f", "a": 1}                             the arguments beside the name
    {"function": {"name": "f", "arguments": {…}}}     the API's own form

A repair drops no text and has one meaning. Other calls are ``None``, and the caller shows them as
text. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from inference.text.tool_calls.argument_values import fitted
from inference.text.tool_calls.call_reader import KnownTools, ReadCall
from inference.text.tool_calls.json_text import (
    compact_json,
    is_encodable,
    member_texts,
    read_json,
    repaired,
    repaired_string,
)

ARGUMENTS_KEYS = ("arguments", "parameters")
CALL_KEYS = frozenset({"name", *ARGUMENTS_KEYS, "function", "type", "id"})
"""Keys that a call object may have at its top."""
LABELS = frozenset({"type", "id"})
"""Keys beside a call that are no part of it."""

NO_SYNONYMS: Mapping[str, str] = MappingProxyType({})

_FIRST_KEY = re.compile(r'\{("(?:[^"\\]|\\.)*")', re.DOTALL)
_Call = tuple[str, dict[str, Any]]


def parse_call(
    copied: str,
    tools: KnownTools,
    *,
    is_marked: bool,
    synonyms: Mapping[str, str] = NO_SYNONYMS,
    lacks_brace: bool = False,
) -> tuple[ReadCall, bool] | None:
    """The call that an object makes, and whether there are objects among its own members; ``None``:
    no call. ``copied`` is a ``JsonCopy``'s text. ``is_marked``: it stood between markers, so that a
    name alone is a call too. ``lacks_brace``: it ended without its closing brace, which is left out
    where it can only be the last one: behind arguments with objects of their own the missing one
    could be any of theirs."""
    try:
        text, has_trailing_comma = repaired(f"{copied}}}" if lacks_brace else copied)
        given = read_json(text)
        members = {synonyms.get(key, key): value for key, value in given.items()}
        if len(members) < len(given) or (
            lacks_brace and (has_trailing_comma or not _ends_in_plain_arguments(members))
        ):
            return None
        call = _call_of(members, tools, is_marked=is_marked)
        if call is None:
            return None
        name, arguments = call
        kept = next((key for key in ARGUMENTS_KEYS if members.get(key) is arguments), None)
        # As they were written, unless a repair has changed them.
        written = compact_json(arguments) if kept is None else member_texts(text)[kept]
        if has_trailing_comma and not tools.may_be_all(name, written):
            return None
    except (ValueError, RecursionError):
        return None
    inner = (members.get(key) for key in (*ARGUMENTS_KEYS, "function"))
    return ReadCall(name, written), any(isinstance(one, dict) for one in inner)


def starts_no_call(copied: str, synonyms: Mapping[str, str]) -> bool:
    first = _FIRST_KEY.match(copied)
    if first is None:
        return copied == "{}"
    key = read_json(repaired_string(first.group(1)))
    return synonyms.get(key, key) not in CALL_KEYS


def named(members: Mapping[str, Any], synonyms: Mapping[str, str]) -> str:
    names = [value for key, value in members.items() if synonyms.get(key, key) == "name"]
    return names[0] if names and is_name(names[0]) else ""


def _ends_in_plain_arguments(members: dict[str, Any]) -> bool:
    key, arguments = next(reversed(members.items()), ("", None))
    return key in ARGUMENTS_KEYS and isinstance(arguments, dict) and not has_objects(arguments)


def _call_of(members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool) -> _Call | None:
    function = members.get("function")
    if isinstance(function, dict):
        is_alone = members.keys() - LABELS == {"function"}
        return _call_of(function, tools, is_marked=is_marked) if is_alone else None
    call = _resolve(members, tools, is_marked=is_marked)
    return None if call is None else (call[0], fitted(call[1], tools.schema(call[0])))


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and is_encodable(value)


def has_objects(value: object) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(one, dict) or has_objects(one) for one in inner)


def _resolve(members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool) -> _Call | None:
    names = [members[key] for key in ("name", "function") if members.get(key)]
    keys = [key for key in ARGUMENTS_KEYS if key in members]
    if len(names) > 1 or len(keys) > 1:
        return None
    name = names[0] if names else None
    if not keys:
        return _without_arguments(name, members, tools, is_marked=is_marked)
    arguments = _as_object(members[keys[0]])
    if arguments is None or members.keys() - CALL_KEYS:
        return None
    if name is None:
        return _nameless(arguments, tools)
    is_whole = is_name(name) and not _may_belong_to(arguments, str(name), members, tools)
    return (str(name), arguments) if is_whole else None


def _may_belong_to(
    arguments: Mapping[str, Any], name: str, members: Mapping[str, Any], tools: KnownTools
) -> bool:
    """Whether a label beside the arguments may be one of them, behind a brace too early."""
    labels = {key for key in LABELS & members.keys() if members[key] != "function"}
    return bool((labels & tools.properties(name).keys()) - arguments.keys())


def _as_object(value: object) -> dict[str, Any] | None:
    """A JSON object, also one written as a string; nothing at all stands for an empty one."""
    if isinstance(value, str):
        try:
            value = read_json(value or "null")
        except (ValueError, RecursionError):
            return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _without_arguments(
    name: object, members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool
) -> _Call | None:
    if not is_name(name):
        return None
    called = "name" if members.get("name") else "function"
    properties = tools.properties(str(name)).keys()
    beside = {
        key: value
        for key, value in members.items()
        if key != called and (key, value) != ("type", "function")
    }
    if name in tools:
        return (str(name), beside) if beside.keys() <= properties else None
    return (str(name), {}) if is_marked and not beside else None


def _nameless(arguments: dict[str, Any], tools: KnownTools) -> _Call | None:
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
