"""Makes sense of calls that models write wrongly. Pure.

Up to three closing braces too many are dropped; a name that was written inside the arguments is
taken from there; a missing name is inferred from the arguments' keys where only one tool fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helexa_acp.history import clean

MAX_SPARE_BRACES = 3
AMBIGUOUS_KEYS = frozenset({"path"})
"""Keys that several tools take and that say too little, alone."""


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
    """``written`` is the JSON text of the arguments, as far as it is that."""
    arguments = _arguments(written)
    if arguments is None:
        return NotUnderstood("its arguments are not a JSON object")
    known = {signature.name for signature in signatures}
    if name not in known and isinstance(hoisted := arguments.get("name"), str):
        inner = arguments.get("arguments", arguments.get("parameters"))
        if isinstance(inner, str):
            inner = _arguments(inner)
        if isinstance(inner, dict):
            name, arguments = hoisted, inner
        elif hoisted in known:
            name = hoisted
            arguments = {key: value for key, value in arguments.items() if key != "name"}
    if name in known:
        return Understood(name, arguments)
    if name:
        return NotUnderstood(f"there is no tool named {name!r}")
    return _inferred(arguments, signatures)


def _arguments(written: str) -> dict[str, Any] | None:
    """An empty text is a call without arguments."""
    text = written.strip() or "{}"
    for _ in range(MAX_SPARE_BRACES + 1):
        try:
            read = clean(json.loads(text))
        except (ValueError, RecursionError):
            if not text.endswith("}"):
                return None
            text = text[:-1].rstrip()
            continue
        return read if isinstance(read, dict) else None
    return None


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
