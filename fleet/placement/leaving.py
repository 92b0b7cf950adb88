"""Why a replica is to leave the neuron that it is on. Pure.

    its neuron drains, or one that holds a stage of it ─▶ no new requests, but while it moves
    its model's pinned_on names other neurons          ─▶ it serves until another one does

The control moves what is to leave, placement routes by it, and loads that operators order go by it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement.assignments import assignment_of
from fleet.placement.devices.capacity import HELD
from fleet.placement.held_stages import stage_neurons

DRAINS = "its neuron drains"
MISPLACED = "its pinned_on names other neurons"


def why_it_leaves(entry: CatalogueEntry, replica: ReplicaView, snapshot: FleetSnapshot) -> str:
    """The reason, in words; empty: it stays."""
    if drains(replica, snapshot):
        return DRAINS
    if entry.pinned_on and replica.neuron not in entry.pinned_on:
        return MISPLACED
    return ""


def drains(replica: ReplicaView, snapshot: FleetSnapshot) -> bool:
    """Whether its neuron takes no loads, or another one that holds a stage of it drains."""
    own = snapshot.neuron(replica.neuron)
    others = (snapshot.neuron(name) for name in stage_neurons(replica))
    return (
        own is None
        or not own.may_load
        or any(other is not None and other.is_draining for other in others)
    )


def staying(entry: CatalogueEntry, snapshot: FleetSnapshot) -> list[ReplicaView]:
    """The model's replicas that are loaded, or will be, and are not to leave."""
    return [
        replica
        for replica in snapshot.replicas_of(entry.name)
        if replica.status in HELD and not why_it_leaves(entry, replica, snapshot)
    ]


def why_not_loaded_on(
    entry: CatalogueEntry, neuron: NeuronView, snapshot: FleetSnapshot, loading: Collection[str]
) -> str:
    """Why the control would undo a load there, in words; empty: it would not. ``loading``: the
    neurons to which a load of the model is on its way."""
    if not neuron.may_load:
        return f"{neuron.name} {_state(neuron)}"
    if entry.pinned_on and neuron.name not in entry.pinned_on:
        return (
            f"{entry.name} may run on {', '.join(entry.pinned_on)} only, by its pinned_on: name "
            f"one of these, or add {neuron.name} to its pinned_on first"
        )
    others = {replica.neuron for replica in staying(entry, snapshot)} | {*loading}
    most = assignment_of(entry).max_replicas
    if neuron.name in others or len(others) < most:
        return ""
    return (
        f"{entry.name} is loaded on {', '.join(sorted(others))}, and by its max_replicas on {most} "
        f"at most: one would be unloaded again. Raise that, unload it there first, or move it by "
        f"naming {neuron.name} as its pinned_on"
    )


def _state(neuron: NeuronView) -> str:
    if not neuron.is_admitted:
        return "is not admitted: admit it first"
    if neuron.is_leaving:
        return "is stopping: it is loaded there once it is back"
    if neuron.is_draining:
        return "is draining: resume it first"
    return "takes no loads now: its problems are on its page"


def taking_requests(
    entry: CatalogueEntry, ready: Sequence[ReplicaView], snapshot: FleetSnapshot
) -> Sequence[ReplicaView]:
    """Those of ``ready`` that take new requests. A load elsewhere ends, so what drains serves until
    then; without one it takes none, or the drain would never end."""
    loaded = staying(entry, snapshot)
    if here := [replica for replica in ready if replica in loaded]:
        return here
    if loaded:
        return ready
    return [replica for replica in ready if not drains(replica, snapshot)]
