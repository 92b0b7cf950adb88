"""Where a model could go: devices with room for it, or with room once idle replicas have left.

    free        room now                                        the snuggest where it can do all
    evicting    room once idle, unpinned replicas have left     where least is lost
    in a turn   room once replicas in use have had their turn   where it is soonest

Pure. A replica that spans devices needs its part on each, all on one neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from fleet.live.measurements import DeviceKind
from fleet.placement.devices.grounds import (
    ByFree,
    DeviceGround,
    NeuronGround,
    Resident,
    has_as_much,
)
from fleet.placement.devices.needs import Needs
from fleet.placement.devices.residents import MIN_TURN_S, Ground
from fleet.placement.devices.victims import loss_of, victims_of


@dataclass(frozen=True, slots=True)
class Spot:
    """``device_bytes`` is what is needed on each device; ``None`` while nobody knows."""

    neuron: str
    devices: tuple[str, ...]
    device_bytes: int | None
    victims: tuple[Resident, ...] = ()
    is_promised: bool = False
    """Another model comes first."""

    @property
    def evict(self) -> tuple[str, ...]:
        return tuple(sorted({victim.replica.model for victim in self.victims}))

    @property
    def ready_in_s(self) -> float:
        """How soon the last of the victims may go."""
        first = MIN_TURN_S if self.is_promised else 0.0
        return max((victim.in_s for victim in self.victims), default=0.0) + first


Grounds = Sequence[NeuronGround]
SoonestFirst = tuple[float, int, float, str, tuple[str, ...]]


def free_spot(
    needs: Needs, kind: DeviceKind, ground: Ground, grounds: Grounds, excluded: Collection[str]
) -> Spot | None:
    """``grounds``: the neurons of ``ground`` that may have it."""
    least = needs.least_device_bytes(kind)
    if least is None or needs.num_devices > 1:
        return _roomy_spot(needs, kind, grounds)
    return _snug_spot(needs, kind, ground.by_free[kind], least, excluded)


def _snug_spot(
    needs: Needs, kind: DeviceKind, by_free: ByFree, least: int, excluded: Collection[str]
) -> Spot | None:
    """A spot on one device: the fullest with all that is wanted (context and sequences), else the
    roomiest."""
    found = _snuggest(needs, kind, by_free, needs.wanted_bytes(least), excluded)
    if found is None or found[0][0]:
        found = _snuggest(needs, kind, by_free, least, excluded)
    if found is None:
        return None
    (_, _, neuron, device_name), each = found
    return Spot(neuron, (device_name,), each)


def _snuggest(
    needs: Needs, kind: DeviceKind, by_free: ByFree, least: float, excluded: Collection[str]
) -> tuple[tuple[bool, int, str, str], int] | None:
    """The device on which it is snuggest, of those with at least so much free and of all with a
    promised part: its place in the order, and what is needed there."""
    model, pinned_on = needs.entry.name, needs.entry.pinned_on
    best: tuple[tuple[bool, int, str, str], int] | None = None
    for devices, is_ordered in ((by_free.with_at_least(least), True), (by_free.claimed, False)):
        for device in devices:
            name = device.neuron.name
            if name in excluded or (pinned_on and name not in pinned_on):
                continue
            each = needs.device_bytes(name, kind)
            free = device.free_bytes(model)
            if each is None or free < each:
                continue
            if device.info.total_memory_bytes < needs.least_total_bytes:
                continue
            key = (*_snugness(needs, free, each), name, device.name)
            if best is None or key < best[0]:
                best = (key, each)
            if is_ordered and not key[0]:
                break  # the next ones have more
    return best


def _roomy_spot(needs: Needs, kind: DeviceKind, grounds: Grounds) -> Spot | None:
    best: tuple[tuple[bool, int, str, str], Spot] | None = None
    model = needs.entry.name
    for here in grounds:
        each = needs.device_bytes(here.name, kind)
        if not has_as_much(here.free, needs.num_devices, each or 0):
            continue
        roomy = []
        for device in here.devices:
            free = device.free_bytes(model)
            if free >= (each or 0) and device.info.total_memory_bytes >= needs.least_total_bytes:
                roomy.append((*_snugness(needs, free, each), device.name))
        if len(roomy) < needs.num_devices:
            continue
        chosen = sorted(roomy)[: needs.num_devices]
        key = (*chosen[-1][:2], here.name, chosen[0][2])
        if best is None or key < best[0]:
            names = tuple(sorted(name for *_, name in chosen))
            best = (key, Spot(here.name, names, each))
    return best[1] if best else None


def evicting_spot(
    needs: Needs, kind: DeviceKind, grounds: Grounds, by_loss: Sequence[DeviceGround]
) -> Spot | None:
    """A model of unknown size evicts nobody: nobody could say that it makes room. ``by_loss`` are
    the devices of ``grounds`` and others, those first where least may be lost."""

    most_priority = needs.entry.effective_priority

    def may_go(resident: Resident) -> bool:
        return resident.goes_now and resident.priority <= most_priority

    if needs.num_devices > 1:
        clearable = [here for here in grounds if _may_clear(needs, kind, here)]
        spots = _spots(needs, kind, clearable, may_go, lambda device: device.evictable_bytes)
        return min(spots, key=_loss, default=None)
    names: set[str] | None = None
    best: tuple[tuple[int, float, str, tuple[str, ...]], Spot] | None = None
    for device in by_loss:
        if best is not None and device.least_loss > best[0][:2]:
            break  # whatever comes after it loses more
        spot = _cleared(needs, kind, device, device.evictable_bytes, may_go)
        if spot is not None:
            names = names or {here.name for here in grounds}
            loss = _loss(spot)
            if spot.neuron in names and (best is None or loss < best[0]):
                best = (loss, spot)
    return best[1] if best else None


def _may_clear(needs: Needs, kind: DeviceKind, here: NeuronGround) -> bool:
    each = needs.device_bytes(here.name, kind)
    return each is not None and has_as_much(here.clearable, needs.num_devices, each)


def _cleared(
    needs: Needs,
    kind: DeviceKind,
    device: DeviceGround,
    most_bytes: int,
    may_go: Callable[[Resident], bool],
) -> Spot | None:
    """One device with room once those that may go have left, which free ``most_bytes``."""
    neuron = device.neuron.name
    each = needs.device_bytes(neuron, kind)
    if each is None or device.info.total_memory_bytes < needs.least_total_bytes:
        return None
    lacking = each - device.free_bytes(needs.entry.name)
    if lacking > most_bytes:
        return None
    victims = victims_of(lacking, device.residents, may_go)
    return None if victims is None else Spot(neuron, (device.name,), each, victims)


def turn_spot(
    needs: Needs, kind: DeviceKind, grounds: Grounds, by_turn: Sequence[DeviceGround]
) -> Spot | None:
    """Where room comes soonest if those that may go are let go once they have had their turn:
    what is promised to nobody, else what another model has first. ``by_turn`` are the devices of
    ``grounds`` and others, those first where a turn may come soonest."""

    most_priority = needs.entry.effective_priority

    def may_go(resident: Resident) -> bool:
        return resident.priority <= most_priority

    def movable(device: DeviceGround) -> int:
        return device.movable_bytes

    if needs.num_devices == 1:
        found = _soonest_spot(needs, kind, grounds, by_turn, may_go)
    else:
        unpromised = _spots(needs, kind, grounds, may_go, movable)
        found = min(unpromised, key=_soonest, default=None)
    if found is not None:
        return found
    if not any(device.claims for here in grounds for device in here.devices):
        return None
    after = _spots(needs, kind, grounds, may_go, movable, heeds_promises=False)
    promised = min(after, key=_soonest, default=None)
    return promised and replace(promised, is_promised=True)


def _soonest_spot(
    needs: Needs,
    kind: DeviceKind,
    grounds: Grounds,
    by_turn: Sequence[DeviceGround],
    may_go: Callable[[Resident], bool],
) -> Spot | None:
    """A spot on one device, which somebody leaves: a device with room as it is would have been
    found before."""
    names = {here.name for here in grounds}
    best: tuple[SoonestFirst, Spot] | None = None
    for device in by_turn:
        if best is not None and device.soonest is not None and device.soonest > best[0][:3]:
            break  # whatever comes after it is later, or loses more
        if device.neuron.name not in names:
            continue
        spot = _cleared(needs, kind, device, device.movable_bytes, may_go)
        if spot is not None and (best is None or _soonest(spot) < best[0]):
            best = (_soonest(spot), spot)
    return best[1] if best else None


def _spots(
    needs: Needs,
    kind: DeviceKind,
    grounds: Grounds,
    may_go: Callable[[Resident], bool],
    most_bytes: Callable[[DeviceGround], int],
    *,
    heeds_promises: bool = True,
) -> Iterator[Spot]:
    model = needs.entry.name
    for here in grounds:
        neuron = here.name
        each = needs.device_bytes(neuron, kind)
        if each is None or not has_as_much(here.movable, needs.num_devices, each):
            continue
        cleared = []
        for device in here.devices:
            if device.info.total_memory_bytes < needs.least_total_bytes:
                continue
            free = device.free_bytes(model) if heeds_promises else device.info.free_memory_bytes
            lacking = each - free
            if lacking > most_bytes(device):
                continue
            victims = victims_of(lacking, device.residents, may_go)
            if victims is not None:
                cleared.append((device.name, victims))
        if len(cleared) < needs.num_devices:
            continue
        if needs.num_devices == 1:
            yield from (Spot(neuron, (name,), each, victims) for name, victims in cleared)
        else:
            yield _together(neuron, each, cleared, needs.num_devices)


def _together(
    neuron: str, each: int, cleared: list[tuple[str, tuple[Resident, ...]]], num_devices: int
) -> Spot:
    """The devices that lose least. Replicas that lie on several of them leave once."""
    least = sorted(cleared, key=lambda device: (loss_of(device[1]), device[0]))[:num_devices]
    victims = {victim.replica.model: victim for _, found in least for victim in found}
    return Spot(neuron, tuple(sorted(name for name, _ in least)), each, tuple(victims.values()))


def _snugness(needs: Needs, free_bytes: int, needed_bytes: int | None) -> tuple[bool, int]:
    """Orders devices; less is better. Those with all that is wanted come first, the fullest before
    the others, so that large ones stay free for large models; of those with less, the roomiest. A
    model of unknown size tries the roomiest first."""
    if needed_bytes is None:
        return (False, -free_bytes)
    is_tight = free_bytes < needs.wanted_bytes(needed_bytes)
    return (is_tight, -free_bytes if is_tight else free_bytes)


def _soonest(spot: Spot) -> SoonestFirst:
    return (spot.ready_in_s, *_loss(spot))


def _loss(spot: Spot) -> tuple[int, float, str, tuple[str, ...]]:
    return (*loss_of(spot.victims), spot.neuron, spot.devices)
