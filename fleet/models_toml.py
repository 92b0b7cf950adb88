"""Reads a models.toml: the catalogue as a file, in the original system's format with our own keys.

    text ──read_document──▶ Document ──plan_import──▶ Plan ──services.catalogue_import──▶ rows
    rows ──selectors.catalogue_state──▶ CatalogueState ──write_document──▶ text

A document defines each model that it names completely: absent settings have their defaults. The
original's keys that are not honoured are listed in a model's notes. A key that neither knows is a
problem, as it may be a slip.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from fleet import models_toml_values as toml
from fleet.catalogue import (
    CatalogueSettings,
    check_alias_name,
    check_name,
    settings_problems,
    whole_source,
)
from fleet.errors import CatalogueValueError, FleetError, UpstreamValueError
from fleet.nouns import UPSTREAMS
from fleet.upstreams import UpstreamEntry, check_upstream
from inference.loading.sources.hub_sources import default_scheme

ZERO_IS_UNSET = ("vram_mb", "min_device_vram_mb", "min_devices")
"""Keys for which 0 means unset in the original."""
PRICES_WITHOUT_TOKENS = ("cost.request", "cost.unit")
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


def _flattened(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A value in place of a table keeps its own name, which no setting has."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if key in toml.TABLES and isinstance(value, dict):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        elif not (key in ZERO_IS_UNSET and type(value) is int and value == 0):
            flat[key] = value
    return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    message: str
    line: int | None = None
    entry: str = ""
    """The model's id, or ``[aliases]``; empty for the file as a whole."""
    key: str = ""

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line is not None else []
        where += [part for part in (self.entry, self.key) if part]
        return f"{', '.join(where)}: {self.message}" if where else self.message


class ModelsTomlError(FleetError, code="invalid_models_toml", http_status=400):
    """``problems`` are all that were found; nothing of the file is used."""

    def __init__(self, *problems: Remark) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class WrittenModel:
    """``models``: names of earlier entries with their ids; ``aliases``: the file's; ``lines``: by
    key. The settings are of use where there are no problems."""

    def __init__(
        self,
        label: str,
        raw: Mapping[str, Any],
        models: Mapping[str, str],
        aliases: Mapping[str, Any],
        lines: Mapping[str, int],
    ) -> None:
        self._label, self._lines, self.line = label, lines, lines.get("")
        self._flat = _flattened(raw)
        self._values: dict[str, Any] = {}
        self.id = self.name = ""
        self.problems: list[Remark] = []
        self.notes: list[Remark] = []
        self._read_name(models, aliases)
        for key in [key for key in self._flat if key not in toml.KNOWN_KEYS]:
            near = difflib.get_close_matches(key, toml.KNOWN_KEYS, n=1)
            hint = f"; is {near[0]} meant?" if near else ""
            self._refuse(key, f"There is no such key{hint}")
        self._read_settings()
        self._read_quant()
        for key, message in toml.NOT_HONOURED.items():
            if (value := self._flat.get(key)) and value != toml.OUR_HARNESS:
                self._note(key, message.format(value))
        self.settings = CatalogueSettings(**self._values)
        for name, problem in settings_problems(self.settings):
            self._refuse(toml.KEY_OF_SETTING[name], problem)

    def _refuse(self, key: str, message: str) -> None:
        lines = self._lines
        line = lines.get(key) or lines.get(key.partition(".")[0]) or self.line
        self.problems.append(Remark(line=line, entry=self._label, key=key, message=message))

    def _note(self, key: str, message: str) -> None:
        self.notes.append(Remark(entry=self._label, key=key, message=message))

    def _read_name(self, models: Mapping[str, str], aliases: Mapping[str, Any]) -> None:
        given = self._flat.get("id")
        if not isinstance(given, str) or not given:
            self._refuse("id", "Each model has an id")
            return
        # Of two repositories with one base name the second keeps its organisation.
        name = toml.name_of_id(given)
        is_free = all(owners.get(name, given) == given for owners in (models, aliases))
        self.id, self.name = given, name if is_free else toml.slug(given)
        try:
            check_name(self.name)
            if self.name != given:
                check_alias_name(given)
                self._note("id", f"it is named {self.name}, and {given} is an alias of it")
        except CatalogueValueError as error:
            self._refuse("id", str(error))
        if self.name in models:
            message = f"The entry of {models[self.name]!r} has the same name, {self.name!r}"
            self._refuse("id", message)

    def _read_settings(self) -> None:
        for key, value in self._flat.items():
            if (name := toml.SETTING_OF_KEY.get(key)) is None:
                continue
            try:
                self._values[name] = toml.from_toml(name, value)
            except ValueError as error:
                self._refuse(key, str(error))
        if any(key.startswith("cost.") and key not in PRICES_WITHOUT_TOKENS for key in self._flat):
            self._values.setdefault("input_price_micro_usd", 0)
            self._values.setdefault("output_price_micro_usd", 0)
        # The original divides a model into as many ranks as it has cards.
        number = self._values.get("min_devices", 1)
        if isinstance(number, int) and number > 1 and "tensor_parallel" not in self._values:
            self._values["tensor_parallel"] = number
            self._note("min_devices", f"as many ranks share it: tensor_parallel = {number}")
        # A whole source, or the original's: a scheme, with the id as the rest.
        source = self._values.get("source") or default_scheme()
        if isinstance(source, str):
            source = whole_source(source)
            source = source if ":" in source else f"{source}:{self.id}"
        self._values["source"] = source

    def _read_quant(self) -> None:
        """The original's ``quant`` names a GGUF file by a part of its name for a model on one card,
        and the quantization of weights for a model that spans cards."""
        quant = self._flat.get("quant", "")
        source, ranks = self._values["source"], self._values.get("tensor_parallel", 1)
        if quant == "" or not isinstance(source, str) or not isinstance(ranks, int):
            return
        problem: str | None = None
        if not isinstance(quant, str):
            problem = f"{quant!r} is not text"
        elif "file" in self._flat:
            problem = "file means the same: one of them is enough"
        elif "quantization" in self._flat or toml.names_a_file(quant, source, ranks):
            self._values["file"] = quant
            problem = toml.unknown_quant(quant, source)
        elif (values := toml.while_loading(quant)) is not None:
            self._values |= values
            words = " and ".join(f"{name} = {value}" for name, value in values.items())
            self._note("quant", f"{quant} of dense weights is {words} here")
        else:
            known = toml.QUANTS_WHILE_LOADING
            problem = f"{quant!r} is none that weights are brought to while they load: {known}"
        if problem is not None:
            self._refuse("quant", problem)


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
    entry = WrittenModel(label, raw, known, aliases, lines)
    if entry.problems:
        document.refused |= {label, toml.name_of_id(label)} - known.keys()
        document.problems += entry.problems
    else:
        document.models.append(entry)


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
    """A header's line is under an empty key. TOML parsers give no lines: this finds headers and
    keys at the start of a line, and other files have no line numbers."""
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
