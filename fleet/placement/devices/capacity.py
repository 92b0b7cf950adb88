"""The devices of a snapshot: free memory, and replicas that may be evicted.

    FleetSnapshot, Catalogue ──FleetCapacity──▶ DeviceCapacity* ▷ EvictionCandidate*
                                                                     least valuable first

Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement.decisions import Catalogue
from fleet.placement.devices.sleeping import COST_OF_WAKING, may_sleep
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus, device_name

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

UNKNOWN_MODEL_PRIORITY = -1
"""The priority of a model that the catalogue does not offer (any more): no request can name it."""

HELD = (ReplicaStatus.READY, ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)
REPLACEABLE = (ReplicaStatus.FAILED, ReplicaStatus.ASLEEP)
"""Replicas that do not prevent a load or wake of their model on that neuron."""
RESTING = (ReplicaStatus.READY, ReplicaStatus.ASLEEP)
"""Replicas in these states may be idle."""


@dataclass(slots=True)
class EvictionCandidate:
    """A replica that may be evicted from its devices, now or later. ``freed_bytes`` is on each of
    them; ``in_s`` is the time until that, 0: now; ``loss`` is the expected rate of requests for it,
    times its cost."""

    replica: ReplicaView
    priority: int
    freed_bytes: int
    in_s: float
    is_idle: bool
    goes_now: bool
    loss: float


@dataclass(slots=True)
class DeviceCapacity:
    """``evictables`` are the evictable replicas, the least valuable first. ``claims`` are bytes
    that are promised to a model for its time slice. Not to be changed."""

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
        """The device's bytes for models, if it were empty."""
        held = sum(freed_on(one, self.name, self.neuron) for one in self.neuron.replicas)
        return min(self.info.total_memory_bytes, self.info.free_memory_bytes + held)


class FleetCapacity:
    def __init__(self, snapshot: FleetSnapshot, catalogue: Catalogue | None) -> None:
        """``catalogue`` has the priorities of replicas. Without one no replica may be evicted."""
        self._catalogue = catalogue
        self._most_free: dict[tuple[DeviceKind, str], int] = {}
        """The most free bytes on one device of a kind, by kind and neuron."""
        for neuron in snapshot.neurons:
            for info in neuron.devices if neuron.may_load else ():
                where = (info.kind, neuron.name)
                free = info.free_memory_bytes
                self._most_free[where] = max(free, self._most_free.get(where, 0))
        self._num_held = {
            model: sum(replica.status in HELD for replica in replicas)
            for model, replicas in snapshot.by_model.items()
        }
        claims: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for time_slice in snapshot.time_slices:
            if self._num_held.get(time_slice.model):
                continue  # its promise is fulfilled
            for name in time_slice.devices:
                claim = (time_slice.model, time_slice.promised_on(name))
                claims.setdefault((time_slice.neuron, name), []).append(claim)
        self.by_kind: dict[DeviceKind, dict[str, list[DeviceCapacity]]] = {"cuda": {}, "cpu": {}}
        """The devices of each neuron that accepts loads, by its name."""
        self.without_cards: dict[str, str] = {}
        for neuron in snapshot.neurons:
            if neuron.may_load:
                if neuron.cuda_unavailable:
                    self.without_cards[neuron.name] = neuron.cuda_unavailable
                self._add(neuron, claims)

    def barred(self, entry: CatalogueEntry) -> Mapping[str, str]:
        """Neurons whose processors the model may not use, with the reason: their cards are
        unavailable, and it is not enabled for processors."""
        return {} if entry.device == "cpu" else self.without_cards

    def only(self, neuron: str) -> FleetCapacity:
        """The candidates on that neuron alone. Models' values still follow from the whole fleet."""
        alone = copy(self)
        alone.by_kind = {
            kind: {name: here for name, here in by_name.items() if name == neuron}
            for kind, by_name in self.by_kind.items()
        }
        alone.without_cards = {
            name: why for name, why in self.without_cards.items() if name == neuron
        }
        return alone

    def _add(
        self, neuron: NeuronView, claims: dict[tuple[str, str], list[tuple[str, int]]]
    ) -> None:
        evictables: dict[str, list[EvictionCandidate]] = {}
        for replica in neuron.replicas:
            if (evictable := self._evictable(replica, neuron)) is not None:
                for name in devices_of(replica, neuron):
                    freed = freed_on(replica, name, neuron)
                    there = dataclasses.replace(evictable, freed_bytes=freed)
                    evictables.setdefault(name, []).append(there)
                if replica.host_memory_bytes:
                    away = dataclasses.replace(evictable, freed_bytes=replica.host_memory_bytes)
                    evictables.setdefault("cpu", []).append(away)
        for info in neuron.devices:
            name = device_name(info)
            here = DeviceCapacity(
                neuron=neuron,
                info=info,
                name=name,
                evictables=sorted(evictables.get(name, []), key=_value),
                claims=claims.get((neuron.name, name), ()),
            )
            self.by_kind[info.kind].setdefault(neuron.name, []).append(here)

    def _evictable(self, replica: ReplicaView, neuron: NeuronView) -> EvictionCandidate | None:
        """``None``: it must not be evicted, or uses no memory."""
        if self._catalogue is None or replica.status is ReplicaStatus.FAILED:
            return None
        entry = self._catalogue.get(replica.model)
        if entry is not None and self._is_kept(replica, entry.effective_min_replicas):
            return None
        idle_s, in_s = idle_age_s(replica), stays_s(replica)
        is_idle = replica.status in RESTING and idle_s is not None
        return EvictionCandidate(
            replica=replica,
            priority=UNKNOWN_MODEL_PRIORITY if entry is None else entry.effective_priority,
            freed_bytes=freed_bytes(replica),
            in_s=in_s,
            is_idle=is_idle,
            goes_now=is_idle and in_s == 0,
            loss=self._cost(replica, neuron, entry) / (1.0 + (idle_s or 0.0)),
        )

    def _cost(
        self, replica: ReplicaView, neuron: NeuronView, entry: CatalogueEntry | None
    ) -> float:
        """The cost of restoring it, where a load from files is 1."""
        if replica.status is ReplicaStatus.ASLEEP:
            return 1.0 - COST_OF_WAKING
        if may_sleep(replica, neuron):
            return COST_OF_WAKING
        can_move = entry is not None and self._fits_elsewhere(replica, entry.pinned_on)
        return COST_OF_MOVING if can_move else 1.0

    def _is_kept(self, replica: ReplicaView, least_replicas: int) -> bool:
        return (
            least_replicas > 0
            and replica.status in HELD
            and self._num_held[replica.model] <= least_replicas
        )

    def _fits_elsewhere(self, replica: ReplicaView, pinned_on: Collection[str]) -> bool:
        """Whether one free device of another neuron has room for it; ``moves`` decides exactly."""
        if len(replica.devices) > 1 or not replica.memory_bytes:
            return False
        kind: DeviceKind = "cpu" if "cpu" in replica.devices else "cuda"
        return any(
            free >= replica.memory_bytes
            for (of, name), free in self._most_free.items()
            if of == kind and name != replica.neuron and name in (pinned_on or (name,))
        )


