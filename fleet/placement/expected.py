"""A snapshot as it will look once decisions show in heartbeats.

A caller that makes several decisions on one snapshot applies each before the next one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.live.turns import Turn
from fleet.placement.decisions import Load
from fleet.placement.devices.eviction_candidates import devices_of, freed_bytes
from fleet.placement.devices.needs import Needs
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus, device_name


def with_turns(snapshot: FleetSnapshot, turns: Iterable[Turn]) -> FleetSnapshot:
    return replace(snapshot, turns=tuple(turns))


def with_load(snapshot: FleetSnapshot, load: Load, entry: CatalogueEntry) -> FleetSnapshot:
    """What it evicts is gone, and its own memory is taken."""
    neuron = snapshot.neuron(load.neuron)
    if neuron is None:
        return snapshot
    staying = [r for r in neuron.replicas if r.model not in (*load.evict, load.model)]
    freed = dict.fromkeys(map(device_name, neuron.devices), 0)
    for replica in neuron.replicas:
        if replica not in staying:
            for name in devices_of(replica, neuron):
                freed[name] = freed.get(name, 0) + freed_bytes(replica)
    kind = "cpu" if "cpu" in load.devices else "cuda"
    each = Needs(entry).device_bytes(neuron.name, "cpu" if kind == "cpu" else "cuda") or 0
    loading = ReplicaView(
        neuron=neuron.name,
        model=load.model,
        job_id="",
        status=ReplicaStatus.LOADING,
        status_age_s=0.0,
        devices=load.devices,
        memory_bytes=each * len(load.devices),
    )
    changed = replace(
        neuron,
        devices=tuple(
            _with_free(info, freed[device_name(info)] - each * (device_name(info) in load.devices))
            for info in neuron.devices
        ),
        replicas=tuple(sorted([*staying, loading], key=lambda replica: replica.model)),
    )
    return _with_neuron(snapshot, changed)


def with_unload(snapshot: FleetSnapshot, neuron_name: str, model: str) -> FleetSnapshot:
    return with_status(snapshot, neuron_name, model, ReplicaStatus.DRAINING)


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


def _with_free(info: DeviceInfo, more_bytes: int) -> DeviceInfo:
    free = min(info.total_memory_bytes, max(0, info.free_memory_bytes + more_bytes))
    return msgspec.structs.replace(info, free_memory_bytes=free)
