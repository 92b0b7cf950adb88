"""Schedules time slices on devices where models that do not fit together are both in use.

    a model waits ─▶ those in use there have had their turn ─▶ they are drained, and the room is
                     promised to the one that has waited longest ─▶ it is loaded, and has its turn

Requests for a model that waits are collated meanwhile: its turn serves all of them. A time slice
lasts ``turn_s`` at least, so models do not thrash. A model waits for at most one slice of each
model that has waited longer. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.live.snapshot import FleetSnapshot
from fleet.live.turns import Turn
from fleet.placement.decisions import Catalogue
from fleet.placement.devices.candidates import PlacementCandidate
from fleet.placement.devices.eviction_candidates import HELD, REPLACEABLE, capacity_of
from fleet.placement.devices.room import Room, find_room
from fleet.placement.devices.sleeping import asleep_of
from fleet.placement.failures import failed_loads
from fleet.placement.plan import Unload, Waiting
from inference.protocol.heartbeat import ReplicaStatus

MAX_PROMISE_S = 180.0
"""How long room stays promised. Drains end within two minutes."""


def turns_kept(
    turns: Sequence[Turn], snapshot: FleetSnapshot, waiting: Mapping[str, Waiting]
) -> tuple[Turn, ...]:
    """The turns whose model still waits and has not got its room yet."""
    return tuple(
        turn
        for turn in turns
        if turn.age_s < MAX_PROMISE_S
        and turn.model in waiting
        and snapshot.neuron(turn.neuron) is not None
        and not any(replica.status in HELD for replica in snapshot.replicas_of(turn.model))
    )


def turn_given(
    model: str, snapshot: FleetSnapshot, catalogue: Catalogue
) -> tuple[Turn, tuple[Unload, ...]] | None:
    """The turn that a waiting model gets now, and who leaves for it; ``None``: not yet."""
    entry = catalogue.get(model)
    if entry is None or any(turn.model == model for turn in snapshot.turns):
        return None
    replicas = snapshot.replicas_of(model)
    if any(replica.status not in REPLACEABLE for replica in replicas):
        return None
    failed = failed_loads(entry, replicas)
    if failed.everywhere is not None:
        return None
    capacity, asleep = capacity_of(snapshot, catalogue), asleep_of(entry, replicas)
    room: Room = find_room(entry, capacity, excluded=failed.neurons, asleep=asleep)
    if room.turn is None or room.turn.is_promised or room.turn.ready_in_s > 0:
        return None
    return _turn(model, room.turn), tuple(_leaving(model, room.turn))


def _turn(model: str, candidate: PlacementCandidate) -> Turn:
    return Turn(
        model=model,
        neuron=candidate.neuron,
        devices=candidate.devices,
        device_bytes=candidate.device_bytes or 0,
        evicted=candidate.evict,
    )


def _leaving(model: str, candidate: PlacementCandidate) -> list[Unload]:
    return [
        Unload(
            neuron=candidate.neuron,
            model=one.replica.model,
            reason=f"{model} has waited for its turn",
        )
        for one in candidate.evicted
        if one.replica.status is not ReplicaStatus.DRAINING
    ]
