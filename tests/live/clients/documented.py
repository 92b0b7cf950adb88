"""The settings that docs/clients.md gives each client, filled in for a server: readers are
shown the settings that are tried."""

from __future__ import annotations

import re

from tests.strangers.docs.blocks import all_blocks

PAGE = "docs/clients.md"
ADDRESS = "http://127.0.0.1:31313"


def settings_of(scenario: str, *, url: str, model: str, key: str) -> str:
    """The text of the one block that is marked with the scenario."""
    (block,) = (one for one in all_blocks() if one.scenario == scenario and one.page == PAGE)
    return filled_in(block.text, url=url, model=model, key=key)


def filled_in(text: str, *, url: str, model: str, key: str) -> str:
    """``MODEL`` and ``KEY`` stand alone, not in the names of variables."""
    text = text.replace(ADDRESS, url)
    for placeholder, value in (("MODEL", model), ("KEY", key)):
        text = re.sub(rf"(?<![A-Z_]){placeholder}(?![A-Z_])", value, text)
    return text


def exported(text: str) -> dict[str, str]:
    """The variables of its ``export`` lines."""
    lines = [line.removeprefix("export ") for line in text.splitlines() if "export " in line]
    return dict(word.split("=", 1) for line in lines for word in line.split())
