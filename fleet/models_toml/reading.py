"""Reads a models.toml. Pure: text in, a document with every problem of it out.

The original's keys mean what they meant there, where helexa has the same; keys that are not
honoured are listed in a model's notes. A key that neither knows is a problem, as it may be a slip.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from fleet.catalogue import CatalogueSettings, check_alias_name
from fleet.errors import CatalogueValueError, FleetError, UpstreamValueError
from fleet.models_toml import values as toml
from fleet.models_toml.entry import Entry
from fleet.nouns import UPSTREAMS
from fleet.upstreams import UpstreamEntry, check_upstream

MAX_BYTES = 1_000_000
ALIASES = "[aliases]"
SECRET_KEY = "key"
"""An upstream's, which is never in the file: files are copied and kept in repositories."""
SECRET_IS_ELSEWHERE = (
    "A key is not in this file: set it with manage.py upstreams change NAME --key -"
)
UPSTREAM_KINDS = {field.name: field.kind for field in UPSTREAMS.fields if field.name != SECRET_KEY}

HEADER = re.compile(r"\s*\[(?P<array>\[)?\s*(?P<name>[\w.-]+)\s*\]")
KEY = re.compile(r"\s*(?P<key>[\w.-]+|\"[^\"]+\"|'[^']+')\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A problem, or a note about a setting that is not honoured as in the original."""

    message: str
    line: int | None = None
    entry: str = ""
    """The model's id, or ``[aliases]``; empty for the file as a whole."""
    key: str = ""

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line is not None else []
        where += [part for part in (self.entry, self.key) if part]
        return f"{', '.join(where)}: {self.message}" if where else self.message


class ModelsTomlError(FleetError):
    """The file has mistakes, so none of it is used. ``problems`` are all that were found."""

    http_status = 400
    code = "invalid_models_toml"

    def __init__(self, *problems: Remark) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    id: str
    name: str
    settings: CatalogueSettings
    notes: tuple[Remark, ...] = ()
    line: int | None = None


@dataclass(slots=True)
class Document:
    models: list[WrittenModel] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    """The model's name for each alias, also of models that are only in the catalogue."""
    alias_lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each alias; that of the table has an empty name."""
    upstreams: list[UpstreamEntry] = field(default_factory=list)
    problems: list[Remark] = field(default_factory=list)
    """Reasons of refused entries, which are not among the models."""
    refused: set[str] = field(default_factory=set)

    def refuse(self, entry: str, key: str, message: str, line: int | None = None) -> None:
        self.problems.append(Remark(line=line, entry=entry, key=key, message=message))

    def alias_line(self, name: str) -> int | None:
        return self.alias_lines.get(name) or self.alias_lines.get("")


def read_document(text: str) -> Document:
    """Raises ``ModelsTomlError`` where the text as a whole cannot be read."""
    if len(text) > MAX_BYTES:
        raise ModelsTomlError(Remark(message=f"More than {MAX_BYTES:,} characters"))
    try:
        raw = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ModelsTomlError(Remark(message=f"This is not TOML: {error}")) from error
    model_lines, alias_lines = _line_numbers(text)
    document = Document(alias_lines=alias_lines)
    for key in sorted(raw.keys() - {"models", "aliases", "upstreams"}):
        document.refuse("", key, "A file has [[upstreams]], [[models]] and [aliases]")
    for upstream in _tables(raw, "upstreams"):
        _read_upstream(document, upstream)
    aliases = raw.get("aliases", {})
    if not isinstance(aliases, dict):
        document.refuse("", "aliases", "This is a table of names")
        aliases = {}
    models = _tables(raw, "models")
    if len(model_lines) != len(models):
        model_lines = [{}] * len(models)
    for index, (model, lines) in enumerate(zip(models, model_lines, strict=True)):
        _read_model(document, str(model.get("id", f"entry {index + 1}")), model, aliases, lines)
    _read_aliases(document, aliases)
    return document


def _tables(raw: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    tables = raw.get(key, [])
    if isinstance(tables, list) and all(isinstance(each, dict) for each in tables):
        return tables
    message = f"{key.capitalize()} are written as [[{key}]]"
    raise ModelsTomlError(Remark(key=key, message=message))


def _read_model(
    document: Document,
    label: str,
    raw: Mapping[str, Any],
    aliases: Mapping[str, Any],
    lines: Mapping[str, int],
) -> None:
    known = {one.name: one.id for one in document.models}
    entry = Entry(raw, known, aliases)
    if entry.settings is None:
        document.refused |= {label, toml.name_of_id(label)} - known.keys()
        for key, message in entry.problems:
            line = lines.get(key) or lines.get(key.partition(".")[0]) or lines.get("")
            document.refuse(label, key, message, line)
        return
    notes = tuple(Remark(entry=label, key=key, message=text) for key, text in entry.notes)
    document.models.append(
        WrittenModel(
            id=entry.id,
            name=entry.name,
            settings=entry.settings,
            notes=notes,
            line=lines.get(""),
        )
    )


def _read_upstream(document: Document, raw: Mapping[str, Any]) -> None:
    label = f"upstream {raw.get('name', len(document.upstreams) + 1)}"
    unknown = f"There is no such key; the keys are {', '.join(UPSTREAM_KINDS)}"
    problems = {
        name: SECRET_IS_ELSEWHERE if name == SECRET_KEY else unknown
        for name in raw
        if name not in UPSTREAM_KINDS
    }
    for name, kind in UPSTREAM_KINDS.items():
        if name in raw and (problem := kind.problem(raw[name])):
            problems[name] = problem
    problems |= {name: f"An upstream has a {name}" for name in ("name", "url") if name not in raw}
    if not problems:
        entry = UpstreamEntry(**{**raw, "url": raw["url"].rstrip("/")})
        try:
            check_upstream(entry)
            if any(one.name == entry.name for one in document.upstreams):
                raise UpstreamValueError("name", "An upstream of this file has that name")
            document.upstreams.append(entry)
        except UpstreamValueError as error:
            problems[error.field] = str(error)
    for name, message in problems.items():
        document.refuse(label, name, message)


def _read_aliases(document: Document, aliases: Mapping[str, Any]) -> None:
    names = {one.id: one.name for one in document.models}
    document.aliases = {id_: name for id_, name in names.items() if id_ != name}
    for name, target in aliases.items():
        model = names.get(str(target), str(target))
        is_models_own_name = name == model and name not in names
        if model in document.refused or is_models_own_name:
            continue
        if problem := _alias_problem(name, target, model, names):
            document.refuse(ALIASES, name, problem, document.alias_line(name))
        else:
            document.aliases[name] = model


def _alias_problem(name: str, target: object, model: str, names: Mapping[str, str]) -> str | None:
    """``names``: of the file's models, by their ids."""
    try:
        check_alias_name(name)
    except CatalogueValueError as error:
        return str(error)
    if not isinstance(target, str):
        return "An alias stands for one model, by its id"
    if name in names.values():
        return "A model of this file has that name"
    return None if names.get(name, model) == model else "A model of this file has that id"


def _line_numbers(text: str) -> tuple[list[dict[str, int]], dict[str, int]]:
    """The lines of each model's keys, and of the aliases; of the header under an empty key.

    TOML parsers give values without their lines. This finds ``[[models]]``, ``[aliases]`` and keys
    at the start of a line; other files have no line numbers.
    """
    models: list[dict[str, int]] = []
    aliases: dict[str, int] = {}
    keys, prefix = {}, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            name, prefix = header["name"], ""
            if header["array"] and name == "models":
                keys = {"": number}
                models.append(keys)
            elif name == "aliases":
                keys = aliases
                keys[""] = number
            else:
                prefix = name.removeprefix("models.") + "."
        elif key := KEY.match(line):
            keys.setdefault(prefix + key["key"].strip("\"'"), number)
    return models, aliases
