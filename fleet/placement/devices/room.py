"""Finds devices where a model could be loaded now, or after time slices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.devices.candidates import (
    Capacities,
    MayGo,
    PlacementCandidate,
    evicting_candidate,
    free_candidate,
    going_later,
    going_now,
    nothing_goes,
    time_slice_candidate,
    waking_candidate,
)
from fleet.placement.devices.capacity import FleetCapacity
from fleet.placement.devices.needs import Needs
from fleet.placement.devices.sleeping import NONE_ASLEEP, Asleep
from fleet.placement.devices.staged import Division, to_weigh
from fleet.placement.returning import is_large_enough


@dataclass(frozen=True, slots=True)
class Room:
    """``candidate`` has memory now or after evictions; else ``after_time_slices`` has it once the
    time slices of replicas in use are over."""

    candidate: PlacementCandidate | None = None
    after_time_slices: PlacementCandidate | None = None
    division: Division | None = None
    """The model's division, where one was tried and does not fit."""


NO_ROOM = Room()


def find_room(
    entry: CatalogueEntry,
    capacity: FleetCapacity,
    *,
    excluded: Collection[str] = (),
    excluded_as_stages: Collection[str] | None = None,
    may_evict: bool = True,
    asleep: Asleep = NONE_ASLEEP,
) -> Room:
    """``excluded`` are neurons that hold the model already, or failed to load it;
    ``excluded_as_stages`` are excluded for stages, ``None``: the same. A sleeping model wakes where
    it is, or waits to. Cards come before processors: a model that a card could hold after a wait
    does not go to a processor at once. Among devices with memory, now or after evictions, waking
    comes first. A model that no device could hold is divided, over devices of one neuron or of
    several."""
    needs = Needs(entry)
    if asleep.neurons:
        excluded = {*excluded, *asleep.neurons}
    elif (division := Division.of(needs, capacity)) is not None:
        away = excluded if excluded_as_stages is None else excluded_as_stages
        return _divided_room(division, away, may_evict=may_evict)
    for kind in needs.kinds:
        if kind == "cpu":
            excluded = {*excluded, *capacity.barred(entry)}
        capacities = _capacities(entry, capacity, kind, excluded)

        def waking(may_go: MayGo, kind: DeviceKind = kind) -> PlacementCandidate | None:
            return waking_candidate(entry, asleep, capacity, kind, may_go)

        if candidate := waking(nothing_goes) or free_candidate(needs, kind, capacities):
            return Room(candidate=candidate)
        if not may_evict:
            continue
        if candidate := waking(going_now(entry)) or evicting_candidate(needs, kind, capacities):
            return Room(candidate=candidate)
        found = (waking(going_later(entry)), time_slice_candidate(needs, kind, capacities))
        if later := [candidate for candidate in found if candidate is not None]:
            return Room(after_time_slices=min(later, key=lambda candidate: candidate.ready_in_s))
    return Room(candidate=to_weigh(needs, capacity, excluded)) if may_evict else NO_ROOM


def _divided_room(division: Division, excluded: Collection[str], *, may_evict: bool) -> Room:
    if candidate := division.free(excluded):
        return Room(candidate=candidate)
    if not may_evict:
        return NO_ROOM
    if candidate := division.evicting(excluded):
        return Room(candidate=candidate)
    return Room(after_time_slices=division.after_time_slices(excluded), division=division)


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


def _capacities(
    entry: CatalogueEntry, capacity: FleetCapacity, kind: DeviceKind, excluded: Collection[str]
) -> Capacities:
    return {
        name: devices
        for name, devices in capacity.by_kind[kind].items()
        if name in (entry.pinned_on or (name,)) and name not in excluded
    }