_last: tuple[FleetSnapshot, Catalogue | None, FleetCapacity] | None = None


def capacity_of(snapshot: FleetSnapshot, catalogue: Catalogue | None) -> FleetCapacity:
    """Cached for the last snapshot: all waiting requests are placed on one."""
    global _last
    if _last is None or _last[0] is not snapshot or _last[1] is not catalogue:
        _last = (snapshot, catalogue, FleetCapacity(snapshot, catalogue))
    return _last[2]


def devices_of(replica: ReplicaView, neuron: NeuronView) -> tuple[str, ...]:
    """The replica's devices. If the neuron does not report them: its first device of the better
    kind."""
    if replica.devices:
        return replica.devices
    names = sorted(device_name(info) for info in neuron.devices)
    cards = [name for name in names if name != "cpu"]
    return tuple((cards or names)[:1])


def freed_on(replica: ReplicaView, device: str, neuron: NeuronView) -> int:
    """Bytes freed on that device of its neuron by its eviction; 0 where unknown."""
    if replica.report is not None and replica.report.stage_memory and replica.memory_bytes:
        if replica.status is ReplicaStatus.ASLEEP and replica.report.asleep is not None:
            return replica.report.asleep.on(device)
        return sum(
            one.actual_bytes + one.process_bytes
            for one in replica.report.stage_memory
            if one.device == device
        )
    return freed_bytes(replica) if device in devices_of(replica, neuron) else 0


def freed_bytes(replica: ReplicaView) -> int:
    """Bytes freed on each of its devices by its eviction, where they are alike; 0 where unknown."""
    total = replica.memory_bytes
    if total is None:
        report = replica.report
        total = report.actual_bytes + report.process_bytes if report else 0
    return total // max(1, len(replica.devices))


def idle_age_s(replica: ReplicaView) -> float | None:
    if not replica.is_idle:
        return None
    used_s = replica.last_used_age_s
    return replica.status_age_s if used_s is None else min(used_s, replica.status_age_s)


def time_slice_s(replica: ReplicaView) -> float:
    load_s = replica.report.load_seconds if replica.report else 0.0
    return min(MAX_TIME_SLICE_S, max(MIN_TIME_SLICE_S, TIME_SLICE_LOADS * load_s))


def stays_s(replica: ReplicaView) -> float:
    if replica.status in (ReplicaStatus.DRAINING, ReplicaStatus.ASLEEP):
        return 0.0
    if replica.status is not ReplicaStatus.READY:
        return (replica.eta_s or 0.0) + time_slice_s(replica)
    idle_s = idle_age_s(replica)
    if idle_s is None:
        return max(0.0, time_slice_s(replica) - replica.status_age_s)
    return max(0.0, IDLE_TIME_SLICE_S - replica.status_age_s, QUIET_S - idle_s)


def _value(evictable: EvictionCandidate) -> tuple[int, bool, float, str]:
    return (evictable.priority, not evictable.is_idle, evictable.loss, evictable.replica.model)
