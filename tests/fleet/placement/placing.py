"""Neurons, replicas and measured loads for tests of one model's placement."""

from __future__ import annotations

from dataclasses import replace

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind, MeasuredLoad
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Decision, place
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus

GIB = 1024**3
TINY = CatalogueEntry(name="tiny", source="pypi:tiny")
MEASURED = replace(TINY, weight_bytes=4 * GIB)
READY, LOADING = ReplicaStatus.READY, ReplicaStatus.LOADING
RECOVERING, DRAINING = ReplicaStatus.RECOVERING, ReplicaStatus.DRAINING
FAILED = ReplicaStatus.FAILED


def replica(neuron: str, status: ReplicaStatus, **changes) -> ReplicaView:
    values = {"model": "tiny", "job_id": "job", "status_age_s": 5.0}
    return ReplicaView(neuron=neuron, status=status, **values | changes)


def neuron(name: str, *replicas: ReplicaView, free_gib: int = 8, devices: int = 1) -> NeuronView:
    return NeuronView(
        name=name,
        epoch="epoch",
        version="0",
        devices=tuple(
            DeviceInfo(
                index=index,
                kind="cpu",
                name="a processor",
                total_memory_bytes=64 * GIB,
                free_memory_bytes=free_gib * GIB,
            )
            for index in range(devices)
        ),
        replicas=replicas,
    )


def decide(*neurons: NeuronView, entry: CatalogueEntry = TINY) -> Decision:
    return place(entry, FleetSnapshot(neurons=neurons))


def took(neuron: str, gib: float, kind: DeviceKind = "cpu") -> MeasuredLoad:
    return MeasuredLoad(
        neuron=neuron,
        device_kind=kind,
        load_bytes=int(gib * GIB),
        process_bytes=0,
        kv_token_bytes=0,
        memory_correction_bytes=0,
        prefill_speed=None,
    )
