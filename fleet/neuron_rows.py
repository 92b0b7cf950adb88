"""What the database knows of neurons that report: read for all of them at once, so that a tick of
the control costs as many queries for a hundred neurons as for one.

What changes after the reading is seen at the next tick: whatever is written by these rows is a
conditional UPDATE, or a value that the next report writes again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet import selectors
from fleet.models import Device, LoadJob, LoadMeasurement, Neuron, NeuronWish, Replica
from inference.protocol.keys import NEURON_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronRows:
    neuron: Neuron | None
    wish: NeuronWish | None
    devices: list[Device]
    replicas: list[Replica]
    active_jobs: list[LoadJob]
    measurements: list[LoadMeasurement]


def neuron_rows(name: str) -> NeuronRows:
    return rows_by_neuron([name])[name]


def rows_by_neuron(names: Iterable[str]) -> Mapping[str, NeuronRows]:
    """Of each of these names, also of one that the database does not know, or could not."""
    asked = set(names)
    names = sorted(name for name in asked if NEURON_NAME.fullmatch(name))
    neurons = {row.name: row for row in Neuron.objects.filter(name__in=names)}
    wishes = {row.neuron_name: row for row in NeuronWish.objects.filter(neuron_name__in=names)}
    devices: defaultdict[int, list[Device]] = defaultdict(list)
    for device in Device.objects.filter(neuron__name__in=names):
        devices[device.neuron_id].append(device)
    replicas: defaultdict[int, list[Replica]] = defaultdict(list)
    for replica in Replica.objects.filter(neuron__name__in=names):
        replicas[replica.neuron_id].append(replica)
    jobs: defaultdict[int, list[LoadJob]] = defaultdict(list)
    for job in selectors.load_jobs_active().filter(neuron__name__in=names):
        jobs[job.neuron_id].append(job)
    measurements: defaultdict[int, list[LoadMeasurement]] = defaultdict(list)
    for measurement in LoadMeasurement.objects.filter(neuron__name__in=names).select_related(
        "model"
    ):
        measurements[measurement.neuron_id].append(measurement)

    def rows(name: str) -> NeuronRows:
        neuron = neurons.get(name)
        key = -1 if neuron is None else neuron.pk
        return NeuronRows(
            neuron=neuron,
            wish=wishes.get(name),
            devices=devices[key],
            replicas=replicas[key],
            active_jobs=jobs[key],
            measurements=measurements[key],
        )

    return {name: rows(name) for name in asked}
