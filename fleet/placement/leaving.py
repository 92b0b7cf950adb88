"""Why a replica is to leave the neuron that it is on. Pure.

    its neuron drains, or one that holds a stage of it ─▶ no new requests, but while it moves
    its model's pinned_on names other neurons          ─▶ it serves until another one does

The control moves what is to leave, placement routes by it, and loads that operators order go by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement.devices.eviction_candidates import HELD
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
