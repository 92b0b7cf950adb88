"""What the database knows of neurons that report: read for all of them at once, so that a tick of
the control costs as many queries for a hundred neurons as for one.

What changes after the reading is seen at the next tick: whatever is written by these rows is a
conditional UPDATE, or a value that the next report writes again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import Q

from fleet import selectors
from fleet.models import Device, LoadJob, LoadMeasurement, Neuron, NeuronWish, Replica
from inference.protocol.keys import NEURON_NAME

OfNeuron = TypeVar("OfNeuron", Device, Replica, LoadJob, LoadMeasurement)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronRows:
    neuron: Neuron | None
    desired: NeuronWish | None
    devices: list[Device]
    replicas: list[Replica]
    active_jobs: list[LoadJob]
    measurements: list[LoadMeasurement]


def neuron_rows(name: str) -> NeuronRows:
    return rows_by_neuron([name])[name]


def rows_by_neuron(names: Iterable[str]) -> Mapping[str, NeuronRows]:
    """Every name has its rows, also one that the database does not know, or could not."""
    asked = set(names)
    known = sorted(name for name in asked if NEURON_NAME.fullmatch(name))
    neurons = {row.name: row for row in Neuron.objects.filter(name__in=known)}
    desired_states = {
        row.neuron_name: row for row in NeuronWish.objects.filter(neuron_name__in=known)
    }
    theirs = Q(neuron__name__in=known)
    devices = _by_neuron(Device.objects.filter(theirs))
    replicas = _by_neuron(Replica.objects.filter(theirs))
    jobs = _by_neuron(selectors.load_jobs_active().filter(theirs))
    measurements = _by_neuron(LoadMeasurement.objects.filter(theirs).select_related("model"))

    def rows(name: str) -> NeuronRows:
        neuron = neurons.get(name)
        key = -1 if neuron is None else neuron.pk
        return NeuronRows(
            neuron=neuron,
            desired=desired_states.get(name),
            devices=devices[key],
            replicas=replicas[key],
            active_jobs=jobs[key],
            measurements=measurements[key],
        )

    return {name: rows(name) for name in asked}


def _by_neuron(rows: Iterable[OfNeuron]) -> defaultdict[int, list[OfNeuron]]:
    found: defaultdict[int, list[OfNeuron]] = defaultdict(list)
    for row in rows:
        found[row.neuron_id].append(row)
    return found
