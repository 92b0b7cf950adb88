"""Finds the devices a model could go to: those with room for it, or with room once idle replicas
have left.

    free         room now                                       the snuggest where it can do all
    evicting     room once idle, unpinned replicas have left    where least is lost
    time slice   room once those of replicas in use are over    where it is soonest

Pure. A replica that spans devices needs its part on each, all on one neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from fleet.live.measurements import DeviceKind
from fleet.placement.devices.capacity import (
    ByFree,
    DeviceCapacity,
    EvictionCandidate,
    NeuronCapacity,
    has_as_much,
)
from fleet.placement.devices.eviction_candidates import MIN_TIME_SLICE_S, FleetCapacity
from fleet.placement.devices.evictions import evictions_for, loss_of
from fleet.placement.devices.needs import Needs
from inference.protocol.load import StageSpec


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """``device_bytes`` is needed on each device, of stages at most; ``None`` while unknown."""

    neuron: str
    devices: tuple[str, ...]
    device_bytes: int | None
    evicted: tuple[EvictionCandidate, ...] = ()
    """The replicas that leave ``neuron``; each of ``stages`` names those that leave its own."""
    is_promised: bool = False
    """Another model comes first."""
    stages: tuple[StageSpec, ...] = ()
    """How the model's layers are divided over the devices; empty: they are not."""
    predicted_tokens_per_s: float | None = None
    """One request's, by the plan of those stages."""

    @property
    def evict(self) -> tuple[str, ...]:
        return tuple(sorted({one.replica.model for one in self.evicted}))

    @property
    def ready_in_s(self) -> float:
        """Seconds until the last of the evicted may leave."""
        first = MIN_TIME_SLICE_S if self.is_promised else 0.0
        return max((one.in_s for one in self.evicted), default=0.0) + first


Capacities = Sequence[NeuronCapacity]
SoonestFirst = tuple[float, int, float, str, tuple[str, ...]]


def free_candidate(
    needs: Needs,
    kind: DeviceKind,
    capacity: FleetCapacity,
    capacities: Capacities,
    excluded: Collection[str],
) -> PlacementCandidate | None:
    """``capacities``: the neurons of ``capacity`` that may have it."""
    least = needs.least_device_bytes(kind)
    if least is None or needs.num_devices > 1:
        return _roomy_candidate(needs, kind, capacities)
    return _snug_candidate(needs, kind, capacity.by_free[kind], least, excluded)


def _snug_candidate(
    needs: Needs, kind: DeviceKind, by_free: ByFree, least: int, excluded: Collection[str]
) -> PlacementCandidate | None:
    """A candidate on one device: the fullest that has all the wanted memory (context and
    sequences), else the roomiest."""
    found = _snuggest(needs, kind, by_free, needs.wanted_bytes(least), excluded)
    if found is None or found[0][0]:
        found = _snuggest(needs, kind, by_free, least, excluded)
    if found is None:
        return None
    (_, _, neuron, device_name), each = found
    return PlacementCandidate(neuron, (device_name,), each)


def _snuggest(
    needs: Needs, kind: DeviceKind, by_free: ByFree, least: float, excluded: Collection[str]
) -> tuple[tuple[bool, int, str, str], int] | None:
    """The tightest fit, of devices with at least so much free memory and of all with a promised
    part: its sort key, and the bytes needed there."""
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
            key = (*snugness(needs, free, each), name, device.name)
            if best is None or key < best[0]:
                best = (key, each)
            if is_ordered and not key[0]:
                break  # the next ones have more
    return best


def _roomy_candidate(
    needs: Needs, kind: DeviceKind, capacities: Capacities
) -> PlacementCandidate | None:
    best: tuple[tuple[bool, int, str, str], PlacementCandidate] | None = None
    model = needs.entry.name
    for here in capacities:
        each = needs.device_bytes(here.name, kind)
        if not has_as_much(here.free, needs.num_devices, each or 0):
            continue
        roomy = []
        for device in here.devices:
            free = device.free_bytes(model)
            if free >= (each or 0) and device.info.total_memory_bytes >= needs.least_total_bytes:
                roomy.append((*snugness(needs, free, each), device.name))
        if len(roomy) < needs.num_devices:
            continue
        chosen = sorted(roomy)[: needs.num_devices]
        key = (*chosen[-1][:2], here.name, chosen[0][2])
        if best is None or key < best[0]:
            names = tuple(sorted(name for *_, name in chosen))
            best = (key, PlacementCandidate(here.name, names, each))
    return best[1] if best else None


def evicting_candidate(
    needs: Needs, kind: DeviceKind, capacities: Capacities, by_loss: Sequence[DeviceCapacity]
) -> PlacementCandidate | None:
    """A model of unknown size evicts no replica: whether that makes room would be unknown.
    ``by_loss`` are the devices of ``capacities`` and others, those first where least may be
    lost."""

    most_priority = needs.entry.effective_priority

    def may_go(evictable: EvictionCandidate) -> bool:
        return evictable.goes_now and evictable.priority <= most_priority

    if needs.num_devices > 1:
        clearable = [here for here in capacities if _may_clear(needs, kind, here)]
        candidates = all_candidates(
            needs, kind, clearable, may_go, lambda device: device.evictable_bytes
        )
        return min(candidates, key=_loss, default=None)
    names: set[str] | None = None
    best: tuple[tuple[int, float, str, tuple[str, ...]], PlacementCandidate] | None = None
    for device in by_loss:
        if best is not None and device.least_loss > best[0][:2]:
            break  # whatever comes after it loses more
        candidate = _cleared(needs, kind, device, device.evictable_bytes, may_go)
        if candidate is not None:
            names = names or {here.name for here in capacities}
            loss = _loss(candidate)
            if candidate.neuron in names and (best is None or loss < best[0]):
                best = (loss, candidate)
    return best[1] if best else None


