"""What an import would change: the difference between a document and the catalogue. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fleet.catalogue import SETTINGS, CatalogueSettings
from fleet.models_toml.contradictions import find_contradictions
from fleet.models_toml.document import Document, WrittenModel
from fleet.models_toml.keys import KEY_OF_SETTING, to_toml
from fleet.models_toml.problems import Problem
from fleet.models_toml.state import CatalogueState
from fleet.models_toml.upstreams import differences
from fleet.upstreams.entry import UpstreamEntry

Action = Literal["add", "change", "remove"]
SIGNS: dict[Action, str] = {"add": "+", "change": "~", "remove": "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """``before`` and ``after`` as a models.toml would have them."""

    setting: str
    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    action: Action
    name: str
    settings: tuple[SettingChange, ...] = ()
    """The settings that differ; for a new model those that differ from the defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasChange:
    action: Action
    name: str
    model: str
    """The model that the alias stands for; one that is removed stood for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamChange:
    action: Action
    name: str
    settings: tuple[tuple[str, ...], ...] = ()
    """The settings that differ: name, earlier and later value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryNote:
    entry: str
    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    models: tuple[ModelChange, ...]
    aliases: tuple[AliasChange, ...]
    notes: tuple[EntryNote, ...]
    """Settings of the file that are not honoured, or not as in the original."""
    unchanged: tuple[str, ...]
    """Models of the file that equal the catalogue's."""
    problems: tuple[Problem, ...]
    """Why entries are refused. While there are any, nothing is imported."""
    left_alone: tuple[str, ...]
    """Models, aliases and upstreams that the file does not name."""
    wanted: Mapping[str, CatalogueSettings]
    """The models of the file."""
    upstreams: tuple[UpstreamChange, ...] = ()
    wanted_upstreams: Mapping[str, UpstreamEntry] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.models and not self.aliases and not self.upstreams

    @property
    def digest(self) -> str:
        """Identifies its changes, so that only the plan that the operator confirmed is applied."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()[:16]

    def lines(self) -> Iterator[str]:
        """Yields lines for people: one for each change, note or problem, and for what stays as it
        is."""
        for upstream in self.upstreams:
            yield f"{SIGNS[upstream.action]} upstream {upstream.name}"
            for name, before, after in upstream.settings:
                earlier = f"{before} -> " if upstream.action == "change" else ""
                yield f"    {name} = {earlier}{after}"
        for model in self.models:
            yield f"{SIGNS[model.action]} model {model.name}"
            for change in model.settings:
                earlier = f"{change.before} -> " if model.action == "change" else ""
                yield f"    {change.key} = {earlier}{change.after}"
        for name in self.unchanged:
            yield f"= model {name}"
        for alias in self.aliases:
            yield f"{SIGNS[alias.action]} alias {alias.name} = {alias.model}"
        for note in self.notes:
            yield f"! {note.entry}, {note.key}: {note.message}"
        for problem in self.problems:
            yield f"x {problem}"
        if self.left_alone:
            yield f"  not in the file, left alone: {', '.join(self.left_alone)}"


def plan_import(document: Document, state: CatalogueState, *, prune: bool) -> Plan:
    """``prune``: what the file does not name is removed. What of the file and what stays beside it
    contradict each other is refused."""
    named = {model.name for model in document.models} | document.refused
    unnamed_models = sorted(state.models.keys() - named)
    unnamed_aliases = sorted(state.aliases.keys() - document.aliases.keys() - document.refused)
    contradictions = find_contradictions(
        document,
        state,
        kept_models=set() if prune else set(unnamed_models),
        kept_aliases=set() if prune else set(unnamed_aliases),
        prunes=prune,
    )
    written = [model for model in document.models if model.name not in contradictions.models]
    models = [change for model in written if (change := _model_change(model, state))]
    changed = {change.name for change in models}
    aliases = [
        AliasChange(action="change" if alias in state.aliases else "add", name=alias, model=target)
        for alias, target in document.aliases.items()
        if state.aliases.get(alias) != target and alias not in contradictions.aliases
    ]
    upstreams = list(_upstream_changes(document, state))
    named_upstreams = {entry.name for entry in document.upstreams}
    unnamed_upstreams = sorted(state.upstreams.keys() - named_upstreams)
    if prune:
        upstreams += [UpstreamChange(action="remove", name=name) for name in unnamed_upstreams]
        models += [ModelChange(action="remove", name=name) for name in unnamed_models]
        aliases += [
            AliasChange(action="remove", name=alias, model=state.aliases[alias])
            for alias in unnamed_aliases
        ]
    return Plan(
        models=tuple(models),
        aliases=tuple(aliases),
        notes=tuple(
            EntryNote(entry=model.id, key=note.key, message=note.message)
            for model in written
            for note in model.notes
        ),
        unchanged=tuple(model.name for model in written if model.name not in changed),
        problems=(*document.problems, *contradictions.problems),
        left_alone=() if prune else (*unnamed_models, *unnamed_aliases, *unnamed_upstreams),
        wanted={model.name: model.settings for model in written},
        upstreams=tuple(upstreams),
        wanted_upstreams={entry.name: entry for entry in document.upstreams},
    )


def _upstream_changes(document: Document, state: CatalogueState) -> Iterator[UpstreamChange]:
    for entry in document.upstreams:
        present = state.upstreams.get(entry.name)
        changes = tuple(differences(present, entry))
        if present is None:
            yield UpstreamChange(action="add", name=entry.name, settings=changes)
        elif changes:
            yield UpstreamChange(action="change", name=entry.name, settings=changes)


def _model_change(model: WrittenModel, state: CatalogueState) -> ModelChange | None:
    present = state.models.get(model.name)
    if present is None:
        plain = CatalogueSettings(source="")
        changes = _setting_changes(plain, model.settings)
        return ModelChange(action="add", name=model.name, settings=changes)
    if changes := _setting_changes(present, model.settings):
        return ModelChange(action="change", name=model.name, settings=changes)
    return None


def _setting_changes(
    before: CatalogueSettings, after: CatalogueSettings
) -> tuple[SettingChange, ...]:
    return tuple(
        SettingChange(
            setting=name,
            key=KEY_OF_SETTING[name],
            before=to_toml(name, getattr(before, name)),
            after=to_toml(name, getattr(after, name)),
        )
        for name in SETTINGS
        if getattr(before, name) != getattr(after, name)
    )
