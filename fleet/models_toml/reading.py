"""Reads a models.toml. Pure: text in, a document with every problem of it out.

The original's keys mean what they meant there, where helexa has the same; keys that are not
honoured are listed in a model's notes. A key that neither knows is a problem, as it may be a slip.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fleet.catalogue import (
    SETTINGS,
    CatalogueSettings,
    check_alias_name,
    check_model_source,
    check_name,
    whole_source,
)
from fleet.catalogue.rules import check_settings
from fleet.errors import CatalogueValueError, FleetError, UpstreamValueError
from fleet.models_toml import values as toml
from fleet.nouns import UPSTREAMS
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.rules import check_upstream
from inference.loading.sources.hub_sources import default_scheme

MAX_BYTES = 1_000_000
ALIASES = "[aliases]"
ZERO_IS_UNSET = ("vram_mb", "min_device_vram_mb", "min_devices")
"""Keys for which 0 means unset in the original."""
PRICES_WITHOUT_TOKENS = ("cost.request", "cost.unit")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    models: tuple[WrittenModel, ...]
    aliases: Mapping[str, str]
    """The model's name for each alias, also of models that are only in the catalogue."""
    alias_lines: Mapping[str, int]
    upstreams: tuple[UpstreamEntry, ...] = ()
    problems: tuple[Remark, ...] = ()
    """Reasons of refused entries, which are not among the models."""
    refused: frozenset[str] = frozenset()


def read_document(text: str) -> Document:
    """Raises ``ModelsTomlError`` where the text as a whole cannot be read."""
    if len(text) > MAX_BYTES:
        raise ModelsTomlError(Remark(message=f"More than {MAX_BYTES:,} characters"))
    try:
        raw = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ModelsTomlError(Remark(message=f"This is not TOML: {error}")) from error
    return _Reader(text, raw).read()


class _Reader:
    def __init__(self, text: str, raw: dict[str, Any]) -> None:
        self._raw = raw
        self._problems: list[Remark] = []
        self._models: dict[str, WrittenModel] = {}
        self._upstreams: dict[str, UpstreamEntry] = {}
        self._refused: set[str] = set()
        self._entries = self._tables("models")
        self._model_lines, self._alias_lines = _line_numbers(text)
        if len(self._model_lines) != len(self._entries):
            self._model_lines = [{}] * len(self._entries)
        aliases = raw.get("aliases", {})
        self._aliases: dict[str, Any] = aliases if isinstance(aliases, dict) else {}

    def read(self) -> Document:
        for key in sorted(self._raw.keys() - {"models", "aliases", "upstreams"}):
            self._refuse("", key, "A file has [[upstreams]], [[models]] and [aliases]")
        for raw in self._tables("upstreams"):
            self._read_upstream(raw)
        for index, raw in enumerate(self._entries):
            self._read_model(index, raw)
        name_of_id = {one.id: name for name, one in self._models.items()}
        aliases = {id_: name for id_, name in name_of_id.items() if id_ != name}
        aliases |= self._read_aliases(name_of_id)
        lines_of_aliases = {name: self._line_of_alias(name) for name in aliases}
        return Document(
            models=tuple(self._models.values()),
            aliases=aliases,
            alias_lines={name: line for name, line in lines_of_aliases.items() if line},
            upstreams=tuple(self._upstreams.values()),
            problems=tuple(self._problems),
            refused=frozenset(self._refused),
        )

    def _tables(self, key: str) -> list[dict[str, Any]]:
        tables = self._raw.get(key, [])
        if isinstance(tables, list) and all(isinstance(each, dict) for each in tables):
            return tables
        message = f"{key.capitalize()} are written as [[{key}]]"
        raise ModelsTomlError(Remark(key=key, message=message))

    def _refuse(self, entry: str, key: str, message: str, line: int | None = None) -> None:
        self._problems.append(Remark(line=line, entry=entry, key=key, message=message))

    def _read_model(self, index: int, raw: dict[str, Any]) -> None:
        label, lines = str(raw.get("id", f"entry {index + 1}")), self._model_lines[index]
        entry = _Entry(_flattened(raw), {name: one.id for name, one in self._models.items()})
        settings = entry.read(self._aliases)
        if settings is None:
            self._refused |= {label, toml.name_of_id(label)} - self._models.keys()
            for key, message in entry.problems:
                line = lines.get(key) or lines.get(key.partition(".")[0]) or lines.get("")
                self._refuse(label, key, message, line)
            return
        self._models[entry.name] = WrittenModel(
            id=entry.id,
            name=entry.name,
            settings=settings,
            notes=tuple(Remark(entry=label, key=key, message=text) for key, text in entry.notes),
            line=lines.get(""),
        )

    def _read_upstream(self, raw: dict[str, Any]) -> None:
        label = f"upstream {raw.get('name', len(self._upstreams) + 1)}"
        problems = _upstream_problems(raw)
        if not problems:
            entry = UpstreamEntry(**{**raw, "url": raw["url"].rstrip("/")})
            try:
                check_upstream(entry)
                if entry.name in self._upstreams:
                    raise UpstreamValueError("name", "An upstream of this file has that name")
                self._upstreams[entry.name] = entry
            except UpstreamValueError as error:
                problems = [(error.field, str(error))]
        for key, message in problems:
            self._refuse(label, key, message)

    def _read_aliases(self, name_of_id: Mapping[str, str]) -> dict[str, str]:
        if not isinstance(self._raw.get("aliases", {}), dict):
            self._refuse("", "aliases", "This is a table of names")
        found: dict[str, str] = {}
        for name, target in self._aliases.items():
            model = name_of_id.get(str(target), str(target))
            is_models_own_name = name == model and name not in name_of_id
            if model in self._refused or is_models_own_name:
                continue
            if problem := self._alias_problem(name, target, name_of_id.get(name, model) == model):
                self._refuse(ALIASES, name, problem, self._line_of_alias(name))
            else:
                found[name] = model
        return found

    def _alias_problem(self, name: str, target: object, is_free: bool) -> str | None:
        try:
            check_alias_name(name)
        except CatalogueValueError as error:
            return str(error)
        if not isinstance(target, str):
            return "An alias stands for one model, by its id"
        if name in self._models:
            return "A model of this file has that name"
        return None if is_free else "A model of this file has that id"

    def _line_of_alias(self, name: str) -> int | None:
        return self._alias_lines.get(name) or self._alias_lines.get("")


