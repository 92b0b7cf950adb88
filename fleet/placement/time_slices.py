"""Schedules time slices on devices where models that do not fit together are both in use.

    a model waits ─▶ the time slices of those in use there end ─▶ they are drained, and the room is
                     promised to the one that has waited longest ─▶ its load begins its time slice

Requests for a model that waits are collated meanwhile: its time slice serves all of them. It lasts
``time_slice_s`` at least, so models do not thrash. A model waits for at most one slice of each
model that has waited longer. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.live.snapshot import FleetSnapshot
from fleet.live.time_slices import TimeSlice
from fleet.placement.decisions import Catalogue
from fleet.placement.devices.candidates import PlacementCandidate
from fleet.placement.devices.capacity import HELD, REPLACEABLE, FleetCapacity
from fleet.placement.devices.room import find_room
from fleet.placement.devices.sleeping import asleep_of
from fleet.placement.failures import failed_loads, with_reported_costs
from fleet.placement.plan import Unload, Waiting
from inference.protocol.heartbeat import ReplicaStatus

MAX_PROMISE_S = 180.0
"""How long room stays promised. Drains end within two minutes."""


def time_slices_kept(
    time_slices: Sequence[TimeSlice], snapshot: FleetSnapshot, waiting: Mapping[str, Waiting]
) -> tuple[TimeSlice, ...]:
    """The time slices whose model still waits and has not got its room yet."""
    return tuple(
        time_slice
        for time_slice in time_slices
        if time_slice.age_s < MAX_PROMISE_S
        and time_slice.model in waiting
        and snapshot.neuron(time_slice.neuron) is not None
        and not any(replica.status in HELD for replica in snapshot.replicas_of(time_slice.model))
    )


def time_slice_given(
    model: str, snapshot: FleetSnapshot, catalogue: Catalogue
) -> tuple[TimeSlice, tuple[Unload, ...]] | None:
    """The time slice that a waiting model gets now, and the unloads for it; ``None``: not yet."""
    entry = catalogue.get(model)
    if entry is None or any(time_slice.model == model for time_slice in snapshot.time_slices):
        return None
    replicas = snapshot.replicas_of(model)
    if any(replica.status not in REPLACEABLE for replica in replicas):
        return None
    entry = with_reported_costs(entry, replicas)
    failed = failed_loads(entry, replicas)
    if failed.everywhere is not None:
        return None
    capacity, asleep = FleetCapacity(snapshot, catalogue), asleep_of(entry, replicas)
    candidate = find_room(
        entry,
        capacity,
        excluded=failed.neurons,
        excluded_as_stages=failed.neurons_as_stages,
        asleep=asleep,
    ).after_time_slices
    if candidate is None or candidate.is_promised or candidate.ready_in_s > 0:
        return None
    return _time_slice(model, candidate), tuple(_leaving(model, candidate))


def _time_slice(model: str, candidate: PlacementCandidate) -> TimeSlice:
    return TimeSlice(
        model=model,
        neuron=candidate.neuron,
        devices=candidate.devices,
        device_bytes=candidate.device_bytes or 0,
        stage_bytes=tuple(stage.memory_bytes for stage in candidate.stages),
        evicted=candidate.evict,
    )


def _leaving(model: str, candidate: PlacementCandidate) -> list[Unload]:
    return [
        Unload(
            neuron=candidate.neuron,
            model=one.replica.model,
            reason=f"{model} has waited for its time slice",
        )
        for one in candidate.evicted
        if one.replica.status is not ReplicaStatus.DRAINING
    ]
