"""The live part of a model's page and of a neuron's: its state and its replicas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fleet.dashboard.board import download_row, model_row
from fleet.dashboard.neuron_rows import AWAY, neuron_rows
from fleet.dashboard.query import BoardQuery
from fleet.dashboard.rows import ModelRow, NeuronRow
from fleet.models import CatalogueModel, Neuron
from fleet.overview.lines import FleetOverview, ModelLine, NeuronLine, ReplicaLine
from fleet.overview.selector import fleet_overview


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHome:
    """``row`` is ``None`` where the model is not offered. ``neurons`` have replicas of it, or of
    its base, and no devices."""

    name: str
    row: ModelRow | None
    waits_for: str
    """The reason why no host can load it now; empty where one can, or has."""
    neurons: tuple[NeuronRow, ...]
    may_sleep: bool


def model_home(overview: FleetOverview, name: str, base: str = "") -> ModelHome:
    """``base``: an adapter's base model."""
    line = next((model for model in overview.models if model.name == name), None)

    def is_of_it(replica: ReplicaLine) -> bool:
        return replica.model == name or (replica.model == base and name in replica.adapters)

    holding = [
        replace(neuron, devices=(), replicas=tuple(filter(is_of_it, neuron.replicas)))
        for neuron in overview.neurons
    ]
    jobs = [job for job in overview.jobs if job.model == name]
    able = any(
        one.status == "ready" and not one.lies_on_hosts
        for neuron in holding
        for one in neuron.replicas
    )
    row = None if line is None else model_row(line, jobs)
    return ModelHome(
        name=name,
        row=row,
        waits_for="" if line is None else _waits_for(line),
        neurons=_unfolded(overview, [neuron for neuron in holding if neuron.replicas]),
        may_sleep=able and not base and (row is None or not row.is_kept_loaded),
    )


def _waits_for(line: ModelLine) -> str:
    if line.no_host:
        return f"No host can run it: {line.no_host}."
    return f"No host takes it now: {line.not_now}." if line.not_now else ""


def neuron_home(overview: FleetOverview, name: str) -> NeuronRow | None:
    found = [neuron for neuron in overview.neurons if neuron.name == name]
    return next(iter(_unfolded(overview, found)), None)


def _unfolded(overview: FleetOverview, neurons: list[NeuronLine]) -> tuple[NeuronRow, ...]:
    away = frozenset(neuron.name for neuron in neurons if neuron.status == AWAY)
    return neuron_rows(overview, neurons, query=BoardQuery(flipped=away), num_neurons=1)


def model_context(model: CatalogueModel) -> dict[str, Any]:
    settings = model.settings()
    home = model_home(fleet_overview(), model.name, settings.base or "")
    return {"home": home, "is_pinned": settings.pinned, "may_try": settings.task == "text"}


def neuron_context(neuron: Neuron) -> dict[str, Any]:
    overview = fleet_overview()
    downloads = [one for one in overview.downloads if one.neuron == neuron.name]
    return {
        "neuron_row": neuron_home(overview, neuron.name),
        "downloads": list(map(download_row, downloads)),
    }
