"""Finds where a model could be loaded now, or after time slices. Pure.

sleeping ─▶ it wakes where it sleeps                                      ─┐
else     ─▶ whole: cards before processors, so that a model that a card    ├─▶ on free memory,
            could hold after a wait does not go to a processor at once     │   on that of idle
else     ─▶ divided, where no device could hold it (``devices.staged``)   ─┘   ones, on later
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, HeldStageView, ReplicaView
from fleet.placement.decisions import Catalogue
from fleet.placement.devices.candidates import (
    Clearing,
    PlacementCandidate,
    waking_candidate,
    whole_candidate,
)
from fleet.placement.devices.capacity import FleetCapacity, capacity_of
from fleet.placement.devices.needs import Needs
from fleet.placement.devices.staged import Division, to_weigh
from fleet.placement.failures import NONE_FAILED, FailedLoads, failed_loads, with_reported_costs
from fleet.placement.held_stages import failing_stages
from fleet.placement.returning import is_large_enough
from inference.protocol.heartbeat import ReplicaStatus

WAKE_AGAIN_S = 5.0
"""After a failed wake: by then heartbeats show what uses the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """``candidate`` has memory now or after evictions; else ``after_time_slices`` has it once the
    time slices of replicas in use are over. The rest is what a refusal is made of."""

    entry: CatalogueEntry
    """With the costs that failed loads have reported."""
    capacity: FleetCapacity
    failed: FailedLoads
    failing: tuple[HeldStageView, ...]
    asleep: tuple[ReplicaView, ...]
    """The replicas that sleep by the present spec: there it is woken, never loaded from files."""
    candidate: PlacementCandidate | None = None
    after_time_slices: PlacementCandidate | None = None
    division: Division | None = None
    """The model's division, where one was tried and does not fit."""


def find_room(
    entry: CatalogueEntry,
    snapshot: FleetSnapshot,
    catalogue: Catalogue | None,
    *,
    excluded: Collection[str] = (),
    only: str | None = None,
    may_evict: bool = True,
    tries_again: bool = False,
) -> Room:
    """``catalogue`` has the priorities of other models; without it nothing is evicted. ``excluded``
    are neurons besides those where its load failed, and ``only`` is the one that counts, where not
    all do. ``tries_again``: earlier failures are ignored."""
    replicas = [one for one in reachable(snapshot, entry.name) if only in (None, one.neuron)]
    entry = with_reported_costs(entry, replicas)
    capacity = capacity_of(snapshot, catalogue)
    room = Room(
        entry=entry,
        capacity=capacity if only is None else capacity.only(only),
        failed=NONE_FAILED if tries_again else failed_loads(entry, replicas),
        failing=() if tries_again else failing_stages(entry, snapshot),
        asleep=_asleep(entry, [one for one in replicas if one.neuron not in excluded]),
    )
    if room.failed.everywhere is not None:
        return room
    needs = Needs(entry)
    if not room.asleep and (division := Division.of(needs, room.capacity)) is not None:
        failing = {one.neuron for one in room.failing}
        away = {*excluded, *room.failed.neurons_as_stages, *failing}
        return _divided(room, division, away, may_evict=may_evict)
    excluded = {*excluded, *room.failed.neurons, *(replica.neuron for replica in room.asleep)}
    return _whole(room, needs, excluded, may_evict=may_evict)


def _whole(room: Room, needs: Needs, excluded: Collection[str], *, may_evict: bool) -> Room:
    wakeable = [replica for replica in room.asleep if not has_just_failed(replica)]
    for kind in needs.kinds:
        by_neuron = room.capacity.of_kind(room.entry, kind, excluded)
        for clearing in Clearing if may_evict else (Clearing.NOTHING,):
            waking = waking_candidate(room.entry, wakeable, room.capacity, kind, clearing)
            whole = whole_candidate(needs, kind, by_neuron, clearing)
            found = [one for one in (waking, whole) if one is not None]
            if found and clearing is Clearing.IN_USE:
                return replace(room, after_time_slices=min(found, key=lambda one: one.ready_in_s))
            if found:
                return replace(room, candidate=found[0])
    return replace(room, candidate=to_weigh(needs, room.capacity, excluded) if may_evict else None)


def _divided(room: Room, division: Division, excluded: Collection[str], *, may_evict: bool) -> Room:
    if candidate := division.candidate(excluded, Clearing.NOTHING):
        return replace(room, candidate=candidate)
    if not may_evict:
        return room
    if candidate := division.candidate(excluded, Clearing.IDLE):
        return replace(room, candidate=candidate)
    later = division.candidate(excluded, Clearing.IN_USE)
    return replace(room, after_time_slices=later, division=division)


def reachable(snapshot: FleetSnapshot, model: str) -> list[ReplicaView]:
    return [
        replica
        for replica in snapshot.replicas_of(model)
        if (neuron := snapshot.neuron(replica.neuron)) is not None and neuron.may_serve
    ]


def _asleep(entry: CatalogueEntry, replicas: Collection[ReplicaView]) -> tuple[ReplicaView, ...]:
    sleeping = [replica for replica in replicas if replica.status is ReplicaStatus.ASLEEP]
    digests = ("", entry.spec_digest()) if sleeping else ()
    return tuple(
        replica
        for replica in sleeping
        if replica.spec_digest in digests
        and (not entry.pinned_on or replica.neuron in entry.pinned_on)
    )


def has_just_failed(replica: ReplicaView) -> bool:
    return replica.failure is not None and replica.status_age_s < WAKE_AGAIN_S


def feasible_on(entry: CatalogueEntry, snapshot: FleetSnapshot) -> tuple[str, ...]:
    """The neurons that accept loads and have the required number and size of devices, ignoring
    their load."""
    needs = Needs(entry)
    return tuple(
        neuron.name
        for neuron in snapshot.neurons
        if neuron.may_load
        and neuron.name in (entry.pinned_on or (neuron.name,))
        and is_large_enough(needs, neuron.name, neuron.devices)
        and not (neuron.cuda_unavailable and entry.device != "cpu")
    )
