"""Finds devices for a model: with free memory, or with memory that evictions free.

    free         room now                                       the snuggest where it can do all
    evicting     room once idle, unpinned replicas have left    where least is lost
    time slice   room once those of replicas in use are over    where it is soonest

A replica that spans devices needs its part on each, all on one neuron. One that sleeps wakes on its
own devices only. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import ReplicaView
from fleet.placement.devices.capacity import (
    MIN_TIME_SLICE_S,
    DeviceCapacity,
    EvictionCandidate,
    FleetCapacity,
    devices_of,
)
from fleet.placement.devices.needs import Needs
from fleet.placement.devices.sleeping import Asleep, waking_bytes
from inference.protocol.load import StageSpec

Capacities = Mapping[str, Sequence[DeviceCapacity]]
"""The devices of one kind that a model may use, by their neuron."""
MayGo = Callable[[EvictionCandidate], bool]


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """``device_bytes`` is needed on each device, of stages at most; ``None`` while unknown."""

    neuron: str
    devices: tuple[str, ...]
    device_bytes: int | None
    evicted: tuple[EvictionCandidate, ...] = ()
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


UNTOUCHED = -(2**31)
"""Below every priority: no eviction."""


def evictions_for(
    lacking_bytes: int,
    evictables: Sequence[EvictionCandidate],
    may_go: Callable[[EvictionCandidate], bool],
) -> tuple[EvictionCandidate, ...] | None:
    """The least valuable replicas that free enough, without superfluous ones; ``None``: all
    together are not enough."""
    chosen: list[EvictionCandidate] = []
    freed = 0
    for evictable in evictables:
        if freed >= lacking_bytes:
            break
        if evictable.freed_bytes > 0 and may_go(evictable):
            chosen.append(evictable)
            freed += evictable.freed_bytes
    if freed < lacking_bytes:
        return None
    for evictable in reversed(chosen[:-1]):
        if freed - evictable.freed_bytes >= lacking_bytes:
            chosen.remove(evictable)
            freed -= evictable.freed_bytes
    return tuple(chosen)


def loss_of(evicted: Sequence[EvictionCandidate]) -> tuple[int, float]:
    """Sort key of an eviction: the highest priority among them, then the total loss."""
    return (
        max((one.priority for one in evicted), default=UNTOUCHED),
        sum(one.loss for one in evicted),
    )


def nothing_goes(_: EvictionCandidate) -> bool:
    return False


def going_now(entry: CatalogueEntry) -> MayGo:
    return lambda one: one.goes_now and one.priority <= entry.effective_priority


def going_later(entry: CatalogueEntry) -> MayGo:
    """Also chooses replicas that may be evicted only after their time slice."""
    return lambda one: one.priority <= entry.effective_priority


def free_candidate(
    needs: Needs, kind: DeviceKind, capacities: Capacities
) -> PlacementCandidate | None:
    """On the fullest devices with all the wanted memory (context and sequences), else on those with
    most."""
    best: tuple[tuple[bool, int, str, str], PlacementCandidate] | None = None
    for neuron, devices in capacities.items():
        each = needs.device_bytes(neuron, kind)
        roomy = sorted(
            (*_snugness(needs, free, each), device.name)
            for device in devices
            if (free := device.free_bytes(needs.entry.name)) >= (each or 0)
            and device.info.total_memory_bytes >= needs.least_total_bytes
        )
        if len(roomy) < needs.num_devices:
            continue
        chosen = roomy[: needs.num_devices]
        key = (*chosen[-1][:2], neuron, chosen[0][2])
        if best is None or key < best[0]:
            names = tuple(sorted(name for *_, name in chosen))
            best = (key, PlacementCandidate(neuron, names, each))
    return best[1] if best else None


def evicting_candidate(
    needs: Needs, kind: DeviceKind, capacities: Capacities
) -> PlacementCandidate | None:
    """A model of unknown size evicts no replica: whether that makes room would be unknown."""
    found = _cleared(needs, kind, capacities, going_now(needs.entry))
    return min(found, key=_loss, default=None)


def time_slice_candidate(
    needs: Needs, kind: DeviceKind, capacities: Capacities
) -> PlacementCandidate | None:
    """The candidate with room soonest, after time slices: a device without promises, else one that
    is promised to another model."""
    may_go = going_later(needs.entry)
    unpromised = _cleared(needs, kind, capacities, may_go)
    if (found := min(unpromised, key=_soonest_first, default=None)) is not None:
        return found
    after = _cleared(needs, kind, capacities, may_go, heeds_promises=False)
    promised = min(after, key=_soonest_first, default=None)
    return promised and replace(promised, is_promised=True)


def _cleared(
    needs: Needs,
    kind: DeviceKind,
    capacities: Capacities,
    may_go: MayGo,
    *,
    heeds_promises: bool = True,
) -> Iterator[PlacementCandidate]:
    model = needs.entry.name
    for neuron, devices in capacities.items():
        each = needs.device_bytes(neuron, kind)
        if each is None:
            continue
        cleared = []
        for device in devices:
            if device.info.total_memory_bytes < needs.least_total_bytes:
                continue
            free = device.free_bytes(model) if heeds_promises else device.info.free_memory_bytes
            evicted = evictions_for(each - free, device.evictables, may_go)
            if evicted is not None:
                cleared.append((device.name, evicted))
        if needs.num_devices == 1:
            yield from (
                PlacementCandidate(neuron, (name,), each, evicted) for name, evicted in cleared
            )
        elif len(cleared) >= needs.num_devices:
            yield _together(neuron, each, cleared, needs.num_devices)


def _together(
    neuron: str,
    each: int,
    cleared: list[tuple[str, tuple[EvictionCandidate, ...]]],
    num_devices: int,
) -> PlacementCandidate:
    """The devices with the least loss. Replicas on several of them are evicted once."""
    least = sorted(cleared, key=lambda device: (loss_of(device[1]), device[0]))[:num_devices]
    evicted = {one.replica.model: one for _, found in least for one in found}
    return PlacementCandidate(
        neuron, tuple(sorted(name for name, _ in least)), each, tuple(evicted.values())
    )


def _snugness(needs: Needs, free_bytes: int, needed_bytes: int | None) -> tuple[bool, int]:
    """Orders devices; less is better. Those with all the wanted memory come first, the fullest
    before the others, so that large ones stay free for large models; of those with less, the one
    with most. A model of unknown size tries that first."""
    if needed_bytes is None:
        return (False, -free_bytes)
    is_tight = free_bytes < needs.wanted_bytes(needed_bytes)
    return (is_tight, -free_bytes if is_tight else free_bytes)


def _soonest_first(candidate: PlacementCandidate) -> tuple[float, int, float, str, tuple[str, ...]]:
    return (candidate.ready_in_s, *_loss(candidate))


def _loss(candidate: PlacementCandidate) -> tuple[int, float, str, tuple[str, ...]]:
    return (*loss_of(candidate.evicted), candidate.neuron, candidate.devices)


def waking_candidate(
    entry: CatalogueEntry, asleep: Asleep, capacity: FleetCapacity, kind: DeviceKind, may_go: MayGo
) -> PlacementCandidate | None:
    """The neuron on which the sleeping model could wake soonest, after evictions of replicas that
    ``may_go``. One divided over cards and processors counts as one on cards."""
    found: list[PlacementCandidate] = []
    for replica in asleep.wakeable:
        here = [
            device
            for by_name in capacity.by_kind.values()
            for device in by_name.get(replica.neuron, ())
        ]
        names = devices_of(replica, here[0].neuron) if here else ()
        devices = [device for device in here if device.name in names]
        if len(devices) < max(1, len(names)) or _kind_of(devices) != kind:
            continue
        evicted = _waking_evictions(replica, devices, may_go)
        if evicted is not None:
            largest = max(waking_bytes(replica, device.name) for device in devices)
            found.append(PlacementCandidate(replica.neuron, tuple(sorted(names)), largest, evicted))
    return min(
        found, key=lambda one: (one.ready_in_s, *loss_of(one.evicted), one.neuron), default=None
    )


def _kind_of(devices: Sequence[DeviceCapacity]) -> DeviceKind:
    return "cuda" if any(device.info.kind == "cuda" for device in devices) else "cpu"


def _waking_evictions(
    replica: ReplicaView, devices: Sequence[DeviceCapacity], may_go: MayGo
) -> tuple[EvictionCandidate, ...] | None:
    """The evictions on all of its devices; ``None``: one of them would not have room."""
    leaving: dict[str, EvictionCandidate] = {}
    for device in devices:
        others = [one for one in device.evictables if one.replica.model != replica.model]
        lacking = waking_bytes(replica, device.name) - device.free_bytes(replica.model)
        evicted = evictions_for(lacking, others, may_go)
        if evicted is None:
            return None
        leaving |= {one.replica.model: one for one in evicted}
    return tuple(leaving.values())
