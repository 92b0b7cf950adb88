"""Features tried of a client and their results, as rows of one table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Tried:
    client: str
    version: str
    feature: str
    problem: str | None
    """``None``: it works."""


def print_table(rows: Iterable[Tried]) -> None:
    table = Table("client", "version", "feature", "result")
    for row in rows:
        table.add_row(row.client, row.version, row.feature, row.problem or "works")
    Console(width=None if Console().is_terminal else 160).print(table)
