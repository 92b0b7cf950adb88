"""The board's query (searches, filters, folds, pages), and one page of a list. Pure.

It is in the address, and in the board: each refresh sends it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Protocol, Self, TypeVar
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.http import QueryDict


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardQuery:
    """Lists are names, separated by spaces. Unreadable values count as empty."""

    models: str = ""
    shown: str = ""
    models_page: str = ""
    neurons: str = ""
    neurons_page: str = ""
    flipped: str = ""
    """Neurons folded where they would be unfolded, and the reverse."""
    kept_models: str = ""
    kept_neurons: str = ""
    """The rows shown at present: a refresh leaves each in its place."""

    @classmethod
    def of(cls, query: QueryDict) -> Self:
        return cls(**{one.name: query.get(one.name, "").strip() for one in fields(cls)})

    def address(self, **changes: str) -> str:
        """The query of an address, without kept rows; ``?`` where nothing is set."""
        asked = asdict(self) | changes | {"kept_models": "", "kept_neurons": ""}
        return f"?{urlencode({name: value for name, value in asked.items() if value})}"


class Named(Protocol):
    @property
    def name(self) -> str: ...


Line = TypeVar("Line", bound=Named)


def page_of(
    lines: Iterable[Line], *, rank: Callable[[Line], int], size: int, number: str, kept: str
) -> Page[Line]:
    """The lines of the lowest rank first, each rank by name. Kept names are those on this page so
    far: they keep their order, whatever their rank is by now; lines of other pages replace missing
    ones. A page past the last one is the last one."""
    ordered = sorted(lines, key=lambda line: (rank(line), line.name))
    page = Paginator(ordered, size).get_page(number)
    if kept:
        by_name = {line.name: line for line in ordered}
        stay = [by_name.pop(name) for name in dict.fromkeys(kept.split()) if name in by_name]
        others = [line for line in page if line.name in by_name]
        page.object_list = [*stay, *others][: len(page)]
    return page
