"""One page of a long list, whose rows stay where they are while the reader looks at them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


Line = TypeVar("Line", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[Line]):
    """``lines`` are those of ``page``; pages count from 1, and an empty list has one."""

    lines: tuple[Line, ...]
    page: int
    num_pages: int
    num_lines: int
    """How many lines there are on all pages."""


def page_of(
    lines: Iterable[Line],
    *,
    rank: Callable[[Line], int],
    page: int,
    page_size: int,
    kept: Sequence[str] = (),
) -> Listing[Line]:
    """The lines of the lowest rank first, each rank by name. ``kept`` are the names on this page so
    far: they keep their order, whatever their rank is by now, and a line that is gone leaves its
    place to lines of other pages. A page past the last one is the last one."""
    ordered = sorted(lines, key=lambda line: (rank(line), line.name))
    num_pages = max(1, -(-len(ordered) // page_size))
    page = min(page, num_pages)
    start = (page - 1) * page_size
    chosen = ordered[start : start + page_size]
    if kept:
        by_name = {line.name: line for line in ordered}
        stay = [by_name.pop(name) for name in dict.fromkeys(kept) if name in by_name]
        others = [line for line in chosen if line.name in by_name]
        chosen = [*stay, *others][: len(chosen)]
    return Listing(lines=tuple(chosen), page=page, num_pages=num_pages, num_lines=len(ordered))
