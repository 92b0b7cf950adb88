"""A noun that operators manage: where it is in the REST API and which fields it has. Pure.

Noun ─▶ bodies of POST and PATCH      fleet.nouns.bodies
     ├─▶ flags of add and change      fleet.management.rows
     └─▶ request schemas              fleet.nouns.schema
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleet.nouns.field import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """``path`` is below ``/api/``; one row is at ``path/{id}``, where its ``id`` may hold slashes.
    ``id_field`` is the row's field that holds the id, ``word`` what messages call it."""

    path: str
    word: str
    id_field: str
    fields: tuple[Field, ...]
    filters: tuple[str, ...] = ()
    """Query parameters of the list, which are the flags of its command."""
    filter_help: Mapping[str, str] = field(default_factory=dict)
    """Help of the filters that are no lists of whole values."""
    id_help: str = ""
    id_pattern: str = ".+"
    """What its ids match. No URL has another one."""
    id_of_word: Callable[[str], str] = str
    """The id in the user's input."""

    @property
    def changeable(self) -> tuple[Field, ...]:
        return tuple(one for one in self.fields if one.may_change)
