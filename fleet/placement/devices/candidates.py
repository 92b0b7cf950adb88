"""Finds devices for a whole model: with free memory, or with memory that evictions free. Pure.

A replica that spans devices needs its part on each, all on one neuron. One that sleeps wakes on its
own devices only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.live.snapshot import ReplicaView
from fleet.placement.devices.capacity import (
    MIN_TIME_SLICE_S,
    DeviceCapacity,
    EvictionCandidate,
    FleetCapacity,
    devices_of,
    waking_bytes,
)
from fleet.placement.devices.needs import Needs
from inference.protocol.load import StageSpec

Evicted = tuple[EvictionCandidate, ...]
UNTOUCHED = -(2**31)
"""Below every priority: no eviction."""


class Clearing(Enum):
    """Which replicas leave for a model: none, idle ones now, or also those in use, after their time
    slices. Replicas of a higher priority never do."""

    NOTHING = auto()
    IDLE = auto()
    IN_USE = auto()


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """``device_bytes`` is needed on each device, of stages at most; ``None`` while unknown."""

    neuron: str
    devices: tuple[str, ...]
    device_bytes: int | None
    evicted: Evicted = ()
    """The evictions on ``neuron``; each of ``stages`` names its own."""
    is_promised: bool = False
    """Another model has priority."""
    stages: tuple[StageSpec, ...] = ()
    """The model's division over the devices; empty: undivided."""
    predicted_tokens_per_s: float | None = None
    """The plan of ``stages`` predicts this rate for one request."""

    @property
    def evict(self) -> tuple[str, ...]:
        return tuple(sorted({one.replica.model for one in self.evicted}))

    @property
    def ready_in_s(self) -> float:
        """Seconds until all evictions are possible."""
        first = MIN_TIME_SLICE_S if self.is_promised else 0.0
        return max((one.in_s for one in self.evicted), default=0.0) + first

    @property
    def rank(self) -> tuple[bool, float, int, float]:
        """Sort key, the best first: the soonest, then the lowest of the highest priorities that
        leave, then the least total loss."""
        priority = max((one.priority for one in self.evicted), default=UNTOUCHED)
        loss = sum(one.loss for one in self.evicted)
        return (self.is_promised, self.ready_in_s, priority, loss)


def freed_by(
    clearing: Clearing, entry: CatalogueEntry, device: DeviceCapacity, *, leaves_itself: bool = True
) -> list[EvictionCandidate]:
    """The replicas that may leave the device, the least valuable first."""
    return [
        one
        for one in device.evictables
        if clearing is not Clearing.NOTHING
        and (clearing is Clearing.IN_USE or one.goes_now)
        and one.priority <= entry.effective_priority
        and (leaves_itself or one.replica.model != entry.name)
    ]


def cleared(
    device: DeviceCapacity,
    entry: CatalogueEntry,
    needed_bytes: int,
    clearing: Clearing,
    *,
    leaves_itself: bool = True,
) -> tuple[Evicted, bool] | None:
    """The evictions that make room, and whether that room is promised to another model; ``None``:
    all together are not enough."""
    evictables = freed_by(clearing, entry, device, leaves_itself=leaves_itself)
    evicted = evictions_for(needed_bytes - device.free_bytes(entry.name), evictables)
    if evicted is not None or clearing is not Clearing.IN_USE:
        return None if evicted is None else (evicted, False)
    evicted = evictions_for(needed_bytes - device.info.free_memory_bytes, evictables)
    return None if evicted is None else (evicted, True)


def evictions_for(lacking_bytes: int, evictables: Sequence[EvictionCandidate]) -> Evicted | None:
    """The least valuable replicas that free enough, without superfluous ones."""
    chosen: list[EvictionCandidate] = []
    freed = 0
    for evictable in evictables:
        if freed >= lacking_bytes:
            break
        if evictable.freed_bytes > 0:
            chosen.append(evictable)
            freed += evictable.freed_bytes
    if freed < lacking_bytes:
        return None
    for evictable in reversed(chosen[:-1]):
        if freed - evictable.freed_bytes >= lacking_bytes:
            chosen.remove(evictable)
            freed -= evictable.freed_bytes
    return tuple(chosen)


def whole_candidate(
    needs: Needs,
    kind: DeviceKind,
    by_neuron: Mapping[str, Sequence[DeviceCapacity]],
    clearing: Clearing,
) -> PlacementCandidate | None:
    """The neuron where it is soonest and least is lost; of free ones, the fullest devices with all
    the wanted memory (context and sequences), else those with most."""
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
    """The candidate on the neuron's best devices, and the snugness of the worst of these. A model
    of unknown size evicts no replica: whether that makes room would be unknown."""
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
    """Orders devices; less is better. Those with all the wanted memory come first, the fullest
    before the others, so that large ones stay free for large models; of those with less, the one
    with most. A model of unknown size tries that first."""
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
    """The neuron on which the sleeping model could wake soonest. One divided over cards and
    processors counts as one on cards."""
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