class _Entry:
    """One entry of ``[[models]]`` being read. ``problems`` and ``notes`` are pairs of a key and a
    message; ``models`` are the names of earlier entries with their ids."""

    def __init__(self, flat: dict[str, Any], models: Mapping[str, str]) -> None:
        self._flat = {key: value for key, value in flat.items() if not _is_unset(key, value)}
        self._models = models
        self._values: dict[str, Any] = {}
        self.id = ""
        self.name = ""
        self.problems: list[tuple[str, str]] = []
        self.notes: list[tuple[str, str]] = []

    def read(self, aliases: Mapping[str, Any]) -> CatalogueSettings | None:
        """``None``: there are problems. ``aliases`` are the file's, each with its id."""
        self._read_name(aliases)
        for key in [key for key in self._flat if key not in toml.KNOWN_KEYS]:
            near = difflib.get_close_matches(key, toml.KNOWN_KEYS, n=1)
            hint = f"; is {near[0]} meant?" if near else ""
            self.problems.append((key, f"There is no such key{hint}"))
        self._read_settings()
        self._read_ranks()
        self._read_source()
        self._read_quant()
        self._note_ignored()
        for name, value in self._values.items():
            if problem := SETTINGS[name].kind.problem(value):
                self.problems.append((toml.KEY_OF_SETTING[name], problem))
        return None if self.problems else self._checked_settings()

    def _checked_settings(self) -> CatalogueSettings | None:
        settings = CatalogueSettings(**self._values)
        self._try(lambda: check_settings(settings))
        return None if self.problems else settings

    def _try(self, check: Callable[[], None], key: str = "") -> None:
        """``key``: of the problem, where that is not the refused setting's."""
        try:
            check()
        except CatalogueValueError as error:
            self.problems.append((key or toml.KEY_OF_SETTING[error.field], str(error)))

    def _read_name(self, aliases: Mapping[str, Any]) -> None:
        given = self._flat.get("id")
        if not isinstance(given, str) or not given:
            self.problems.append(("id", "Each model has an id"))
            return
        self.id, self.name = given, _free_name(given, self._models, aliases)
        if self.name in self._models:
            message = f"The entry of {self._models[self.name]!r} has the same name, {self.name!r}"
            self.problems.append(("id", message))
            return
        self._try(lambda: check_name(self.name), "id")
        if self.name != given and not self.problems:
            self._try(lambda: check_alias_name(given), "id")
            self.notes.append(("id", f"it is named {self.name}, and {given} is an alias of it"))

    def _read_settings(self) -> None:
        for key, value in self._flat.items():
            if (name := toml.SETTING_OF_KEY.get(key)) is None or key == "source":
                continue
            try:
                self._values[name] = toml.from_toml(name, value)
            except ValueError as error:
                self.problems.append((key, str(error)))
        prices = [key for key in self._flat if key.startswith("cost.")]
        if any(key not in PRICES_WITHOUT_TOKENS for key in prices):
            self._values.setdefault("input_price_micro_usd", 0)
            self._values.setdefault("output_price_micro_usd", 0)

    def _read_ranks(self) -> None:
        """The original divides a model into as many ranks as it has cards."""
        number = self._values.get("min_devices", 1)
        if isinstance(number, int) and number > 1 and "tensor_parallel" not in self._values:
            self._values["tensor_parallel"] = number
            message = f"as many ranks share it: tensor_parallel = {number}"
            self.notes.append(("min_devices", message))

    def _read_source(self) -> None:
        """A whole source, or the original's: a scheme, with the id as the rest."""
        given = self._flat.get("source") or default_scheme()
        if not isinstance(given, str):
            self.problems.append(("source", f"{given!r} is not text"))
            return
        source = whole_source(given)
        self._values["source"] = source = source if ":" in source else f"{source}:{self.id}"
        self._try(lambda: check_model_source(source))

    def _read_quant(self) -> None:
        """The original's ``quant`` names a GGUF file by a part of its name for a model on one card,
        and the quantization of weights for a model that spans cards."""
        quant = self._flat.get("quant", "")
        if quant == "":
            return
        problem: str | None = None
        source, ranks = self._values.get("source", ""), self._values.get("tensor_parallel", 1)
        num_ranks = ranks if isinstance(ranks, int) else 1
        if not isinstance(quant, str):
            problem = f"{quant!r} is not text"
        elif "file" in self._flat:
            problem = "file means the same: one of them is enough"
        elif "quantization" in self._flat or toml.names_a_file(quant, source, num_ranks):
            self._values["file"] = quant
            problem = toml.unknown_quant(quant, source)
        elif (values := toml.while_loading(quant)) is not None:
            self._values |= values
            words = " and ".join(f"{name} = {value}" for name, value in values.items())
            self.notes.append(("quant", f"{quant} of dense weights is {words} here"))
        else:
            known = toml.QUANTS_WHILE_LOADING
            problem = f"{quant!r} is none that weights are brought to while they load: {known}"
        if problem is not None:
            self.problems.append(("quant", problem))

    def _note_ignored(self) -> None:
        harness = self._flat.get("harness", toml.OUR_HARNESS)
        if harness != toml.OUR_HARNESS:
            message = f"{harness} is not honoured: helexa's own engine serves it"
            self.notes.append(("harness", message))
        if self._flat.get("capabilities"):
            message = "not honoured: a loaded model reports its capabilities"
            self.notes.append(("capabilities", message))
        if "limit.input" in self._flat:
            self.notes.append(("limit.input", "not honoured: prompt and answer share the context"))
        if self._flat.get("cost.cache_write"):
            message = "not honoured: filling the prefix cache costs nothing"
            self.notes.append(("cost.cache_write", message))


