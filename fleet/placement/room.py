"""Finds where a model could be loaded now, or after time slices.

sleeping ─▶ it wakes where it sleeps                                      ─┐
else     ─▶ whole: cards before processors, so that a model that a card    ├─▶ on free memory,
            could hold after a wait does not go to a processor at once     │   on that of idle
else     ─▶ divided, where no device could hold it (``division``)         ─┘   ones, on later

A replica that spans devices needs its part on each, all on one neuron.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.live.snapshot import FleetSnapshot, HeldStageView, ReplicaView
from fleet.placement.capacity import (
    Catalogue,
    Clearing,
    DeviceCapacity,
    EvictionCandidate,
    FleetCapacity,
    capacity_of,
    cleared,
    devices_of,
    waking_bytes,
)
from fleet.placement.decisions import PlacementCandidate
from fleet.placement.division import Division, is_large_enough, to_weigh
from fleet.placement.failures import (
    NONE_FAILED,
    FailedLoads,
    failed_loads,
    failing_stages,
    with_reported_costs,
)
from fleet.placement.needs import Needs
from inference.protocol.heartbeat import ReplicaStatus

WAKE_AGAIN_S = 5.0
"""After a failed wake: by then heartbeats show what uses the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """``candidate``: memory now or after evictions; else ``after_time_slices``."""

    entry: CatalogueEntry
    """Includes the costs that failed loads have reported."""
    capacity: FleetCapacity
    failed: FailedLoads
    failing: tuple[HeldStageView, ...]
    asleep: tuple[ReplicaView, ...]
    """By the present spec: these are woken, never loaded from files."""
    candidate: PlacementCandidate | None = None
    after_time_slices: PlacementCandidate | None = None


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
    """Nothing is evicted without ``catalogue``. ``excluded``: besides neurons where its load
    failed. ``only``: on this neuron alone. ``tries_again``: ignores earlier failures."""
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
    for clearing in (Clearing.NOTHING, Clearing.IDLE) if may_evict else (Clearing.NOTHING,):
        if candidate := division.candidate(excluded, clearing):
            return replace(room, candidate=candidate)
    later = division.candidate(excluded, Clearing.IN_USE) if may_evict else None
    return replace(room, after_time_slices=later)


def whole_candidate(
    needs: Needs,
    kind: DeviceKind,
    by_neuron: Mapping[str, Sequence[DeviceCapacity]],
    clearing: Clearing,
) -> PlacementCandidate | None:
    """The soonest, then the least loss; of free ones the fullest devices with all the wanted memory
    (context and sequences), else those with most."""
    found = [
        one
        for neuron, devices in by_neuron.items()
        if (one := _on_neuron(needs, kind, neuron, devices, clearing)) is not None
    ]
    best = min(found, key=lambda one: (one[0].rank, *one[1], one[0].neuron), default=None)
    return best and best[0]


def _on_neuron(
    needs: Needs,
    kind: DeviceKind,
    neuron: str,
    devices: Sequence[DeviceCapacity],
    clearing: Clearing,
) -> tuple[PlacementCandidate, tuple[bool, int]] | None:
    """A model of unknown size evicts nothing: whether that makes room would be unknown."""
    each = needs.device_bytes(neuron, kind)
    if each is None and clearing is not Clearing.NOTHING:
        return None
    options = []
    for device in devices:
        if device.info.total_memory_bytes < needs.least_total_bytes:
            continue
        if (found := cleared(device, needs.entry, each or 0, clearing)) is not None:
            alone = PlacementCandidate(neuron, (device.name,), each, *found)
            snugness = _snugness(needs, device.free_bytes(needs.entry.name), each)
            options.append((alone.rank, snugness, device.name, alone))
    if len(options) < needs.num_devices:
        return None
    best = sorted(options, key=lambda option: option[:3])[: needs.num_devices]
    evicted = {one.replica.model: one for *_, alone in best for one in alone.evicted}
    candidate = PlacementCandidate(
        neuron,
        tuple(sorted(name for _, _, name, _ in best)),
        each,
        tuple(evicted.values()),
        is_promised=any(alone.is_promised for *_, alone in best),
    )
    return candidate, best[-1][1]


def _snugness(needs: Needs, free_bytes: int, needed_bytes: int | None) -> tuple[bool, int]:
    """Less is better: first devices with all the wanted memory, the fullest of them before the
    others, so that large ones stay free for large models; then the one with most."""
    if needed_bytes is None:
        return (False, -free_bytes)
    is_tight = free_bytes < needs.wanted_bytes(needed_bytes)
    return (is_tight, -free_bytes if is_tight else free_bytes)


def waking_candidate(
    entry: CatalogueEntry,
    sleeping: Sequence[ReplicaView],
    capacity: FleetCapacity,
    kind: DeviceKind,
    clearing: Clearing,
) -> PlacementCandidate | None:
    """One divided over cards and processors counts as one on cards."""
    found = (_waking_on(entry, replica, capacity, kind, clearing) for replica in sleeping)
    fitting = [one for one in found if one is not None]
    return min(fitting, key=lambda one: (one.rank, one.neuron), default=None)


def _waking_on(
    entry: CatalogueEntry,
    replica: ReplicaView,
    capacity: FleetCapacity,
    kind: DeviceKind,
    clearing: Clearing,
) -> PlacementCandidate | None:
    here = [
        device
        for by_name in capacity.by_kind.values()
        for device in by_name.get(replica.neuron, ())
    ]
    names = devices_of(replica, here[0].neuron) if here else ()
    devices = [device for device in here if device.name in names]
    on_cards = any(device.info.kind == "cuda" for device in devices)
    if len(devices) < max(1, len(names)) or on_cards != (kind == "cuda"):
        return None
    evicted: dict[str, EvictionCandidate] = {}
    is_promised = False
    for device in devices:
        needed_bytes = waking_bytes(replica, device.name)
        found = cleared(device, entry, needed_bytes, clearing, leaves_itself=False)
        if found is None:
            return None
        evicted |= {one.replica.model: one for one in found[0]}
        is_promised |= found[1]
    largest = max(waking_bytes(replica, device.name) for device in devices)
    return PlacementCandidate(
        replica.neuron, tuple(sorted(names)), largest, tuple(evicted.values()), is_promised
    )


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
    needs = Needs(entry)
    return tuple(
        neuron.name
        for neuron in snapshot.neurons
        if neuron.may_load
        and neuron.name in (entry.pinned_on or (neuron.name,))
        and is_large_enough(needs, neuron.name, neuron.devices)
        and not (neuron.cuda_unavailable and entry.device != "cpu")
    )
