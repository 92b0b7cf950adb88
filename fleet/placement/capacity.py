"""The devices of a snapshot: free memory, replicas that may be evicted or can sleep, and the
evictions that make room. A sleeping replica keeps its weights in the host's memory; waking it
counts as a load of a fraction of the cost."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus, device_name

Catalogue = Mapping[str, CatalogueEntry]
IDLE_TIME_SLICE_S = 5.0
"""How long a ready replica stays even if it is unused: the requests for its load are on their way.
Two models that displace each other each stay at least this long."""
QUIET_S = 1.5
"""How long it must have been idle: a request may be on its way that no heartbeat shows yet."""
MIN_TIME_SLICE_S = 30.0
MAX_TIME_SLICE_S = 300.0
TIME_SLICE_LOADS = 2.0
"""A replica in use keeps its place for twice the time that its load took, within these bounds, so
that a card that models share in time slices computes for at least two thirds of the time."""
COST_OF_MOVING = 0.5
"""The cost, where a load from files is 1, of evicting a model that fits into free memory elsewhere:
it is loaded there, and no request waits for it."""
COST_OF_WAKING = 0.2
"""The same of waking: at most a fifth of a load's time."""
HOST_SHARE_KEPT = 0.1
"""The share of a host's memory that models do not use to sleep."""
UNKNOWN_MODEL_PRIORITY = -1
"""The priority of a model that the catalogue does not offer (any more): no request can name it."""

HELD = (ReplicaStatus.READY, ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)
REPLACEABLE = (ReplicaStatus.FAILED, ReplicaStatus.ASLEEP)
"""They do not prevent a load or wake of their model on that neuron."""
RESTING = (ReplicaStatus.READY, ReplicaStatus.ASLEEP)


@dataclass(slots=True)
class EvictionCandidate:
    """``freed_bytes``: on one of its devices; ``in_s``: seconds until it may leave, 0: now;
    ``loss``: the expected rate of requests for it, times its cost."""

    replica: ReplicaView
    priority: int
    in_s: float
    is_idle: bool
    loss: float
    freed_bytes: int = 0

    @property
    def goes_now(self) -> bool:
        return self.is_idle and self.in_s == 0


@dataclass(slots=True)
class DeviceCapacity:
    """Not to be changed. ``evictables``: the least valuable first. ``claims``: bytes promised to a
    model for its time slice."""

    neuron: NeuronView
    info: DeviceInfo
    name: str
    evictables: Sequence[EvictionCandidate]
    claims: Sequence[tuple[str, int]]

    def free_bytes(self, model: str) -> int:
        promised = sum(size for claimant, size in self.claims if claimant != model)
        return self.info.free_memory_bytes - promised

    @property
    def could_be_free(self) -> int:
        """The bytes for models, if it were empty."""
        held = sum(freed_on(one, self.name, self.neuron) for one in self.neuron.replicas)
        return min(self.info.total_memory_bytes, self.info.free_memory_bytes + held)


