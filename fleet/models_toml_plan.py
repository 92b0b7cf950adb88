"""Compares a document with the catalogue, and writes the catalogue as a document. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fleet.catalogue import SETTINGS, CatalogueSettings
from fleet.catalogue.targets import upstream_of
from fleet.models_toml import ALIASES, UPSTREAM_KINDS, Document, Remark, WrittenModel
from fleet.models_toml_values import KEY_OF_SETTING, OUR_HARNESS, TABLES, to_toml
from fleet.upstreams import UpstreamEntry

T = TypeVar("T")
Action = Literal["add", "change", "remove"]
SIGNS: dict[Action, str] = {"add": "+", "change": "~", "remove": "-"}
HEAD = "# The catalogue. What an entry leaves out has its default.\n"
PLAIN_MODEL = CatalogueSettings(source="")
PLAIN_UPSTREAM = UpstreamEntry(name="", url="")
UPSTREAM_SETTINGS = tuple(name for name in UPSTREAM_KINDS if name != "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueState:
    """Includes models that are not offered."""

    models: Mapping[str, CatalogueSettings]
    aliases: Mapping[str, str]
    upstreams: Mapping[str, UpstreamEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    noun: str
    action: Action
    name: str
    model: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The settings that differ; for something new those that differ from the defaults."""
    texts: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        target = f" = {self.model}" if self.model else ""
        yield f"{SIGNS[self.action]} {self.noun} {self.name}{target}"
        yield from self.texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    models: tuple[Change, ...]
    aliases: tuple[Change, ...]
    upstreams: tuple[Change, ...]
    notes: tuple[Remark, ...]
    unchanged: tuple[str, ...]
    problems: tuple[Remark, ...]
    """While there are any, nothing is imported."""
    left_alone: tuple[str, ...]
    """Names of models, aliases and upstreams that the file does not have."""

    @property
    def is_empty(self) -> bool:
        return not (self.models or self.aliases or self.upstreams)

    @property
    def digest(self) -> str:
        """Identifies its changes, so that only the plan that the operator confirmed is applied."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()[:16]

    def lines(self) -> Iterator[str]:
        for change in (*self.upstreams, *self.models):
            yield from change.lines()
        yield from (f"= model {name}" for name in self.unchanged)
        for change in self.aliases:
            yield from change.lines()
        yield from (f"! {note}" for note in self.notes)
        yield from (f"x {problem}" for problem in self.problems)
        if self.left_alone:
            yield f"  not in the file, left alone: {', '.join(self.left_alone)}"


def plan_import(document: Document, state: CatalogueState, *, prune: bool) -> Plan:
    """Refuses entries that contradict the rest of the catalogue. ``prune``: removes all others."""
    others = CatalogueState(
        models=_others(state.models, {one.name for one in document.models} | document.refused),
        aliases=_others(state.aliases, document.aliases.keys() | document.refused),
        upstreams=_others(state.upstreams, {one.name for one in document.upstreams}),
    )
    kept = CatalogueState(models={}, aliases={}) if prune else others
    of_aliases, of_models = _contradictions(document, kept)
    written = [model for model in document.models if model.name not in of_models]
    models = [
        _compared("model", one.name, state.models.get(one.name), one.settings) for one in written
    ]
    upstreams = [
        _compared("upstream", one.name, state.upstreams.get(one.name), one)
        for one in document.upstreams
    ]
    aliases = [
        Change(
            noun="alias",
            action="change" if name in state.aliases else "add",
            name=name,
            model=model,
        )
        for name, model in document.aliases.items()
        if state.aliases.get(name) != model and name not in of_aliases
    ]
    if prune:
        models += [Change(noun="model", action="remove", name=name) for name in others.models]
        upstreams += [
            Change(noun="upstream", action="remove", name=name) for name in others.upstreams
        ]
        aliases += [
            Change(noun="alias", action="remove", name=name, model=model)
            for name, model in others.aliases.items()
        ]
    changed = tuple(change for change in models if change is not None)
    return Plan(
        models=changed,
        aliases=tuple(aliases),
        upstreams=tuple(change for change in upstreams if change is not None),
        notes=tuple(note for model in written for note in model.notes),
        unchanged=tuple(
            model.name for model in written if model.name not in {one.name for one in changed}
        ),
        problems=(*document.problems, *of_aliases.values(), *of_models.values()),
        left_alone=(*kept.models, *kept.aliases, *kept.upstreams),
    )


def _others(present: Mapping[str, T], named: Collection[str]) -> dict[str, T]:
    return {name: present[name] for name in sorted(present) if name not in named}


def _contradictions(
    document: Document, kept: CatalogueState
) -> tuple[dict[str, Remark], dict[str, Remark]]:
    models = {model.name for model in document.models} | kept.models.keys()
    upstreams = {one.name for one in document.upstreams} | kept.upstreams.keys()
    of_aliases: dict[str, Remark] = {}
    for alias, target in document.aliases.items():
        message = "A model of the catalogue has that name" if alias in kept.models else ""
        if message := message if target in models else f"There is no model {target!r}":
            line = document.alias_line(alias)
            of_aliases[alias] = Remark(line=line, entry=ALIASES, key=alias, message=message)
    of_models: dict[str, Remark] = {}
    for model in document.models:
        found = _model_problems(model, models | document.refused, kept.aliases, upstreams)
        for key, message in found:
            remark = Remark(line=model.line, entry=model.id, key=key, message=message)
            of_models.setdefault(model.name, remark)
    return of_aliases, of_models


def _model_problems(
    model: WrittenModel,
    models: Collection[str],
    kept_aliases: Mapping[str, str],
    upstreams: Collection[str],
) -> Iterator[tuple[str, str]]:
    if (target := kept_aliases.get(model.name)) is not None:
        yield "id", f"{model.name} is an alias of {target} now, and the file leaves it alone"
    source = upstream_of(model.settings.source)
    for name in model.settings.upstream_names:
        if name not in upstreams:
            is_source = source is not None and source.upstream == name
            yield "source" if is_source else "targets", f"There is no upstream {name!r}"
    base = model.settings.base
    if base is not None and base not in models:
        yield "base", f"There is no model {base!r}"


def _compared(noun: str, name: str, present: Any, wanted: Any) -> Change | None:
    is_new = present is None
    values, texts = {}, []
    for setting, before, after in _differences(present, wanted):
        values[setting] = after
        earlier = "" if is_new else f"{to_toml(before, setting)} -> "
        key = KEY_OF_SETTING.get(setting, setting)
        texts.append(f"    {key} = {earlier}{to_toml(after, setting)}")
    if not is_new and not values:
        return None
    action: Action = "add" if is_new else "change"
    return Change(noun=noun, action=action, name=name, values=values, texts=tuple(texts))


def _differences(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    is_upstream = isinstance(after, UpstreamEntry)
    before = before or (PLAIN_UPSTREAM if is_upstream else PLAIN_MODEL)
    for name in UPSTREAM_SETTINGS if is_upstream else SETTINGS:
        earlier, later = getattr(before, name), getattr(after, name)
        if earlier != later:
            yield name, earlier, later


def write_document(state: CatalogueState) -> str:
    """Reads back as the same catalogue."""
    parts = [HEAD]
    for name, upstream in sorted(state.upstreams.items()):
        parts.append(_entry(["[[upstreams]]", f"name = {to_toml(name)}"], upstream))
    for name, settings in sorted(state.models.items()):
        harness = f"harness = {to_toml(OUR_HARNESS)}"
        parts.append(_entry(["[[models]]", f"id = {to_toml(name)}", harness], settings))
    if state.aliases:
        pairs = sorted(state.aliases.items())
        lines = [f"{to_toml(alias)} = {to_toml(name)}" for alias, name in pairs]
        parts.append("\n".join([ALIASES, *lines, ""]))
    return "\n".join(parts)


def _entry(lines: list[str], settings: CatalogueSettings | UpstreamEntry) -> str:
    tables: dict[str, list[str]] = {table: [] for table in TABLES}
    for name, _, value in _differences(None, settings):
        table, dot, inner = KEY_OF_SETTING.get(name, name).rpartition(".")
        place = tables[table] if dot else lines
        place.append(f"{inner} = {to_toml(value, name)}")
    lines += [f"{name} = {{ {', '.join(each)} }}" for name, each in tables.items() if each]
    return "\n".join([*lines, ""])
