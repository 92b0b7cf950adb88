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

from collections.abc import Mapping
from typing import Any, NamedTuple

from inference.text.tool_calls.argument_values import fitted
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.json_scanner import is_encodable, read_json

ARGUMENTS_KEYS = ("arguments", "parameters")
CALL_KEYS = frozenset({"name", *ARGUMENTS_KEYS, "function", "type", "id"})
"""What a call object may hold at its top."""
LABELS = frozenset({"type", "id"})
"""What stands beside a call and is no part of it."""

_Call = tuple[str, dict[str, Any]]


class ResolvedCall(NamedTuple):
    name: str
    arguments: dict[str, Any]
    """The call's arguments object, as it was read."""


def resolve_call(
    members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool
) -> ResolvedCall | None:
    """The call that an object's members make. ``is_marked``: it stood between markers, so that a
    name alone is a call too."""
    function = members.get("function")
    if isinstance(function, dict):
        is_alone = members.keys() - LABELS == {"function"}
        return resolve_call(function, tools, is_marked=is_marked) if is_alone else None
    call = _resolve(members, tools, is_marked=is_marked)
    if call is None:
        return None
    name, arguments = call
    return ResolvedCall(name, fitted(arguments, tools.schema(name)))


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and is_encodable(value)


def has_objects(value: object) -> bool:
    """Whether there are objects inside of it."""
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
    """What could be two calls is none."""
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
