"""Builders of catalogue entries and fleets: sizes in GiB, a card by default."""

from __future__ import annotations

from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind, MeasuredLoad
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Catalogue
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus

GIB = 1024**3
READY, LOADING = ReplicaStatus.READY, ReplicaStatus.LOADING
RECOVERING, DRAINING = ReplicaStatus.RECOVERING, ReplicaStatus.DRAINING
FAILED = ReplicaStatus.FAILED


def entry(name: str = "tiny", needs_gib: float | None = None, **changes: Any) -> CatalogueEntry:
    """``needs_gib``: of its weights, which were measured somewhere else; ``None``: never."""
    weights = None if needs_gib is None else int(needs_gib * GIB)
    values: dict[str, Any] = {"source": f"huggingface:org/{name}", "weight_bytes": weights}
    return CatalogueEntry(name=name, **values | changes)


def took(neuron: str, gib: float, kind: DeviceKind = "cuda") -> MeasuredLoad:
    return MeasuredLoad(
        neuron=neuron,
        device_kind=kind,
        load_bytes=int(gib * GIB),
        process_bytes=0,
        kv_token_bytes=0,
        memory_correction_bytes=0,
        prefill_speed=None,
    )


def catalogue(*entries: CatalogueEntry) -> Catalogue:
    return {entry.name: entry for entry in entries}


def card(index: int = 0, *, free: float, total: float = 24) -> DeviceInfo:
    return DeviceInfo(
        index=index,
        kind="cuda",
        name="a card",
        total_memory_bytes=int(total * GIB),
        free_memory_bytes=int(free * GIB),
    )


def processor(*, free: float, total: float = 128) -> DeviceInfo:
    return DeviceInfo(
        index=0,
        kind="cpu",
        name="a processor",
        total_memory_bytes=int(total * GIB),
        free_memory_bytes=int(free * GIB),
    )


def replica(model: str, status: ReplicaStatus = READY, **changes: Any) -> ReplicaView:
    """Ready and idle for ten minutes on the first card, where it takes ten GiB. ``on`` names its
    neuron, ``gib`` its size."""
    gib = changes.pop("gib", 10)
    values: dict[str, Any] = {
        "neuron": changes.pop("on", "a"),
        "job_id": "job",
        "status_age_s": 600.0,
        "devices": ("cuda:0",),
        "memory_bytes": int(gib * GIB),
        "last_used_age_s": 600.0,
    }
    return ReplicaView(model=model, status=status, **values | changes)


def busy(model: str, **changes: Any) -> ReplicaView:
    return replica(model, **{"in_flight": 1, "last_used_age_s": 0.0} | changes)


def neuron(
    name: str, *devices: DeviceInfo, holds: tuple[ReplicaView, ...] = (), **changes: Any
) -> NeuronView:
    return NeuronView(
        name=name,
        epoch="epoch",
        version="0",
        devices=devices,
        replicas=tuple(sorted(holds, key=lambda view: view.model)),
        **changes,
    )


def fleet(*neurons: NeuronView, **changes: Any) -> FleetSnapshot:
    return FleetSnapshot(neurons=tuple(sorted(neurons, key=lambda view: view.name)), **changes)
