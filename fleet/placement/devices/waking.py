"""Finds where a sleeping model can wake: on its own devices only. Pure.

free                room now for the memory that it released
evicting            room once idle, unpinned replicas have left
after time slices   room after those of replicas in use
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import ReplicaView
from fleet.placement.devices.candidates import PlacementCandidate
from fleet.placement.devices.capacity import (
    DeviceCapacity,
    EvictionCandidate,
    NeuronCapacity,
)
from fleet.placement.devices.eviction_candidates import devices_of
from fleet.placement.devices.evictions import evictions_for, loss_of
from fleet.placement.devices.sleeping import Asleep, waking_bytes

MayGo = Callable[[EvictionCandidate], bool]


class WakingCandidates:
    """Finds where one model could wake, on devices of one kind. A model divided over cards and
    processors counts as one on cards."""

    def __init__(
        self,
        entry: CatalogueEntry,
        asleep: Asleep,
        by_kind: Mapping[DeviceKind, Mapping[str, NeuronCapacity]],
        kind: DeviceKind,
    ) -> None:
        self._priority = entry.effective_priority
        self._asleep = asleep
        self._by_kind = by_kind
        self._kind = kind

    def free(self) -> PlacementCandidate | None:
        return self._best(lambda evictable: False)

    def evicting(self) -> PlacementCandidate | None:
        return self._best(
            lambda evictable: evictable.goes_now and evictable.priority <= self._priority
        )

    def after_time_slices(self) -> PlacementCandidate | None:
        return self._best(lambda evictable: evictable.priority <= self._priority)

    def _best(self, may_go: MayGo) -> PlacementCandidate | None:
        return min(self._candidates(may_go), key=_worth, default=None)

    def _candidates(self, may_go: MayGo) -> Iterator[PlacementCandidate]:
        for replica in self._asleep.wakeable:
            here = self._by_kind[self._kind].get(replica.neuron)
            if here is None:
                continue
            names = devices_of(replica, here.devices[0].neuron)
            devices = [one for one in self._devices_on(replica.neuron) if one.name in names]
            if len(devices) < max(1, len(names)) or _kind_of(devices) != self._kind:
                continue
            evicted = _all_evictions(replica, devices, may_go)
            if evicted is not None:
                largest = max(waking_bytes(replica, device.name) for device in devices)
                yield PlacementCandidate(replica.neuron, tuple(sorted(names)), largest, evicted)

    def _devices_on(self, neuron: str) -> Iterator[DeviceCapacity]:
        """Yields the neuron's devices of every kind."""
        found = (by_name.get(neuron) for by_name in self._by_kind.values())
        return (device for here in found if here is not None for device in here.devices)


def _kind_of(devices: Sequence[DeviceCapacity]) -> DeviceKind:
    return "cuda" if any(device.info.kind == "cuda" for device in devices) else "cpu"


def _all_evictions(
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


def _worth(candidate: PlacementCandidate) -> tuple[float, int, float, str]:
    """Sort key: the least is the best."""
    return (candidate.ready_in_s, *loss_of(candidate.evicted), candidate.neuron)