class FleetCapacity:
    def __init__(self, snapshot: FleetSnapshot, catalogue: Catalogue | None) -> None:
        """No replica may be evicted if ``catalogue`` is ``None``."""
        self._catalogue = catalogue
        self._num_held = Counter(one.model for one in snapshot.replicas() if one.status in HELD)
        neurons = [neuron for neuron in snapshot.neurons if neuron.may_load]
        self._most_free: Counter[tuple[DeviceKind, str]] = Counter()
        for neuron in neurons:
            for info in neuron.devices:
                where = (info.kind, neuron.name)
                self._most_free[where] = max(self._most_free[where], info.free_memory_bytes)
        claims: defaultdict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        for time_slice in snapshot.time_slices:
            for name in () if self._num_held[time_slice.model] else time_slice.devices:
                claim = (time_slice.model, time_slice.promised_on(name))
                claims[time_slice.neuron, name].append(claim)
        self.by_kind: dict[DeviceKind, dict[str, list[DeviceCapacity]]] = {"cuda": {}, "cpu": {}}
        for neuron in neurons:
            evictables = self._evictables(neuron)
            for info in neuron.devices:
                name = device_name(info)
                here = DeviceCapacity(
                    neuron=neuron,
                    info=info,
                    name=name,
                    evictables=sorted(evictables[name], key=_value),
                    claims=claims[neuron.name, name],
                )
                self.by_kind[info.kind].setdefault(neuron.name, []).append(here)
        self.without_cards = {
            neuron.name: neuron.cuda_unavailable for neuron in neurons if neuron.cuda_unavailable
        }

    def barred(self, entry: CatalogueEntry) -> Mapping[str, str]:
        """Neurons whose processors it may not use, and why: their cards are unavailable."""
        return {} if entry.device == "cpu" else self.without_cards

    def of_kind(
        self, entry: CatalogueEntry, kind: DeviceKind, excluded: Collection[str] = ()
    ) -> dict[str, list[DeviceCapacity]]:
        barred = self.barred(entry) if kind == "cpu" else {}
        return {
            name: devices
            for name, devices in self.by_kind[kind].items()
            if name in (entry.pinned_on or (name,)) and name not in excluded and name not in barred
        }

    def only(self, neuron: str) -> FleetCapacity:
        """Models' values still follow from the whole fleet."""
        alone = copy(self)
        alone.by_kind = {
            kind: {name: here for name, here in by_name.items() if name == neuron}
            for kind, by_name in self.by_kind.items()
        }
        alone.without_cards = {
            name: why for name, why in self.without_cards.items() if name == neuron
        }
        return alone

    def _evictables(self, neuron: NeuronView) -> defaultdict[str, list[EvictionCandidate]]:
        found: defaultdict[str, list[EvictionCandidate]] = defaultdict(list)
        for replica in neuron.replicas:
            if (evictable := self._evictable(replica, neuron)) is None:
                continue
            freed = {name: freed_on(replica, name, neuron) for name in devices_of(replica, neuron)}
            for name, num_bytes in freed.items():
                found[name].append(dataclasses.replace(evictable, freed_bytes=num_bytes))
            if num_bytes := replica.host_memory_bytes:
                found["cpu"].append(dataclasses.replace(evictable, freed_bytes=num_bytes))
        return found

    def _evictable(self, replica: ReplicaView, neuron: NeuronView) -> EvictionCandidate | None:
        if self._catalogue is None or replica.status is ReplicaStatus.FAILED:
            return None
        entry = self._catalogue.get(replica.model)
        least = 0 if entry is None else entry.effective_min_replicas
        if least and replica.status in HELD and self._num_held[replica.model] <= least:
            return None
        idle_s = idle_age_s(replica)
        return EvictionCandidate(
            replica=replica,
            priority=UNKNOWN_MODEL_PRIORITY if entry is None else entry.effective_priority,
            in_s=stays_s(replica),
            is_idle=replica.status in RESTING and idle_s is not None,
            loss=self._cost(replica, neuron, entry) / (1.0 + (idle_s or 0.0)),
        )

    def _cost(
        self, replica: ReplicaView, neuron: NeuronView, entry: CatalogueEntry | None
    ) -> float:
        """Restoring the replica costs this; a load from files costs 1."""
        if replica.status is ReplicaStatus.ASLEEP:
            return 1.0 - COST_OF_WAKING
        if may_sleep(replica, neuron):
            return COST_OF_WAKING
        if entry is None or len(replica.devices) > 1 or not replica.memory_bytes:
            return 1.0
        kind: DeviceKind = "cpu" if "cpu" in replica.devices else "cuda"
        can_move = any(
            free >= replica.memory_bytes
            for (of, name), free in self._most_free.items()
            if of == kind and name != replica.neuron and name in (entry.pinned_on or (name,))
        )
        return COST_OF_MOVING if can_move else 1.0


_last: tuple[FleetSnapshot, Catalogue | None, FleetCapacity] | None = None


def capacity_of(snapshot: FleetSnapshot, catalogue: Catalogue | None) -> FleetCapacity:
    """Cached for the last snapshot: all waiting requests are placed on one."""
    global _last
    if _last is None or _last[0] is not snapshot or _last[1] is not catalogue:
        _last = (snapshot, catalogue, FleetCapacity(snapshot, catalogue))
    return _last[2]


def devices_of(replica: ReplicaView, neuron: NeuronView) -> tuple[str, ...]:
    """If the neuron does not report them: its first device of the better kind."""
    if replica.devices:
        return replica.devices
    names = sorted(device_name(info) for info in neuron.devices)
    cards = [name for name in names if name != "cpu"]
    return tuple((cards or names)[:1])


