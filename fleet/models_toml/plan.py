"""Compares a document with the catalogue, and writes the catalogue as a document. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fleet.catalogue import SETTINGS, CatalogueSettings
from fleet.catalogue.targets import upstream_of
from fleet.models_toml.reading import ALIASES, UPSTREAM_KINDS, Document, Remark, WrittenModel
from fleet.models_toml.values import (
    KEY_OF_SETTING,
    OUR_HARNESS,
    TABLES,
    setting_to_toml,
    to_toml,
)
from fleet.upstreams.entry import UpstreamEntry

T = TypeVar("T")
Action = Literal["add", "change", "remove"]
SIGNS: dict[Action, str] = {"add": "+", "change": "~", "remove": "-"}
HEAD = "# The catalogue. What an entry leaves out has its default.\n"
UPSTREAM_SETTINGS = tuple(name for name in UPSTREAM_KINDS if name != "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueState:
    """Every model, offered or not, every alias with its model's name, and every upstream."""

    models: Mapping[str, CatalogueSettings]
    aliases: Mapping[str, str]
    upstreams: Mapping[str, UpstreamEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """``before`` and ``after`` as in a models.toml."""

    setting: str
    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a model, an alias or an upstream."""

    action: Action
    name: str
    settings: tuple[SettingChange, ...] = ()
    """The settings that differ; for something new those that differ from the defaults."""
    model: str = ""
    """The model of an alias, before it is removed."""

    def lines(self, noun: str) -> Iterator[str]:
        target = f" = {self.model}" if self.model else ""
        yield f"{SIGNS[self.action]} {noun} {self.name}{target}"
        for change in self.settings:
            earlier = f"{change.before} -> " if self.action == "change" else ""
            yield f"    {change.key} = {earlier}{change.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    models: tuple[Change, ...]
    aliases: tuple[Change, ...]
    upstreams: tuple[Change, ...]
    notes: tuple[Remark, ...]
    """Settings of the file that are ignored, or differ from the original."""
    unchanged: tuple[str, ...]
    problems: tuple[Remark, ...]
    """Invalid entries. While there are any, nothing is imported."""
    left_alone: tuple[str, ...]
    """Models, aliases and upstreams that the file does not name."""
    wanted: Mapping[str, CatalogueSettings]
    wanted_upstreams: Mapping[str, UpstreamEntry]

    @property
    def is_empty(self) -> bool:
        return not self.models and not self.aliases and not self.upstreams

    @property
    def digest(self) -> str:
        """Identifies its changes, so that only the plan that the operator confirmed is applied."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()[:16]

    def lines(self) -> Iterator[str]:
        """One for each change, note or problem, and for unchanged entries; for people."""
        for upstream in self.upstreams:
            yield from upstream.lines("upstream")
        for model in self.models:
            yield from model.lines("model")
        for name in self.unchanged:
            yield f"= model {name}"
        for alias in self.aliases:
            yield from alias.lines("alias")
        for note in self.notes:
            yield f"! {note}"
        for problem in self.problems:
            yield f"x {problem}"
        if self.left_alone:
            yield f"  not in the file, left alone: {', '.join(self.left_alone)}"


def plan_import(document: Document, state: CatalogueState, *, prune: bool) -> Plan:
    """``prune``: removes everything that the file does not name. Refuses entries that contradict
    the rest of the catalogue."""
    upstreams = {one.name: one for one in document.upstreams}
    others = CatalogueState(
        models=_others(state.models, {one.name for one in document.models} | document.refused),
        aliases=_others(state.aliases, document.aliases.keys() | document.refused),
        upstreams=_others(state.upstreams, upstreams),
    )
    kept = CatalogueState(models={}, aliases={}) if prune else others
    alias_problems, model_problems = _contradictions(document, kept)
    written = [model for model in document.models if model.name not in model_problems]
    model_changes = [change for model in written if (change := _model_change(model, state))]
    changed = {change.name for change in model_changes}
    alias_changes = [
        Change(action="change" if alias in state.aliases else "add", name=alias, model=target)
        for alias, target in document.aliases.items()
        if state.aliases.get(alias) != target and alias not in alias_problems
    ]
    upstream_changes = [
        change for one in document.upstreams if (change := _upstream_change(one, state))
    ]
    if prune:
        upstream_changes += [Change(action="remove", name=name) for name in others.upstreams]
        model_changes += [Change(action="remove", name=name) for name in others.models]
        alias_changes += [
            Change(action="remove", name=alias, model=model)
            for alias, model in others.aliases.items()
        ]
    return Plan(
        models=tuple(model_changes),
        aliases=tuple(alias_changes),
        upstreams=tuple(upstream_changes),
        notes=tuple(note for model in written for note in model.notes),
        unchanged=tuple(model.name for model in written if model.name not in changed),
        problems=(*document.problems, *alias_problems.values(), *model_problems.values()),
        left_alone=(*kept.models, *kept.aliases, *kept.upstreams),
        wanted={model.name: model.settings for model in written},
        wanted_upstreams=upstreams,
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
        message = message if target in models else f"There is no model {target!r}"
        if message:
            line = document.alias_lines.get(alias)
            of_aliases[alias] = Remark(line=line, entry=ALIASES, key=alias, message=message)
    of_models: dict[str, Remark] = {}
    for model in document.models:
        problem = _model_problem(model, models | document.refused, kept.aliases, upstreams)
        if problem:
            key, message = problem
            of_models[model.name] = Remark(
                line=model.line, entry=model.id, key=key, message=message
            )
    return of_aliases, of_models


def _model_problem(
    model: WrittenModel,
    models: Collection[str],
    kept_aliases: Mapping[str, str],
    upstreams: Collection[str],
) -> tuple[str, str] | None:
    if (target := kept_aliases.get(model.name)) is not None:
        return "id", f"{model.name} is an alias of {target} now, and the file leaves it alone"
    source = upstream_of(model.settings.source)
    for name in model.settings.upstream_names:
        if name not in upstreams:
            is_source = source is not None and source.upstream == name
            key = "source" if is_source else KEY_OF_SETTING["targets"]
            return key, f"There is no upstream {name!r}"
    base = model.settings.base
    if base is not None and base not in models:
        return KEY_OF_SETTING["base"], f"There is no model {base!r}"
    return None


def _model_change(model: WrittenModel, state: CatalogueState) -> Change | None:
    present = state.models.get(model.name)
    changes = tuple(
        SettingChange(
            setting=name,
            key=KEY_OF_SETTING[name],
            before=setting_to_toml(name, before),
            after=setting_to_toml(name, after),
        )
        for name, before, after in _differences(
            present or CatalogueSettings(source=""), model.settings, SETTINGS
        )
    )
    return _change(model.name, present is None, changes)


def _upstream_change(entry: UpstreamEntry, state: CatalogueState) -> Change | None:
    present = state.upstreams.get(entry.name)
    changes = tuple(
        SettingChange(setting=name, key=name, before=to_toml(before), after=to_toml(after))
        for name, before, after in _differences(
            present or UpstreamEntry(name=entry.name, url=""), entry, UPSTREAM_SETTINGS
        )
    )
    return _change(entry.name, present is None, changes)


def _change(name: str, is_new: bool, changes: tuple[SettingChange, ...]) -> Change | None:
    if not is_new and not changes:
        return None
    return Change(action="add" if is_new else "change", name=name, settings=changes)


def _differences(before: Any, after: Any, names: Collection[str]) -> Iterator[tuple[str, Any, Any]]:
    for name in names:
        earlier, later = getattr(before, name), getattr(after, name)
        if earlier != later:
            yield name, earlier, later


def write_document(state: CatalogueState) -> str:
    """Reads back as the same catalogue."""
    parts = [HEAD]
    parts += [_upstream(state.upstreams[name]) for name in sorted(state.upstreams)]
    parts += [_model(name, state.models[name]) for name in sorted(state.models)]
    if state.aliases:
        lines = [
            f"{to_toml(alias)} = {to_toml(name)}" for alias, name in sorted(state.aliases.items())
        ]
        parts.append("\n".join([ALIASES, *lines, ""]))
    return "\n".join(parts)


def _upstream(entry: UpstreamEntry) -> str:
    lines = ["[[upstreams]]", f"name = {to_toml(entry.name)}"]
    plain = UpstreamEntry(name=entry.name, url="")
    lines += [
        f"{name} = {to_toml(value)}"
        for name, _, value in _differences(plain, entry, UPSTREAM_SETTINGS)
    ]
    return "\n".join([*lines, ""])


def _model(name: str, settings: CatalogueSettings) -> str:
    lines = ["[[models]]", f"id = {to_toml(name)}", f"harness = {to_toml(OUR_HARNESS)}"]
    plain = CatalogueSettings(source="")
    tables: dict[str, list[str]] = {table: [] for table in TABLES}
    for setting, _, value in _differences(plain, settings, SETTINGS):
        table, dot, inner = KEY_OF_SETTING[setting].rpartition(".")
        place = tables[table] if dot else lines
        place.append(f"{inner} = {setting_to_toml(setting, value)}")
    lines += [f"{name} = {{ {', '.join(each)} }}" for name, each in tables.items() if each]
    return "\n".join([*lines, ""])
