"""Where a model that sleeps could wake: on its own devices, and nowhere else. Pure.

free        room now for what it gave back
evicting    room once idle, unpinned replicas have left
in a turn   room once replicas in use have had their turn
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import ReplicaView
from fleet.placement.devices.grounds import NeuronGround, Resident
from fleet.placement.devices.residents import devices_of
from fleet.placement.devices.sleeping import Asleep, waking_bytes
from fleet.placement.devices.spots import Spot
from fleet.placement.devices.victims import loss_of, victims_of

MayGo = Callable[[Resident], bool]


class WakingSpots:
    """Where one model could wake, on devices of one kind."""

    def __init__(
        self, entry: CatalogueEntry, asleep: Asleep, by_name: Mapping[str, NeuronGround]
    ) -> None:
        self._priority = entry.effective_priority
        self._asleep = asleep
        self._by_name = by_name

    def free(self) -> Spot | None:
        return self._best(lambda resident: False)

    def evicting(self) -> Spot | None:
        return self._best(
            lambda resident: resident.goes_now and resident.priority <= self._priority
        )

    def in_a_turn(self) -> Spot | None:
        return self._best(lambda resident: resident.priority <= self._priority)

    def _best(self, may_go: MayGo) -> Spot | None:
        return min(self._spots(may_go), key=_worth, default=None)

    def _spots(self, may_go: MayGo) -> Iterator[Spot]:
        for replica in self._asleep.wakeable:
            here = self._by_name.get(replica.neuron)
            if here is None:
                continue
            names = devices_of(replica, here.devices[0].neuron)
            victims = _all_victims(replica, names, here, may_go)
            if victims is not None:
                yield Spot(replica.neuron, tuple(sorted(names)), waking_bytes(replica), victims)


def _all_victims(
    replica: ReplicaView, names: Sequence[str], here: NeuronGround, may_go: MayGo
) -> tuple[Resident, ...] | None:
    """Over all of its devices; ``None``: one of them would not have room, or is not here."""
    devices = [device for device in here.devices if device.name in names]
    if len(devices) < max(1, len(names)):
        return None
    each = waking_bytes(replica)
    leaving: dict[str, Resident] = {}
    for device in devices:
        others = [one for one in device.residents if one.replica.model != replica.model]
        victims = victims_of(each - device.free_bytes(replica.model), others, may_go)
        if victims is None:
            return None
        leaving |= {victim.replica.model: victim for victim in victims}
    return tuple(leaving.values())


def _worth(spot: Spot) -> tuple[float, int, float, str]:
    """The least is the best."""
    return (spot.ready_in_s, *loss_of(spot.victims), spot.neuron)
