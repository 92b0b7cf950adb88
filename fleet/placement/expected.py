"""Applies decisions to a snapshot before heartbeats show them.

Callers apply each decision before making the next. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement.decisions import Load
from fleet.placement.devices.capacity import devices_of, freed_on
from fleet.placement.devices.needs import Needs
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus, device_name
from inference.protocol.load import StageSpec


def with_time_slices(snapshot: FleetSnapshot, time_slices: Iterable[TimeSlice]) -> FleetSnapshot:
    return replace(snapshot, time_slices=tuple(time_slices))


def with_load(snapshot: FleetSnapshot, load: Load, entry: CatalogueEntry) -> FleetSnapshot:
    """Removes its evictions, and adds its own memory."""
    neuron = snapshot.neuron(load.neuron)
    if neuron is None:
        return snapshot
    neuron = _without(neuron, {*load.evict, load.model})
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
    changed = replace(
        neuron,
        devices=tuple(
            _with_free(info, -taken.get(device_name(info), 0)) for info in neuron.devices
        ),
        replicas=tuple(sorted([*neuron.replicas, loading], key=lambda replica: replica.model)),
    )
    for stage in load.stages:
        if stage.neuron and (other := snapshot.neuron(stage.neuron)) is not None:
            cleared = _without(other, {*stage.evict})
            snapshot = _with_neuron(snapshot, _with_stage(cleared, stage))
    return _with_neuron(snapshot, changed)


def _without(neuron: NeuronView, models: Collection[str]) -> NeuronView:
    leaving = [replica for replica in neuron.replicas if replica.model in models]
    if not leaving:
        return neuron
    freed = dict.fromkeys(map(device_name, neuron.devices), 0)
    for replica in leaving:
        for name in devices_of(replica, neuron):
            freed[name] = freed.get(name, 0) + freed_on(replica, name, neuron)
    return replace(
        neuron,
        devices=tuple(_with_free(info, freed[device_name(info)]) for info in neuron.devices),
        replicas=tuple(one for one in neuron.replicas if one.model not in models),
    )


def _with_stage(neuron: NeuronView, stage: StageSpec) -> NeuronView:
    return replace(
        neuron,
        devices=tuple(
            _with_free(info, -stage.memory_bytes) if device_name(info) == stage.device else info
            for info in neuron.devices
        ),
    )


def _taken_bytes(load: Load, entry: CatalogueEntry) -> dict[str, int]:
    """The load's bytes on each device of its own neuron; 0 where unknown."""
    if load.stages:
        return {stage.device: stage.memory_bytes for stage in load.stages if not stage.neuron}
    kind: DeviceKind = "cpu" if "cpu" in load.devices else "cuda"
    each = Needs(entry).device_bytes(load.neuron, kind) or 0
    return dict.fromkeys(load.devices, each)


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
