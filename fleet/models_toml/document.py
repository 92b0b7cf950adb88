"""Reading a models.toml. Pure: text in, a document or every problem out.

The original's keys mean what they meant there, where we have the same; keys that are not honoured
are listed in an entry's notes. A key that neither knows is a problem, because it may be a slip.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fleet.catalogue import CatalogueSettings, check_alias_name
from fleet.errors import CatalogueValueError
from fleet.models_toml.entry import EntryError, Note, read_entry
from fleet.models_toml.lines import Lines
from fleet.models_toml.names import name_of_id
from fleet.models_toml.problems import ModelsTomlError, Problem
from fleet.models_toml.upstreams import read_upstream
from fleet.upstreams.entry import UpstreamEntry

MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    """``id`` is what the file calls it; ``name`` is its name in the catalogue."""

    id: str
    name: str
    settings: CatalogueSettings
    notes: tuple[Note, ...] = ()
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    models: tuple[WrittenModel, ...]
    aliases: Mapping[str, str]
    """The model's name for each alias. A model that the file does not have may have an alias
    too."""
    alias_lines: Mapping[str, int]
    upstreams: tuple[UpstreamEntry, ...] = ()
    problems: tuple[Problem, ...] = ()
    """Why entries are refused. Those are not among the models."""
    refused: frozenset[str] = frozenset()
    """Names and ids of the refused entries."""


def read_document(text: str) -> Document:
    """Raises ``ModelsTomlError`` where the text as a whole cannot be read."""
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
        self._upstreams: dict[str, UpstreamEntry] = {}
        self._name_of_id: dict[str, str] = {}
        self._refused: set[str] = set()
        table = raw.get("aliases", {})
        self._alias_targets: dict[str, Any] = table if isinstance(table, dict) else {}

    def read(self) -> Document:
        for key in sorted(self._raw.keys() - {"models", "aliases", "upstreams"}):
            message = "A file has [[upstreams]], [[models]] and [aliases]"
            self._problems.append(Problem(key=key, message=message))
        for raw in self._table_list(self._raw.get("upstreams", []), "upstreams"):
            self._read_upstream(raw)
        for index, raw in enumerate(self._entries):
            self._read_model(index, raw)
        aliases = self._ids_as_aliases() | self._read_aliases()
        return Document(
            models=tuple(self._models.values()),
            aliases=aliases,
            alias_lines={name: line for name in aliases if (line := self._lines.of_alias(name))},
            upstreams=tuple(self._upstreams.values()),
            problems=tuple(self._problems),
            refused=frozenset(self._refused),
        )

    @staticmethod
    def _table_list(value: Any, key: str = "models") -> list[dict[str, Any]]:
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return value
        raise ModelsTomlError(
            [Problem(key=key, message=f"{key.capitalize()} are written as [[{key}]]")]
        )

    def _read_model(self, index: int, raw: dict[str, Any]) -> None:
        label = str(raw.get("id", f"entry {index + 1}"))
        try:
            models = {name: model.id for name, model in self._models.items()}
            entry = read_entry(raw, models, self._alias_targets)
        except EntryError as error:
            self._refused |= {label, name_of_id(label)} - self._models.keys()
            self._problems += [
                Problem(
                    line=self._lines.of_model(index, key), entry=label, key=key, message=message
                )
                for key, message in error.problems
            ]
            return
        self._name_of_id[entry.id] = entry.name
        self._models[entry.name] = WrittenModel(
            id=entry.id,
            name=entry.name,
            settings=entry.settings,
            notes=entry.notes,
            line=self._lines.of_model(index),
        )

    def _read_upstream(self, raw: dict[str, Any]) -> None:
        label = f"upstream {raw.get('name', len(self._upstreams) + 1)}"
        try:
            entry = read_upstream(raw)
            if entry.name in self._upstreams:
                raise EntryError([("name", "An upstream of this file has that name")])
        except EntryError as error:
            self._problems += [
                Problem(entry=label, key=key, message=message) for key, message in error.problems
            ]
            return
        self._upstreams[entry.name] = entry

    def _ids_as_aliases(self) -> dict[str, str]:
        """An id that is no name of ours is what clients ask for all the same."""
        return {id_: name for id_, name in self._name_of_id.items() if id_ != name}

    def _read_aliases(self) -> dict[str, str]:
        if not isinstance(self._raw.get("aliases", {}), dict):
            self._problems.append(Problem(key="aliases", message="This is a table of names"))
        found = {name: self._target(name, target) for name, target in self._alias_targets.items()}
        return {name: target for name, target in found.items() if target is not None}

    def _target(self, name: str, target: Any) -> str | None:
        """``None``: the alias is refused, or its model is, or it is the model's name here."""
        resolved = self._name_of_id.get(str(target), str(target))
        if resolved in self._refused or (name == resolved and name not in self._name_of_id):
            return None
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
            return None
        return resolved
