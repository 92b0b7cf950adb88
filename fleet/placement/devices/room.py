"""Where on the fleet a model could be loaded now, or what it would have to wait for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.devices.grounds import NeuronGround
from fleet.placement.devices.needs import Needs
from fleet.placement.devices.residents import Ground
from fleet.placement.devices.sleeping import NOBODY_SLEEPS, Asleep
from fleet.placement.devices.spots import Spot, evicting_spot, free_spot, turn_spot
from fleet.placement.devices.waking import WakingSpots
from fleet.placement.returning import is_large_enough


@dataclass(frozen=True, slots=True)
class Room:
    """``spot`` has room now, or makes it; else ``turn`` will have, when those that are in use there
    have had their turn."""

    spot: Spot | None = None
    turn: Spot | None = None


NO_ROOM = Room()


def find_room(
    entry: CatalogueEntry,
    ground: Ground,
    *,
    excluded: Collection[str] = (),
    may_evict: bool = True,
    asleep: Asleep = NOBODY_SLEEPS,
) -> Room:
    """``excluded`` are neurons that hold the model already, or failed to load it; where it sleeps
    it wakes, or waits to. Cards before processors: what a card could have after a wait does not go
    to a processor at once. Of those that have room, or make it, one that wakes goes first."""
    needs = Needs(entry)
    if asleep.neurons:
        excluded = {*excluded, *asleep.neurons}
    for kind in needs.kinds:
        if kind == "cpu":
            excluded = {*excluded, *ground.barred(entry)}
        grounds = _grounds(entry, ground, kind, excluded)
        wakes = WakingSpots(entry, asleep, ground.by_kind[kind])
        if spot := wakes.free() or free_spot(needs, kind, ground, grounds, excluded):
            return Room(spot=spot)
        if not may_evict:
            continue
        if spot := wakes.evicting() or evicting_spot(needs, kind, grounds, ground.by_loss[kind]):
            return Room(spot=spot)
        found = (wakes.in_a_turn(), turn_spot(needs, kind, grounds, ground.by_turn[kind]))
        if turns := [turn for turn in found if turn is not None]:
            return Room(turn=min(turns, key=lambda turn: turn.ready_in_s))
    return NO_ROOM


def feasible_on(entry: CatalogueEntry, snapshot: FleetSnapshot) -> tuple[str, ...]:
    """The neurons that take loads and whose devices are as many and as large as it asks for,
    whatever is on them."""
    needs = Needs(entry)
    return tuple(
        neuron.name
        for neuron in snapshot.neurons
        if neuron.may_load
        and neuron.name in (entry.pinned_on or (neuron.name,))
        and is_large_enough(needs, neuron.name, neuron.devices)
        and not (neuron.cuda_unavailable and entry.device != "cpu")
    )


def _grounds(
    entry: CatalogueEntry, ground: Ground, kind: DeviceKind, excluded: Collection[str]
) -> list[NeuronGround]:
    """The neurons that may have it."""
    by_name = ground.by_kind[kind]
    names = sorted(entry.pinned_on) if entry.pinned_on else by_name
    return [by_name[name] for name in names if name in by_name and name not in excluded]
