"""Where a sleeping model can wake: on its own devices only. Pure.

free        room now for the memory that it released
evicting    room once idle, unpinned replicas have left
in a turn   room after the time slices of replicas in use
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import ReplicaView
from fleet.placement.devices.candidates import PlacementCandidate
from fleet.placement.devices.capacity import EvictionCandidate, NeuronCapacity
from fleet.placement.devices.eviction_candidates import devices_of
from fleet.placement.devices.evictions import evictions_for, loss_of
from fleet.placement.devices.sleeping import Asleep, waking_bytes

MayGo = Callable[[EvictionCandidate], bool]


class WakingCandidates:
    """Where one model could wake, on devices of one kind."""

    def __init__(
        self, entry: CatalogueEntry, asleep: Asleep, by_name: Mapping[str, NeuronCapacity]
    ) -> None:
        self._priority = entry.effective_priority
        self._asleep = asleep
        self._by_name = by_name

    def free(self) -> PlacementCandidate | None:
        return self._best(lambda evictable: False)

    def evicting(self) -> PlacementCandidate | None:
        return self._best(
            lambda evictable: evictable.goes_now and evictable.priority <= self._priority
        )

    def in_a_turn(self) -> PlacementCandidate | None:
        return self._best(lambda evictable: evictable.priority <= self._priority)

    def _best(self, may_go: MayGo) -> PlacementCandidate | None:
        return min(self._candidates(may_go), key=_worth, default=None)

    def _candidates(self, may_go: MayGo) -> Iterator[PlacementCandidate]:
        for replica in self._asleep.wakeable:
            here = self._by_name.get(replica.neuron)
            if here is None:
                continue
            names = devices_of(replica, here.devices[0].neuron)
            evicted = _all_evictions(replica, names, here, may_go)
            if evicted is not None:
                yield PlacementCandidate(
                    replica.neuron, tuple(sorted(names)), waking_bytes(replica), evicted
                )


def _all_evictions(
    replica: ReplicaView, names: Sequence[str], here: NeuronCapacity, may_go: MayGo
) -> tuple[EvictionCandidate, ...] | None:
    """The evictions on all of its devices; ``None``: one of them would not have room, or is
    missing."""
    devices = [device for device in here.devices if device.name in names]
    if len(devices) < max(1, len(names)):
        return None
    each = waking_bytes(replica)
    leaving: dict[str, EvictionCandidate] = {}
    for device in devices:
        others = [one for one in device.evictables if one.replica.model != replica.model]
        evicted = evictions_for(each - device.free_bytes(replica.model), others, may_go)
        if evicted is None:
            return None
        leaving |= {one.replica.model: one for one in evicted}
    return tuple(leaving.values())


def _worth(candidate: PlacementCandidate) -> tuple[float, int, float, str]:
    """Sort key: the least is the best."""
    return (candidate.ready_in_s, *loss_of(candidate.evicted), candidate.neuron)
