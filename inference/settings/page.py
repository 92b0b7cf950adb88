"""The table of docs/operating/settings.md, written from the settings.

python -m inference.settings.page docs/operating/settings.md     rewrites it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from inference.settings.table import SETTINGS

BEGIN = "<!-- The table is written by python -m inference.settings.page. -->"
END = "<!-- End of the table. -->"


def table_lines() -> Iterator[str]:
    yield "| variable | default | values | read by | |"
    yield "|---|---|---|---|---|"
    for setting in SETTINGS:
        if not setting.is_internal:
            cells = (
                setting.default_text,
                setting.kind.rule,
                setting.readers_text,
                setting.doc,
            )
            yield f"| `{setting.name}` | {' | '.join(cells)} |"


def with_table(page: str) -> str:
    """The page with its table rewritten. Raises ``ValueError`` where it has no place for the
    table."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no marks around its table")
    table = "\n".join(table_lines())
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
