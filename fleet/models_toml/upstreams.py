"""Upstreams in a models.toml: ``[[upstreams]]`` with all that an operator sets of one but its key.
Pure.

A file is copied and kept in repositories, so a key does not stand in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from fleet.errors import UpstreamValueError
from fleet.models_toml.entry import EntryError
from fleet.models_toml.keys import toml_value
from fleet.nouns.of_fleet import UPSTREAMS
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.rules import check_upstream

KEY = "key"
KINDS = {field.name: field.kind for field in UPSTREAMS.fields if field.name != KEY}
DEFAULTS = {field.name: field.default for field in fields(UpstreamEntry)}
SETTINGS = tuple(name for name in KINDS if name != "name")
KEPT_APART = "A key is not in this file: set it with manage.py upstreams change NAME --key -"


def read_upstream(raw: Mapping[str, Any]) -> UpstreamEntry:
    """Raises ``EntryError``."""
    problems = [(name, _unknown(name)) for name in raw if name not in KINDS]
    for name, kind in KINDS.items():
        if name in raw and (problem := kind.problem(raw[name])):
            problems.append((name, problem))
    problems += [(name, f"An upstream has a {name}") for name in ("name", "url") if name not in raw]
    if problems:
        raise EntryError(problems)
    entry = UpstreamEntry(**{**raw, "url": raw["url"].rstrip("/")})
    try:
        check_upstream(entry)
    except UpstreamValueError as error:
        raise EntryError([(error.field, str(error))]) from None
    return entry


def written_upstream(entry: UpstreamEntry) -> str:
    lines = ["[[upstreams]]", f"name = {toml_value(entry.name)}", f"url = {toml_value(entry.url)}"]
    lines += [
        f"{name} = {toml_value(getattr(entry, name))}"
        for name in SETTINGS
        if name != "url" and getattr(entry, name) != DEFAULTS[name]
    ]
    return "\n".join([*lines, ""])


def differences(before: UpstreamEntry | None, after: UpstreamEntry) -> Iterator[tuple[str, ...]]:
    """Name, earlier and later value of each setting that differs, of a new one from its default."""
    plain = before or UpstreamEntry(name=after.name, url="")
    for name in SETTINGS:
        earlier, later = getattr(plain, name), getattr(after, name)
        if earlier != later:
            yield name, toml_value(earlier), toml_value(later)


def _unknown(name: str) -> str:
    return KEPT_APART if name == KEY else f"There is no such key; the keys are {', '.join(KINDS)}"
