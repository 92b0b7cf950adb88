"""A noun that operators manage: its path in the REST API, its fields, and their values in a
command's text. Pure.

Noun ─▶ rows, bodies and schemas of REST            fleet.api.rows
     └─▶ flags of add and change                   fleet.management.verbs
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fleet.catalogue.kinds import Count, Flag, Money, NeuronNames, Number, Text, Word

DURATION = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
NONE_WORDS = ("", "none")
"""Texts of a command for JSON's ``null``."""


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names; each noun's service checks them."""

    def problem(self, value: object) -> str | None:
        is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if not is_list or any("\x00" in one for one in value):  # type: ignore[attr-defined]
            return f"{value!r} is not a list of names"
        return None


@dataclass(frozen=True, slots=True)
class Moment:
    """ISO 8601 in JSON, in UTC where it names no offset; ``None``: never."""

    def problem(self, value: object) -> str | None:
        if value is None:
            return None
        try:
            datetime.fromisoformat(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return f"{value!r} is not a moment, as in 2027-01-31T12:00:00Z"
        return None


Kind = Text | Word | Count | Number | Money | Flag | NeuronNames | Names | Moment


def moment_of(value: str | None) -> datetime | None:
    if value is None:
        return None
    return _parsed_moment(value)


def _parsed_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def value_of_text(kind: Kind, text: str) -> Any:
    """Returns the JSON value of a command's word. Raises ``ValueError`` with a message for users;
    the server checks whether the value is allowed."""
    match kind:
        case Flag():
            if text not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return text == "true"
        case Count() | Money():
            return _number(text, int, "a whole number")
        case Number():
            return _number(text, float, "a number")
        case NeuronNames() | Names():
            return names_of_text(text)
        case Moment():
            return None if text in (*NONE_WORDS, "never") else expiry(text).isoformat()
        case _:
            return text


def _number(text: str, read: Callable[[str], float], what: str) -> float | None:
    if text in NONE_WORDS:
        return None
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {what}, or none") from None


def names_of_text(text: str) -> list[str]:
    """Splits at commas and spaces."""
    return [word for word in re.split(r"[\s,]+", text) if word]


def expiry(text: str, *, now: datetime | None = None) -> datetime:
    """Reads ``30d``, ``12h``, or a date or moment in UTC. Raises ``ValueError``."""
    now = now or datetime.now(UTC)
    try:
        if match := DURATION.fullmatch(text):
            return now + timedelta(**{UNITS[match[2]]: int(match[1])})
        return _parsed_moment(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a duration, as in 30d or 12h, nor a date, as in 2027-01-31"
        ) from None


@dataclass(frozen=True, slots=True)
class Field:
    """``name`` is JSON's. ``flag`` is the command's, without dashes; empty: the name."""

    name: str
    kind: Kind
    help: str = ""
    _: KW_ONLY
    flag: str = ""
    placeholder: str = ""
    """The value's name in the command's help; empty: the flag in upper case."""
    is_required: bool = False
    may_change: bool = True

    @property
    def option(self) -> str:
        return f"--{self.flag or self.name.replace('_', '-')}"


def fixed(name: str, kind: Kind, help: str) -> Field:
    """A required field that cannot change."""
    return Field(name, kind, help, is_required=True, may_change=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """``path`` is below ``/api/``; one row is at ``path/{id}``, where its ``id`` may contain
    slashes. ``id_field`` is the row's field with the id, ``word`` the noun in messages."""

    path: str
    word: str
    id_field: str
    fields: tuple[Field, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    """Query parameters of the list, which are the flags of its command, with the rows' columns that
    must equal one of the values; empty: the list reads the parameter itself."""
    filter_help: Mapping[str, str] = field(default_factory=dict)
    """Help of the filters that are no lists of whole values."""
    id_help: str = ""
    id_metavar: str = ""
    """The id's name in a command's help; empty: the field's name in upper case."""
    id_pattern: str = ".+"
    """A regular expression of its ids. No URL has another one."""
    id_of_word: Callable[[str], str] = str

    @property
    def changeable(self) -> tuple[Field, ...]:
        return tuple(one for one in self.fields if one.may_change)
