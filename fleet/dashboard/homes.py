"""The live part of a model's page and of a neuron's: its state and its replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.dashboard import rows
from fleet.dashboard.board import download_rows
from fleet.dashboard.query import BoardQuery
from fleet.models import CatalogueModel, Neuron
from fleet.overview import lines
from fleet.overview.selector import fleet_overview


def model_context(model: CatalogueModel) -> dict[str, Any]:
    """``home.row`` is ``None`` where the model is not offered. ``home.neurons`` have replicas of
    it, or of its base, and no devices. ``home.waits_for``: why no host can load it now."""
    settings, overview = model.settings(), fleet_overview()
    name, base = model.name, settings.base

    def is_of_it(replica: lines.ReplicaLine) -> bool:
        return replica.model == name or (replica.model == base and name in replica.adapters)

    line = next((one for one in overview.models if one.name == name), None)
    jobs = [job for job in overview.jobs if job.model == name]
    row = None if line is None else rows.model_row(line, jobs)
    holding = [
        replace(neuron, devices=(), replicas=replicas)
        for neuron in overview.neurons
        if (replicas := tuple(filter(is_of_it, neuron.replicas)))
    ]
    may_sleep = any(
        one.status == "ready" and not one.lies_on_hosts
        for neuron in holding
        for one in neuron.replicas
    )
    home = {
        "name": name,
        "row": row,
        "waits_for": "" if line is None else _waits_for(line),
        "neurons": _unfolded(overview, holding),
        "may_sleep": may_sleep and not base and (row is None or not row.is_kept_loaded),
    }
    return {"home": home, "is_pinned": settings.pinned, "may_try": settings.task == "text"}


def _waits_for(line: lines.ModelLine) -> str:
    if line.no_host:
        return f"No host can run it: {line.no_host}."
    return f"No host takes it now: {line.not_now}." if line.not_now else ""


def neuron_context(neuron: Neuron) -> dict[str, Any]:
    overview = fleet_overview()
    found = [one for one in overview.neurons if one.name == neuron.name]
    downloads = [one for one in overview.downloads if one.neuron == neuron.name]
    return {
        "neuron_row": next(iter(_unfolded(overview, found)), None),
        "downloads": download_rows(downloads),
    }


def _unfolded(
    overview: lines.FleetOverview, neurons: list[lines.NeuronLine]
) -> tuple[rows.NeuronRow, ...]:
    away = frozenset(neuron.name for neuron in neurons if neuron.status == rows.AWAY)
    return rows.neuron_rows(overview, neurons, query=BoardQuery(flipped=away), num_neurons=1)
