"""A call that was read whole before it could be named: what the model meant by it.

    {"arguments": {"name": "f", "a": 1}}              the name inside of the arguments
    {"arguments": {"a": 1}}                           no name, and one tool takes just these
    {"name": "f", "arguments": "{\\"a\\": 1}"}          the arguments as a string
    {"name": "f", "a": 1}                             the arguments beside the name
    {"function": {"name": "f", "arguments": {…}}}     the API's own form

Pure. What is not understood is ``None``, and the caller shows it as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from inference.text.tool_calls.json_scanner import compact_json, is_encodable
from inference.text.tool_calls.known_tools import KnownTools

ARGUMENTS_KEYS = ("arguments", "parameters")
CALL_KEYS = frozenset({"name", *ARGUMENTS_KEYS, "function", "type", "id"})
"""What a call object may hold at its top."""

_Call = tuple[str, dict[str, Any]]


class ResolvedCall(NamedTuple):
    name: str
    arguments: str
    """A JSON object."""


def resolve_call(
    members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool
) -> ResolvedCall | None:
    """The call that an object's members make. ``is_marked``: it stood between markers, so that a
    name alone is a call too."""
    function = members.get("function")
    if isinstance(function, dict):
        return resolve_call(function, tools, is_marked=is_marked)
    call = _resolve(members, tools, is_marked=is_marked)
    if call is None:
        return None
    name, arguments = call
    try:
        return ResolvedCall(name, compact_json(arguments))
    except (ValueError, RecursionError):
        return None


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and is_encodable(value)


def _resolve(members: Mapping[str, Any], tools: KnownTools, *, is_marked: bool) -> _Call | None:
    name = members.get("name") or members.get("function")
    key = next((key for key in ARGUMENTS_KEYS if key in members), None)
    if key is None:
        return _without_arguments(name, members, tools, is_marked=is_marked)
    arguments = _as_object(members[key])
    if arguments is None:
        return None
    if is_name(name):
        return str(name), arguments
    return None if name else _nameless(arguments, tools)


def _as_object(value: object) -> dict[str, Any] | None:
    """A JSON object, also one written as a string; nothing at all stands for an empty one."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "null", strict=False)
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
    beside = {key: value for key, value in members.items() if key not in CALL_KEYS}
    if name in tools:
        return (str(name), beside) if beside.keys() <= tools.properties(str(name)).keys() else None
    return (str(name), {}) if is_marked and not beside else None


def _nameless(arguments: dict[str, Any], tools: KnownTools) -> _Call | None:
    named = tools.named_by(arguments)
    by_arguments = None if named is None else (named, arguments)
    inner = arguments.get("name")
    if not isinstance(inner, str) or inner not in tools:
        return by_arguments
    rest = {key: value for key, value in arguments.items() if key != "name"}
    if len(rest) == 1 and (key := next(iter(rest))) in ARGUMENTS_KEYS:
        nested = _as_object(rest[key])
        return None if nested is None else (inner, nested)
    by_name = (inner, rest)
    return by_name if tools.takes(inner, rest) else by_arguments or by_name
