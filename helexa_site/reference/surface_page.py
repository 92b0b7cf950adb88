"""Writes docs/operating/surface.md: each noun and verb with its doors."""

from __future__ import annotations

from collections.abc import Iterator

from helexa_site.bootstrap.installing.environment import REPOSITORY_DIR
from helexa_site.reference.deeds import ADMIN_ALONE, DEEDS, NOT_DONE_BY_OPERATORS, Deed

PAGE = REPOSITORY_DIR / "docs" / "operating" / "surface.md"
INTRODUCTION = """\
# One surface, three doors

<!-- Written by `python -m helexa_site.reference`. -->

Every door calls the same service, which checks, writes and leaves the same audit entry. The admin's
column names the model and the operation.

| noun | verb | REST | command | admin | service |
|---|---|---|---|---|---|
"""


def page() -> str:
    return INTRODUCTION + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from map(_line, DEEDS)
    yield "\n## Services that operators do not ask for\n\n| service | who does |\n|---|---|"
    yield from (f"| `{name}` | {why} |" for name, why in NOT_DONE_BY_OPERATORS.items())
    yield "\n## Pages of the admin alone\n\n| model | instead |\n|---|---|"
    yield from (f"| `{name}` | {why} |" for name, why in ADMIN_ALONE.items())


def _line(deed: Deed) -> str:
    doors = [f"`{door}`" if door else "" for door in (deed.rest, deed.command, deed.admin)]
    services = ", ".join(f"`{name}`" for name in deed.services)
    return f"| {deed.noun} | {deed.verb} | {' | '.join(doors)} | {services or deed.why} |"


def write() -> None:
    PAGE.write_text(page())