def stage_neurons(replica: ReplicaView) -> frozenset[str]:
    stages = () if replica.report is None else replica.report.stages
    return frozenset(stage.neuron for stage in stages if stage.neuron)


def freed_on(replica: ReplicaView, device: str, neuron: NeuronView) -> int:
    """Bytes that its eviction frees; 0 where unknown."""
    report, total = replica.report, replica.memory_bytes
    if report is not None and report.stage_memory and total:
        if replica.status is ReplicaStatus.ASLEEP and report.asleep is not None:
            return report.asleep.on(device)
        return _awake_bytes_on(replica, device)
    if device not in devices_of(replica, neuron):
        return 0
    if total is None:
        total = report.actual_bytes + report.process_bytes if report else 0
    return total // max(1, len(replica.devices))


def _awake_bytes_on(replica: ReplicaView, device: str) -> int:
    stages = replica.report.stage_memory if replica.report else ()
    return sum(one.actual_bytes + one.process_bytes for one in stages if one.device == device)


def waking_bytes(replica: ReplicaView, device: str) -> int:
    """Bytes that it uses there in addition once awake."""
    report = replica.report
    if report is None:
        return 0
    if report.stage_memory and report.asleep is not None:
        return max(0, _awake_bytes_on(replica, device) - report.asleep.on(device))
    awake_bytes = report.process_bytes + report.actual_bytes
    lacking = max(0, awake_bytes - (replica.memory_bytes or 0))
    return -(-lacking // max(1, len(replica.devices)))


def may_sleep(replica: ReplicaView, neuron: NeuronView) -> bool:
    report = replica.report
    if replica.status is not ReplicaStatus.READY or report is None or report.asleep is None:
        return False
    if report.asleep.host_bytes == 0:
        return True
    host = next((device for device in neuron.devices if device.kind == "cpu"), None)
    if host is None:
        return False
    kept_bytes = int(HOST_SHARE_KEPT * host.total_memory_bytes)
    return report.asleep.host_bytes <= host.free_memory_bytes - kept_bytes


def idle_age_s(replica: ReplicaView) -> float | None:
    if not replica.is_idle:
        return None
    used_s = replica.last_used_age_s
    return replica.status_age_s if used_s is None else min(used_s, replica.status_age_s)


def stays_s(replica: ReplicaView) -> float:
    """Seconds until it may be evicted."""
    if replica.status in (ReplicaStatus.DRAINING, ReplicaStatus.ASLEEP):
        return 0.0
    load_s = replica.report.load_seconds if replica.report else 0.0
    time_slice_s = min(MAX_TIME_SLICE_S, max(MIN_TIME_SLICE_S, TIME_SLICE_LOADS * load_s))
    if replica.status is not ReplicaStatus.READY:
        return (replica.eta_s or 0.0) + time_slice_s
    idle_s = idle_age_s(replica)
    if idle_s is None:
        return max(0.0, time_slice_s - replica.status_age_s)
    return max(0.0, IDLE_TIME_SLICE_S - replica.status_age_s, QUIET_S - idle_s)


def _value(evictable: EvictionCandidate) -> tuple[int, bool, float, str]:
    return (evictable.priority, not evictable.is_idle, evictable.loss, evictable.replica.model)


Evicted = tuple[EvictionCandidate, ...]


class Clearing(Enum):
    """Those in use leave after their time slices. Replicas of a higher priority never leave."""

    NOTHING = auto()
    IDLE = auto()
    IN_USE = auto()


def freed_by(
    clearing: Clearing, entry: CatalogueEntry, device: DeviceCapacity, *, leaves_itself: bool = True
) -> list[EvictionCandidate]:
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
    """Returns also whether that room is promised to another model; ``None``: not enough."""
    evictables = freed_by(clearing, entry, device, leaves_itself=leaves_itself)
    evicted = evictions_for(needed_bytes - device.free_bytes(entry.name), evictables)
    if evicted is not None or clearing is not Clearing.IN_USE:
        return None if evicted is None else (evicted, False)
    evicted = evictions_for(needed_bytes - device.info.free_memory_bytes, evictables)
    return None if evicted is None else (evicted, True)


def evictions_for(lacking_bytes: int, evictables: Sequence[EvictionCandidate]) -> Evicted | None:
    """The least valuable ones that free enough, without superfluous ones."""
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
