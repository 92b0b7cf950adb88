"""All settings in one table: checks an environment, and finds misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
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
"""A run keeps them, where it drops all settings."""
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
    """Checks all settings, also other processes': one environment often serves them all. Raises
    ``SettingError``."""
    for error in refusals(environment):
        raise error


def unknown_names(environment: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Each with the setting of the nearest name."""
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in NAMES and not name.startswith(tuple(OTHERS)):
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=LEAST_LIKENESS)
            yield name, near[0] if near else None
