"""Applies decisions to a snapshot before heartbeats show them.

Callers apply each decision before making the next. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement.decisions import Load
from fleet.placement.devices.capacity import devices_of, freed_on
from fleet.placement.devices.needs import Needs
from inference.protocol.heartbeat import ReplicaStatus, device_name


def with_load(snapshot: FleetSnapshot, load: Load, entry: CatalogueEntry) -> FleetSnapshot:
    """Removes its evictions, and adds its own memory."""
    neuron = snapshot.neuron(load.neuron)
    if neuron is None:
        return snapshot
    taken = _taken_bytes(load, entry)
    loading = ReplicaView(
        neuron=neuron.name,
        model=load.model,
        job_id="",
        status=ReplicaStatus.LOADING,
        status_age_s=0.0,
        devices=load.devices,
        memory_bytes=sum(taken.values()),
    )
    neuron = _changed(neuron, {*load.evict, load.model}, taken)
    replicas = sorted([*neuron.replicas, loading], key=lambda replica: replica.model)
    snapshot = _with_neuron(snapshot, replace(neuron, replicas=tuple(replicas)))
    for stage in load.stages:
        if stage.neuron and (other := snapshot.neuron(stage.neuron)) is not None:
            changed = _changed(other, stage.evict, {stage.device: stage.memory_bytes})
            snapshot = _with_neuron(snapshot, changed)
    return snapshot


def with_status(
    snapshot: FleetSnapshot, neuron_name: str, model: str, status: ReplicaStatus
) -> FleetSnapshot:
    neuron = snapshot.neuron(neuron_name)
    if neuron is None:
        return snapshot
    replicas = tuple(
        replace(replica, status=status, status_age_s=0.0) if replica.model == model else replica
        for replica in neuron.replicas
    )
    return _with_neuron(snapshot, replace(neuron, replicas=replicas))


def _with_neuron(snapshot: FleetSnapshot, changed: NeuronView) -> FleetSnapshot:
    neurons = tuple(
        changed if neuron.name == changed.name else neuron for neuron in snapshot.neurons
    )
    return replace(snapshot, neurons=neurons)


def _changed(
    neuron: NeuronView, leaving: Collection[str], taken_bytes: Mapping[str, int]
) -> NeuronView:
    """The neuron without the replicas of ``leaving``, and with memory taken on its devices."""
    more_bytes = Counter[str]()
    for replica in neuron.replicas:
        for name in devices_of(replica, neuron) if replica.model in leaving else ():
            more_bytes[name] += freed_on(replica, name, neuron)
    devices = []
    for info in neuron.devices:
        free = min(info.total_memory_bytes, info.free_memory_bytes + more_bytes[device_name(info)])
        free = max(0, free - taken_bytes.get(device_name(info), 0))
        devices.append(msgspec.structs.replace(info, free_memory_bytes=free))
    replicas = tuple(one for one in neuron.replicas if one.model not in leaving)
    return replace(neuron, devices=tuple(devices), replicas=replicas)


def _taken_bytes(load: Load, entry: CatalogueEntry) -> dict[str, int]:
    """The load's bytes on each device of its own neuron; 0 where unknown."""
    if load.stages:
        return {stage.device: stage.memory_bytes for stage in load.stages if not stage.neuron}
    kind: DeviceKind = "cpu" if "cpu" in load.devices else "cuda"
    each = Needs(entry).device_bytes(load.neuron, kind) or 0
    return dict.fromkeys(load.devices, each)