def _upstream_problems(raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    problems = []
    for name in [name for name in raw if name not in UPSTREAM_KINDS]:
        unknown = f"There is no such key; the keys are {', '.join(UPSTREAM_KINDS)}"
        problems.append((name, SECRET_IS_ELSEWHERE if name == SECRET_KEY else unknown))
    for name, kind in UPSTREAM_KINDS.items():
        if name in raw and (problem := kind.problem(raw[name])):
            problems.append((name, problem))
    required = ("name", "url")
    return problems + [(name, f"An upstream has a {name}") for name in required if name not in raw]


def _flattened(entry: dict[str, Any]) -> dict[str, Any]:
    """``{"limit": {"context": 1}}`` as ``{"limit.context": 1}``. A value in place of a table keeps
    its own name, which no setting has."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if key in toml.TABLES and isinstance(value, dict):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            flat[key] = value
    return flat


def _is_unset(key: str, value: Any) -> bool:
    return key in ZERO_IS_UNSET and type(value) is int and value == 0


def _free_name(given: str, *taken: Mapping[str, object]) -> str:
    """The name of an id beside other models and aliases: of two repositories with one base name the
    second keeps its organisation. ``taken``: names with their ids."""
    name = toml.name_of_id(given)
    is_free = all(owners.get(name, given) == given for owners in taken)
    return name if is_free else toml.slug(given)


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
