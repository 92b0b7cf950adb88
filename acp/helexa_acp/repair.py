"""Repairs malformed calls of models. Pure.

Up to three superfluous closing braces are dropped, where none may be of an inner object; a name
inside the arguments is moved out; a missing name is inferred from the arguments' keys where only
one tool fits. Nothing else is left out, and a text that could be two calls is none: the server's
``call_repairs`` does the same (``tests/acp/test_repair.py`` compares them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from helexa_acp.history import clean
from helexa_acp.wire import Json, ToolSpec

MAX_SPARE_BRACES = 3
ARGUMENTS_KEYS = ("arguments", "parameters")
LABELS = frozenset({"type", "id"})
CALL_KEYS = frozenset({"name", "function", *ARGUMENTS_KEYS, *LABELS})
AMBIGUOUS_KEYS = frozenset({"path"})
"""Keys of several tools, which identify none of them alone."""
Call = tuple[str, Json]


class NotUnderstood(ValueError):  # noqa: N818 - a finding, and its text a reason
    pass


def understand(name: str, written: str, specs: Sequence[ToolSpec]) -> Call:
    """The tool's name and the arguments. ``written`` is the JSON text of the arguments, possibly
    malformed; of the whole call where ``name`` is empty. Raises NotUnderstood."""
    arguments, is_trimmed = _arguments(written)
    if any(spec.name == name for spec in specs):
        return name, arguments
    has_inner = bool(arguments.keys() & {*ARGUMENTS_KEYS, "function"})
    if not name and not has_inner and is_trimmed:
        raise NotUnderstood("one of its braces may be of an object whose beginning is missing")
    if name and not isinstance(arguments.get("name"), str):
        raise NotUnderstood(f"there is no tool named {name!r}")
    return _read(arguments, specs)


def _read(members: Json, specs: Sequence[ToolSpec]) -> Call:
    function = members.get("function")
    if isinstance(function, dict) and members.keys() - LABELS == {"function"}:
        return _read(function, specs)
    keys = [key for key in ARGUMENTS_KEYS if key in members]
    if not keys:
        return _nameless(members, specs)
    names = [members[key] for key in ("name", "function") if members.get(key)]
    inner = members[keys[0]]
    if isinstance(inner, str):
        inner, _ = _arguments(inner)
    if not isinstance(inner, dict | None):
        raise NotUnderstood("its arguments are not a JSON object")
    if len(keys) > 1 or len(names) > 1 or members.keys() - CALL_KEYS:
        raise NotUnderstood("there is more beside its arguments")
    if not names:
        return _nameless(inner or {}, specs)
    if not any(spec.name == names[0] for spec in specs):
        raise NotUnderstood(f"there is no tool named {names[0]!r}")
    return names[0], inner or {}


def _nameless(arguments: Json, specs: Sequence[ToolSpec]) -> Call:
    """The name may be one of the arguments, or be inferred from them."""
    fitting = [spec.name for spec in specs if _fits(arguments, spec)]
    can_infer = len(fitting) == 1 and not arguments.keys() <= AMBIGUOUS_KEYS
    named = next((spec for spec in specs if spec.name == arguments.get("name")), None)
    rest = {key: value for key, value in arguments.items() if key != "name"}
    if named is not None:
        if len(rest) == 1 and next(iter(rest)) in ARGUMENTS_KEYS:
            return _read(arguments, specs)
        if not rest:
            return named.name, rest
        if _fits(rest, named):
            if can_infer:
                raise NotUnderstood("it may be two calls")
            return named.name, rest
    if not can_infer:
        raise NotUnderstood("it names no tool, and its arguments fit none or several")
    return fitting[0], arguments


def _fits(keys: Iterable[str], spec: ToolSpec) -> bool:
    required = spec.parameters.get("required")
    known = set(spec.parameters.get("properties") or ())
    return set(required if isinstance(required, list) else ()) <= set(keys) <= known


def _arguments(written: str) -> tuple[Json, bool]:
    """The members, and whether braces were dropped. An empty text is a call without arguments.
    Raises NotUnderstood."""
    text = written.strip() or "{}"
    for num_dropped in range(MAX_SPARE_BRACES + 1):
        try:
            read = clean(json.loads(text, strict=False, object_pairs_hook=_unique))
        except (ValueError, RecursionError):
            if not text.endswith("}"):
                break
            text = text[:-1].rstrip()
            continue
        if not isinstance(read, dict):
            break
        return read, num_dropped > 0
    raise NotUnderstood("its arguments are not a JSON object")


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members
