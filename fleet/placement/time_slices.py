"""Gives models that do not fit together, and are both in use, their time slices. Pure.

    a model waits ─▶ the time slices of those in use there end ─▶ they are drained, and the room is
                     promised to the one that has waited longest ─▶ its load begins its time slice

It serves all requests waiting by then and lasts ``time_slice_s`` at least, so models do not thrash.
A model waits for at most one slice of each model that has waited longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.decisions import Catalogue, Unload, Waiting
from fleet.placement.devices.capacity import HELD, REPLACEABLE
from fleet.placement.devices.room import find_room
from fleet.placement.leaving import unload_of
from inference.protocol.heartbeat import ReplicaStatus

MAX_PROMISE_S = 180.0
"""How long memory stays promised. Drains end within two minutes."""


def time_slices_kept(
    time_slices: Sequence[TimeSlice], snapshot: FleetSnapshot, waiting: Mapping[str, Waiting]
) -> tuple[TimeSlice, ...]:
    """The time slices whose model still waits and is not placed yet."""
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
) -> tuple[TimeSlice, list[Unload]] | None:
    """The time slice for a waiting model, with the unloads for it; ``None``: not yet."""
    entry = catalogue.get(model)
    if entry is None or any(time_slice.model == model for time_slice in snapshot.time_slices):
        return None
    if any(replica.status not in REPLACEABLE for replica in snapshot.replicas_of(model)):
        return None
    candidate = find_room(entry, snapshot, catalogue).after_time_slices
    if candidate is None or candidate.ready_in_s > 0:
        return None
    time_slice = TimeSlice(
        model=model,
        neuron=candidate.neuron,
        devices=candidate.devices,
        device_bytes=candidate.device_bytes or 0,
        stage_bytes=tuple(stage.memory_bytes for stage in candidate.stages),
        evicted=candidate.evict,
    )
    return time_slice, [
        unload_of(one.replica, f"{model} has waited for its time slice")
        for one in candidate.evicted
        if one.replica.status is not ReplicaStatus.DRAINING
    ]
