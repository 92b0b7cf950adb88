"""Models that no device could hold, hosts for them, and what a division of one keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView
from fleet.placement import Load, place
from fleet.placement.expected import with_load
from inference.protocol.heartbeat import device_name
from tests.fleet.placement.fleets import catalogue, dense, entry, fleet
from tests.fleet.placement.worlds import host_of

MIXED = host_of("box 24 12/12 8/8")


def large(gb: float = 36, **changes: Any) -> CatalogueEntry:
    return entry("large", **{"costs": dense(gb)} | changes)


def wide(gb: float = 40, **changes: Any) -> CatalogueEntry:
    """A model that may lie on several hosts."""
    return large(gb, **{"spread": "fleet"} | changes)


def host(text: str, **changes: Any) -> NeuronView:
    """A host that lends stages."""
    return replace(host_of(text), **{"stage_host": "lan"} | changes)


def placed(
    model: CatalogueEntry, *hosts: NeuronView | str, others: Any = (), **options: Any
) -> Any:
    """``hosts`` in words lend no stages."""
    neurons = [host_of(one) if isinstance(one, str) else one for one in hosts]
    return place(model, fleet(*neurons), catalogue=catalogue(model, *others), **options)


def neurons_of(load: Load) -> list[str]:
    return [stage.neuron for stage in load.stages]


def free_bytes(snapshot: FleetSnapshot) -> dict[tuple[str, str], int]:
    return {
        (view.name, device_name(one)): one.free_memory_bytes
        for view in snapshot.neurons
        for one in view.devices
    }


def stage_bytes(load: Load) -> dict[tuple[str, str], int]:
    return {
        (stage.neuron or load.neuron, stage.device): stage.memory_bytes for stage in load.stages
    }


def check(load: Load, snapshot: FleetSnapshot, model: CatalogueEntry) -> None:
    """All layers are there once, in order, and each device has room for its stage."""
    bounds = [0, *(stage.layers[1] for stage in load.stages)]
    assert [stage.layers[0] for stage in load.stages] == bounds[:-1] and bounds[-1] == 48
    assert bounds == sorted({*bounds}) and len(load.stages) > 1
    assert load.predicted_tokens_per_s is not None and load.predicted_tokens_per_s > 1
    if not load.evictions:
        free, taken = free_bytes(snapshot), stage_bytes(load)
        assert all(10**9 < taken[where] <= free[where] for where in taken)
        expected = {where: free[where] - taken.get(where, 0) for where in free}
        assert free_bytes(with_load(snapshot, load, model)) == expected
