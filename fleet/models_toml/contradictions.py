"""Entries of a models.toml that contradict what stays in the catalogue beside them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fleet.catalogue.sources import upstream_of
from fleet.models_toml.document import Document, WrittenModel
from fleet.models_toml.keys import KEY_OF_SETTING
from fleet.models_toml.problems import Problem
from fleet.models_toml.state import CatalogueState


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradictions:
    """``models`` and ``aliases`` are the names that are refused."""

    problems: tuple[Problem, ...]
    models: frozenset[str]
    aliases: frozenset[str]


def find_contradictions(
    document: Document,
    state: CatalogueState,
    *,
    kept_models: Collection[str],
    kept_aliases: Collection[str],
    prunes: bool,
) -> Contradictions:
    names = {model.name for model in document.models} | set(kept_models)
    of_aliases = dict(_of_aliases(document, names, kept_models))
    named = {entry.name for entry in document.upstreams}
    upstreams = named if prunes else named | state.upstreams.keys()
    of_models = {
        model.name: problem
        for model in document.models
        if (problem := _of_model(model, state, names | document.refused, kept_aliases, upstreams))
    }
    return Contradictions(
        problems=(*of_aliases.values(), *of_models.values()),
        models=frozenset(of_models),
        aliases=frozenset(of_aliases),
    )


def _of_aliases(
    document: Document, names: Collection[str], kept_models: Collection[str]
) -> Iterator[tuple[str, Problem]]:
    for alias, target in document.aliases.items():
        if target not in names:
            message = f"There is no model {target!r}"
        elif alias in kept_models:
            message = "A model of the catalogue has that name"
        else:
            continue
        line = document.alias_lines.get(alias)
        yield alias, Problem(line=line, entry="[aliases]", key=alias, message=message)


def _of_model(
    model: WrittenModel,
    state: CatalogueState,
    names: Collection[str],
    kept_aliases: Collection[str],
    upstreams: Collection[str],
) -> Problem | None:
    if model.name in kept_aliases:
        target = state.aliases[model.name]
        message = f"{model.name} is an alias of {target} now, and the file leaves it alone"
        return Problem(line=model.line, entry=model.id, key="id", message=message)
    served = upstream_of(model.settings.source)
    for name in model.settings.upstream_names:
        if name not in upstreams:
            is_source = served is not None and served.upstream == name
            key = "source" if is_source else KEY_OF_SETTING["targets"]
            message = f"There is no upstream {name!r}"
            return Problem(line=model.line, entry=model.id, key=key, message=message)
    base = model.settings.base
    if base is not None and base not in names:
        message = f"There is no model {base!r}"
        key = KEY_OF_SETTING["base"]
        return Problem(line=model.line, entry=model.id, key=key, message=message)
    return None
