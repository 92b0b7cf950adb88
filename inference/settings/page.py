"""The table of docs/operating/settings.md, written from the settings.

python -m inference.settings.page docs/operating/settings.md     writes it anew
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference.settings.setting import Reader, Setting
from inference.settings.table import SETTINGS

BEGIN = "<!-- The table is written by python -m inference.settings.page. -->"
END = "<!-- End of the table. -->"


def table_lines() -> Iterator[str]:
    yield "| variable | default | values | read by | |"
    yield "|---|---|---|---|---|"
    for setting in SETTINGS:
        if not setting.is_internal:
            cells = (_default(setting), setting.kind.rule, _readers(setting), setting.doc)
            yield f"| `{setting.name}` | {' | '.join(cells)} |"


def with_table(page: str) -> str:
    """The page with its table written anew. Raises ``ValueError`` where it has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no marks around its table")
    table = "\n".join(table_lines())
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _default(setting: Setting[Any]) -> str:
    value = setting.default
    if setting.default_words:
        return setting.default_words
    if value is None or value == ():
        return "none"
    return str(int(value)) if isinstance(value, bool) else f"{value}".removesuffix(".0")


def _readers(setting: Setting[Any]) -> str:
    if setting.readers == frozenset(Reader):
        return "all"
    return ", ".join(reader.value for reader in Reader if reader in setting.readers)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
