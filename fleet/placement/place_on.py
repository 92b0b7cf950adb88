"""Places a load on a neuron that the operator named: its devices and evictions. Pure."""

from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView
from fleet.placement.decisions import Catalogue, Load, Reject
from fleet.placement.devices.capacity import FleetCapacity
from fleet.placement.devices.room import find_room
from fleet.placement.devices.sleeping import asleep_of
from fleet.placement.failures import NONE_FAILED, with_reported_costs
from fleet.placement.place import load_decision
from fleet.placement.refusals import refuse


def place_on(
    entry: CatalogueEntry,
    neuron: NeuronView,
    snapshot: FleetSnapshot,
    catalogue: Catalogue | None = None,
) -> Load | Reject:
    """Ignores earlier failures: the operator wants it there."""
    here = FleetCapacity(snapshot, catalogue).only(neuron.name)
    held = neuron.replica_of(entry.name)
    entry = with_reported_costs(entry, [held] if held is not None else [])
    asleep = asleep_of(entry, [held] if held is not None else [])
    room = find_room(entry, here, asleep=asleep)
    if room.candidate is not None:
        return load_decision(entry, room.candidate)
    return refuse(entry, snapshot, here, NONE_FAILED, only=(neuron.name,), division=room.division)
