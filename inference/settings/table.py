"""All settings in one table: checks an environment, and writes the table of the operator's page.

python -m inference.settings.table docs/operating/settings.md     rewrites the page's table
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inference.settings import gateway, installation, neuron, storage
from inference.settings.setting import Setting, SettingError

PREFIX = "HELEXA_"
SETTINGS: tuple[Setting[Any], ...] = tuple(
    value
    for module in (storage, gateway, neuron, installation)
    for value in vars(module).values()
    if isinstance(value, Setting)
)
NAMES = frozenset(setting.name for setting in SETTINGS)
OF_TESTS = {
    "HELEXA_CLIENTS_DIR": "names the folder of clients that slow tests run",
    "HELEXA_FUZZ_": "how many schemas a campaign tries, and which",
    "HELEXA_MUTATED_CALLS": "how many changed tool calls a campaign tries",
    "HELEXA_MUTATED_FILES": "how many mutated files a campaign tries",
}
"""Beginnings of tests' own names: a run keeps them, where it drops all settings."""
OTHERS = {
    "HELEXA_ACP_": "the editor bridge is installed alone and reads its own settings",
    "HELEXA_TEST_": "marks processes that tests start",
    **OF_TESTS,
    "HELEXA_MANAGE": "names the command that scripts run",
    "HELEXA_TRYING_IN": "names the scratch folder of a packaging script",
}
"""Beginnings of names that are no settings, each with the reason."""
LEAST_LIKENESS = 0.8


def refusals(environment: Mapping[str, str]) -> Iterator[SettingError]:
    for setting in SETTINGS:
        try:
            setting.read(environment)
        except SettingError as error:
            yield error


def check_settings(environment: Mapping[str, str]) -> None:
    """Raises ``SettingError`` for the first invalid value. Every process checks all settings, also
    those of other processes: one environment often serves them all."""
    for error in refusals(environment):
        raise error


def unknown_names(environment: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Unknown names that look like settings, each with the setting of the nearest name."""
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in NAMES and not name.startswith(tuple(OTHERS)):
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=LEAST_LIKENESS)
            yield name, near[0] if near else None


BEGIN = "<!-- The table is written by python -m inference.settings.table. -->"
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
