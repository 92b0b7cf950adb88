"""Reading a models.toml. Pure: text in, a document or every problem out.

The original's keys mean what they meant there, where we have the same; what we cannot honour is
told in an entry's notes. A key that neither knows is a problem, because it may be a slip.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fleet.catalogue import CatalogueSettings, check_alias_name
from fleet.errors import CatalogueValueError
from fleet.models_toml.entry import EntryError, Note, ReadEntry, read_entry
from fleet.models_toml.lines import Lines
from fleet.models_toml.problems import ModelsTomlError, Problem

MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    """``id`` is what the file calls it; ``name`` is its name in the catalogue."""

    id: str
    name: str
    settings: CatalogueSettings
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    models: tuple[WrittenModel, ...]
    aliases: Mapping[str, str]
    """To a model's name; of a model that the file does not have, where it names another."""


def read_document(text: str) -> Document:
    """Raises ``ModelsTomlError``."""
    if len(text) > MAX_BYTES:
        raise ModelsTomlError([Problem(message=f"More than {MAX_BYTES:,} characters")])
    try:
        raw = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ModelsTomlError([Problem(message=f"This is not TOML: {error}")]) from error
    return _Reader(text, raw).read()


class _Reader:
    def __init__(self, text: str, raw: dict[str, Any]) -> None:
        self._raw = raw
        self._entries = self._table_list(raw.get("models", []))
        self._lines = Lines(text, len(self._entries))
        self._problems: list[Problem] = []
        self._models: dict[str, WrittenModel] = {}
        self._name_of_id: dict[str, str] = {}

    def read(self) -> Document:
        for key in sorted(self._raw.keys() - {"models", "aliases"}):
            self._problems.append(Problem(key=key, message="A file has [[models]] and [aliases]"))
        for index, raw in enumerate(self._entries):
            self._read_model(index, raw)
        aliases = self._ids_as_aliases() | self._read_aliases()
        if self._problems:
            raise ModelsTomlError(self._problems)
        return Document(models=tuple(self._models.values()), aliases=aliases)

    @staticmethod
    def _table_list(value: Any) -> list[dict[str, Any]]:
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return value
        raise ModelsTomlError([Problem(key="models", message="Models are written as [[models]]")])

    def _read_model(self, index: int, raw: dict[str, Any]) -> None:
        label = str(raw.get("id", f"entry {index + 1}"))
        try:
            entry = read_entry(raw)
        except EntryError as error:
            self._problems += [
                Problem(
                    line=self._lines.of_model(index, key), entry=label, key=key, message=message
                )
                for key, message in error.problems
            ]
            return
        self._add(index, entry)

    def _add(self, index: int, entry: ReadEntry) -> None:
        if earlier := self._models.get(entry.name):
            self._problems.append(
                Problem(
                    line=self._lines.of_model(index, "id"),
                    entry=entry.id,
                    key="id",
                    message=f"The entry of {earlier.id!r} has the same name, {entry.name!r}",
                )
            )
            return
        self._name_of_id[entry.id] = entry.name
        self._models[entry.name] = WrittenModel(
            id=entry.id, name=entry.name, settings=entry.settings, notes=entry.notes
        )

    def _ids_as_aliases(self) -> dict[str, str]:
        """An id that is no name of ours is what clients ask for all the same."""
        return {id_: name for id_, name in self._name_of_id.items() if id_ != name}

    def _read_aliases(self) -> dict[str, str]:
        table = self._raw.get("aliases", {})
        if not isinstance(table, dict):
            self._problems.append(Problem(key="aliases", message="This is a table of names"))
            return {}
        return {name: self._target(name, target) for name, target in table.items()}

    def _target(self, name: str, target: Any) -> str:
        resolved = self._name_of_id.get(str(target), str(target))
        try:
            check_alias_name(name)
            if not isinstance(target, str):
                raise CatalogueValueError("name", "An alias stands for one model, by its id")
            if name in self._models:
                raise CatalogueValueError("name", "A model of this file has that name")
            if self._name_of_id.get(name, resolved) != resolved:
                raise CatalogueValueError("name", "A model of this file has that id")
        except CatalogueValueError as error:
            self._problems.append(
                Problem(
                    line=self._lines.of_alias(name), entry="[aliases]", key=name, message=str(error)
                )
            )
        return resolved
