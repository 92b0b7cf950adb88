"""What the values of keywords that assert something must be. llguidance refuses most others, some
of them by a panic, and ignores the rest where the type does not call for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inference.text.schemas.numbers import is_number


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_exclusive_bound(value: Any) -> bool:
    """A boolean in draft 4."""
    return is_number(value) or isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def _are_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (is_number, "a number")),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_is_exclusive_bound, "a number")),
    **dict.fromkeys(
        (
            *("minLength", "maxLength", "minItems", "maxItems"),
            *("minProperties", "maxProperties"),
        ),
        (_is_count, "a whole number, not below 0"),
    ),
    **dict.fromkeys(("pattern", "format", "$ref"), (_is_text, "a string")),
    "required": (_are_texts, "a list of strings"),
    "enum": (_is_list, "a list"),
    "type": (_are_types, f"one of {', '.join(sorted(TYPES))}, or a list of them"),
}


def type_problem(keyword: str, value: Any) -> str | None:
    """Why ``value`` cannot be the keyword's; ``None``: it can, or nothing is expected of it."""
    is_right, expected = EXPECTED.get(keyword, (None, ""))
    if is_right is None or is_right(value):
        return None
    return f"{keyword!r} is {expected}"