def _may_clear(needs: Needs, kind: DeviceKind, here: NeuronCapacity) -> bool:
    each = needs.device_bytes(here.name, kind)
    return each is not None and has_as_much(here.clearable, needs.num_devices, each)


def _cleared(
    needs: Needs,
    kind: DeviceKind,
    device: DeviceCapacity,
    most_bytes: int,
    may_go: Callable[[EvictionCandidate], bool],
) -> PlacementCandidate | None:
    """The device, if it has room once replicas that may go have left, which free ``most_bytes``."""
    neuron = device.neuron.name
    each = needs.device_bytes(neuron, kind)
    if each is None or device.info.total_memory_bytes < needs.least_total_bytes:
        return None
    lacking = each - device.free_bytes(needs.entry.name)
    if lacking > most_bytes:
        return None
    evicted = evictions_for(lacking, device.evictables, may_go)
    return None if evicted is None else PlacementCandidate(neuron, (device.name,), each, evicted)


def time_slice_candidate(
    needs: Needs, kind: DeviceKind, capacities: Capacities, by_time_slice: Sequence[DeviceCapacity]
) -> PlacementCandidate | None:
    """The candidate with room soonest, if replicas leave after their time slice: a device without
    promises, else one that another model has first. ``by_time_slice`` are the devices of
    ``capacities`` and others, those first where a time slice may begin soonest."""

    most_priority = needs.entry.effective_priority

    def may_go(evictable: EvictionCandidate) -> bool:
        return evictable.priority <= most_priority

    def movable(device: DeviceCapacity) -> int:
        return device.movable_bytes

    if needs.num_devices == 1:
        found = _soonest_candidate(needs, kind, capacities, by_time_slice, may_go)
    else:
        unpromised = all_candidates(needs, kind, capacities, may_go, movable)
        found = min(unpromised, key=soonest_first, default=None)
    if found is not None:
        return found
    if not any(device.claims for here in capacities for device in here.devices):
        return None
    after = all_candidates(needs, kind, capacities, may_go, movable, heeds_promises=False)
    promised = min(after, key=soonest_first, default=None)
    return promised and replace(promised, is_promised=True)


def _soonest_candidate(
    needs: Needs,
    kind: DeviceKind,
    capacities: Capacities,
    by_time_slice: Sequence[DeviceCapacity],
    may_go: Callable[[EvictionCandidate], bool],
) -> PlacementCandidate | None:
    """A candidate on one device with an eviction: one without would have been found before."""
    names = {here.name for here in capacities}
    best: tuple[SoonestFirst, PlacementCandidate] | None = None
    for device in by_time_slice:
        if best is not None and device.soonest is not None and device.soonest > best[0][:3]:
            break  # whatever comes after it is later, or loses more
        if device.neuron.name not in names:
            continue
        candidate = _cleared(needs, kind, device, device.movable_bytes, may_go)
        if candidate is not None and (best is None or soonest_first(candidate) < best[0]):
            best = (soonest_first(candidate), candidate)
    return best[1] if best else None


def all_candidates(
    needs: Needs,
    kind: DeviceKind,
    capacities: Capacities,
    may_go: Callable[[EvictionCandidate], bool],
    most_bytes: Callable[[DeviceCapacity], int],
    *,
    heeds_promises: bool = True,
) -> Iterator[PlacementCandidate]:
    model = needs.entry.name
    for here in capacities:
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
            evicted = evictions_for(lacking, device.evictables, may_go)
            if evicted is not None:
                cleared.append((device.name, evicted))
        if len(cleared) < needs.num_devices:
            continue
        if needs.num_devices == 1:
            yield from (
                PlacementCandidate(neuron, (name,), each, evicted) for name, evicted in cleared
            )
        else:
            yield _together(neuron, each, cleared, needs.num_devices)


def _together(
    neuron: str,
    each: int,
    cleared: list[tuple[str, tuple[EvictionCandidate, ...]]],
    num_devices: int,
) -> PlacementCandidate:
    """The devices that lose least. Replicas that lie on several of them leave once."""
    least = sorted(cleared, key=lambda device: (loss_of(device[1]), device[0]))[:num_devices]
    evicted = {one.replica.model: one for _, found in least for one in found}
    return PlacementCandidate(
        neuron, tuple(sorted(name for name, _ in least)), each, tuple(evicted.values())
    )


def snugness(needs: Needs, free_bytes: int, needed_bytes: int | None) -> tuple[bool, int]:
    """Orders devices; less is better. Those with all that is wanted come first, the fullest before
    the others, so that large ones stay free for large models; of those with less, the roomiest. A
    model of unknown size tries the roomiest first."""
    if needed_bytes is None:
        return (False, -free_bytes)
    is_tight = free_bytes < needs.wanted_bytes(needed_bytes)
    return (is_tight, -free_bytes if is_tight else free_bytes)


def soonest_first(candidate: PlacementCandidate) -> SoonestFirst:
    return (candidate.ready_in_s, *_loss(candidate))


def _loss(candidate: PlacementCandidate) -> tuple[int, float, str, tuple[str, ...]]:
    return (*loss_of(candidate.evicted), candidate.neuron, candidate.devices)
