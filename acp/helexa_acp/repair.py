"""Repairs malformed calls of models. Pure.

Up to three superfluous closing braces are dropped, where none may be of an inner object; a name
inside the arguments is moved out; a missing name is inferred from the arguments' keys where only
one tool fits. Nothing else is left out, and a text that could be two calls is none: the server's
``call_repairs`` does the same (``tests/acp/test_repair.py`` compares them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helexa_acp.history import clean

MAX_SPARE_BRACES = 3
ARGUMENTS_KEYS = ("arguments", "parameters")
LABELS = frozenset({"type", "id"})
CALL_KEYS = frozenset({"name", "function", *ARGUMENTS_KEYS, *LABELS})
AMBIGUOUS_KEYS = frozenset({"path"})
"""Keys of several tools, which identify none of them alone."""


@dataclass(frozen=True, slots=True)
class Understood:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    why: str


@dataclass(frozen=True, slots=True)
class Signature:
    """A tool's name and the names of its arguments."""

    name: str
    keys: frozenset[str]
    required: frozenset[str]


def understand(
    name: str, written: str, signatures: Sequence[Signature]
) -> Understood | NotUnderstood:
    """``written`` is the JSON text of the arguments, possibly malformed; of the whole call where
    ``name`` is empty."""
    arguments = _arguments(written)
    if arguments is None:
        return NotUnderstood("its arguments are not a JSON object")
    known = {signature.name for signature in signatures}
    if name in known:
        return Understood(name, arguments)
    has_inner = bool(arguments.keys() & {*ARGUMENTS_KEYS, "function"})
    if not name and not has_inner and not _is_json(written):
        return NotUnderstood("one of its braces may be of an object whose beginning is missing")
    if name and not isinstance(arguments.get("name"), str):
        return _unknown(name)
    return _read(arguments, signatures)


def _read(members: dict[str, Any], signatures: Sequence[Signature]) -> Understood | NotUnderstood:
    function = members.get("function")
    if isinstance(function, dict) and members.keys() - LABELS == {"function"}:
        return _read(function, signatures)
    keys = [key for key in ARGUMENTS_KEYS if key in members]
    if not keys:
        return _nameless(members, signatures)
    names = [members[key] for key in ("name", "function") if members.get(key)]
    inner = members[keys[0]]
    if isinstance(inner, str):
        inner = _arguments(inner)
    if inner is None:
        inner = {}
    if not isinstance(inner, dict):
        return NotUnderstood("its arguments are not a JSON object")
    if len(keys) > 1 or len(names) > 1 or members.keys() - CALL_KEYS:
        return NotUnderstood("there is more beside its arguments")
    if not names:
        return _nameless(inner, signatures)
    name = names[0]
    if name not in {signature.name for signature in signatures}:
        return _unknown(name)
    return Understood(name, inner)


def _unknown(name: object) -> NotUnderstood:
    return NotUnderstood(f"there is no tool named {name!r}")


def _nameless(
    arguments: dict[str, Any], signatures: Sequence[Signature]
) -> Understood | NotUnderstood:
    """The name may be one of the arguments, or be inferred from them."""
    inferred = _inferred(arguments, signatures)
    inner = arguments.get("name")
    signature = next((one for one in signatures if one.name == inner), None)
    if signature is None:
        return inferred
    rest = {key: value for key, value in arguments.items() if key != "name"}
    if len(rest) == 1 and next(iter(rest)) in ARGUMENTS_KEYS:
        return _read(arguments, signatures)
    if not rest:
        return Understood(signature.name, rest)
    if not signature.required <= rest.keys() <= signature.keys:
        return inferred
    if isinstance(inferred, Understood):
        return NotUnderstood("it may be two calls")
    return Understood(signature.name, rest)


def _arguments(written: str) -> dict[str, Any] | None:
    """An empty text is a call without arguments."""
    text = written.strip() or "{}"
    for _ in range(MAX_SPARE_BRACES + 1):
        try:
            read = clean(json.loads(text, strict=False, object_pairs_hook=_unique))
        except (ValueError, RecursionError):
            if not text.endswith("}"):
                return None
            text = text[:-1].rstrip()
            continue
        return read if isinstance(read, dict) else None
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text.strip() or "{}", strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


def _inferred(
    arguments: Mapping[str, Any], signatures: Sequence[Signature]
) -> Understood | NotUnderstood:
    keys = frozenset(arguments)
    if not keys or keys <= AMBIGUOUS_KEYS:
        return NotUnderstood("it names no tool")
    fitting = [one.name for one in signatures if one.required <= keys <= one.keys]
    if len(fitting) != 1:
        return NotUnderstood("it names no tool, and its arguments fit none or several")
    return Understood(fitting[0], dict(arguments))
