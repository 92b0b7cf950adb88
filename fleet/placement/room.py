"""Where on the fleet a model could be loaded now, or what it would have to wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.measurements import DeviceKind
from fleet.placement.needs import Needs
from fleet.placement.residents import DeviceGround, Ground
from fleet.placement.spots import Spot, evicting_spot, free_spot, turn_spot


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
) -> Room:
    """``excluded`` are neurons that hold the model already, or failed to load it. Cards before
    processors: what a card could have after a wait does not go to a processor at once."""
    needs = Needs(entry)
    for kind in needs.kinds:
        grounds = _grounds(entry, ground, kind, excluded)
        if spot := free_spot(needs, kind, grounds):
            return Room(spot=spot)
        if not may_evict:
            continue
        if spot := evicting_spot(needs, kind, grounds):
            return Room(spot=spot)
        if turn := turn_spot(needs, kind, grounds):
            return Room(turn=turn)
    return NO_ROOM


def feasible_on(entry: CatalogueEntry, ground: Ground) -> tuple[str, ...]:
    """The neurons whose devices are as many and as large as it asks for, whatever is on them."""
    needs = Needs(entry)
    names = set()
    for kind in needs.kinds:
        for neuron, devices in _grounds(entry, ground, kind, ()):
            if is_large_enough(needs, kind, neuron, devices):
                names.add(neuron)
    return tuple(sorted(names))


def is_large_enough(
    needs: Needs, kind: DeviceKind, neuron: str, devices: Sequence[DeviceGround]
) -> bool:
    least = max(needs.least_total_bytes, needs.device_bytes(neuron, kind) or 0)
    num_large = sum(device.info.total_memory_bytes >= least for device in devices)
    return num_large >= needs.num_devices


def _grounds(
    entry: CatalogueEntry, ground: Ground, kind: DeviceKind, excluded: Collection[str]
) -> list[tuple[str, list[DeviceGround]]]:
    """The neurons that may have it."""
    by_neuron = ground.by_kind[kind]
    if entry.pinned_on:
        names = [name for name in sorted(entry.pinned_on) if name in by_neuron]
    elif not excluded:
        return list(by_neuron.items())
    else:
        names = list(by_neuron)
    return [(name, by_neuron[name]) for name in names if name not in excluded]
