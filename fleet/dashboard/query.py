"""The board's query (searches, filters, folds, pages), and one page of a list. Pure.

It is in the address, and in the board: each refresh sends it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar
from urllib.parse import urlencode

from django.http import QueryDict

MAX_PAGE = 10_000


class Shown(StrEnum):
    ALL = ""
    LOADED = "loaded"
    ACTIVE = "active"
    PROBLEMS = "problems"
    UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardQuery:
    models: str = ""
    shown: Shown = Shown.ALL
    models_page: int = 1
    neurons: str = ""
    neurons_page: int = 1
    flipped: frozenset[str] = frozenset()
    """Neurons folded where they would be unfolded, and the reverse."""
    kept_models: tuple[str, ...] = ()
    kept_neurons: tuple[str, ...] = ()
    """The rows shown at present: a refresh leaves each in its place."""

    @classmethod
    def of(cls, query: QueryDict) -> Self:
        """Unreadable values are ignored."""
        shown = query.get("shown", "")
        return cls(
            models=query.get("models", "").strip(),
            shown=Shown(shown) if shown in set(Shown) else Shown.ALL,
            models_page=_page(query.get("models_page", "")),
            neurons=query.get("neurons", "").strip(),
            neurons_page=_page(query.get("neurons_page", "")),
            flipped=frozenset(query.get("flipped", "").split()),
            kept_models=tuple(query.get("kept_models", "").split()),
            kept_neurons=tuple(query.get("kept_neurons", "").split()),
        )

    def url_query(self) -> str:
        """The query of an address, without kept rows; empty where nothing is set."""
        asked = {
            "models": self.models,
            "shown": self.shown.value,
            "models_page": self.models_page if self.models_page > 1 else "",
            "neurons": self.neurons,
            "neurons_page": self.neurons_page if self.neurons_page > 1 else "",
            "flipped": " ".join(sorted(self.flipped)),
        }
        found = urlencode({key: value for key, value in asked.items() if value})
        return f"?{found}" if found else ""


def _page(words: str) -> int:
    if words.isascii() and words.isdigit() and 1 <= int(words[:9]) <= MAX_PAGE:
        return int(words[:9])
    return 1


class Named(Protocol):
    @property
    def name(self) -> str: ...


Line = TypeVar("Line", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[Line]):
    """``lines`` are those of ``page``; pages count from 1, and an empty list has one. ``noun``: the
    query's fields are named by it."""

    noun: str
    query: BoardQuery
    lines: tuple[Line, ...]
    page: int
    page_size: int
    num_lines: int

    @property
    def num_pages(self) -> int:
        return max(1, -(-self.num_lines // self.page_size))

    @property
    def words(self) -> str:
        """Empty where it has one page."""
        if self.num_pages == 1:
            return ""
        first = (self.page - 1) * self.page_size + 1
        return f"{first:,} to {first + len(self.lines) - 1:,} of {self.num_lines:,}"

    @property
    def kept(self) -> str:
        return " ".join(line.name for line in self.lines)

    @property
    def previous(self) -> str:
        """The query of an address; empty at the ends."""
        return self._at(self.page - 1) or "?" if self.page > 1 else ""

    @property
    def next(self) -> str:
        return self._at(self.page + 1) if self.page < self.num_pages else ""

    def _at(self, page: int) -> str:
        there: dict[str, Any] = {f"{self.noun}_page": page}
        return replace(self.query, **there).url_query()


def listing_of(
    noun: str,
    lines: Iterable[Line],
    query: BoardQuery,
    *,
    rank: Callable[[Line], int],
    page_size: int,
) -> Listing[Line]:
    """The lines of the lowest rank first, each rank by name. Kept names are those on this page so
    far: they keep their order, whatever their rank is by now; lines of other pages replace missing
    ones. A page past the last one is the last one."""
    ordered = sorted(lines, key=lambda line: (rank(line), line.name))
    last_page = max(1, -(-len(ordered) // page_size))
    page = min(getattr(query, f"{noun}_page"), last_page)
    start = (page - 1) * page_size
    chosen = ordered[start : start + page_size]
    if kept := getattr(query, f"kept_{noun}"):
        by_name = {line.name: line for line in ordered}
        stay = [by_name.pop(name) for name in dict.fromkeys(kept) if name in by_name]
        others = [line for line in chosen if line.name in by_name]
        chosen = [*stay, *others][: len(chosen)]
    return Listing(
        noun=noun,
        query=query,
        lines=tuple(chosen),
        page=page,
        page_size=page_size,
        num_lines=len(ordered),
    )
