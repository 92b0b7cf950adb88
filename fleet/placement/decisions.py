"""Placement's decisions, and the snapshot that is expected after one, before heartbeats show it.
Callers apply each decision before making the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement.capacity import MIN_TIME_SLICE_S, Evicted, devices_of, freed_on
from fleet.placement.needs import Needs
from inference.protocol.heartbeat import ReplicaStatus, WaitingModel, device_name
from inference.protocol.load import StageSpec


def stage_evictions(stages: Sequence[StageSpec]) -> tuple[tuple[str, str], ...]:
    """(neuron, model) for stages on other neurons, each once."""
    found = ((stage.neuron, model) for stage in stages for model in stage.evict)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    neuron: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``evict``: models that leave ``neuron`` first; ``stages`` name those of other neurons."""

    neuron: str
    model: str
    devices: tuple[str, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    """How the layers are divided over ``devices``; empty: undivided."""
    predicted_tokens_per_s: float | None = None
    """For one request, by the plan of ``stages``."""
    evict: tuple[str, ...] = ()

    @property
    def evictions(self) -> tuple[tuple[str, str], ...]:
        own = ((self.neuron, model) for model in self.evict)
        return (*own, *stage_evictions(self.stages))


UNTOUCHED = -(2**31)
"""Below every priority: no eviction."""


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """``device_bytes`` is needed on each device, of stages at most; ``None`` while unknown."""

    neuron: str
    devices: tuple[str, ...]
    device_bytes: int | None
    evicted: Evicted = ()
    """They are on ``neuron``; each of ``stages`` names its own."""
    is_promised: bool = False
    """Another model has priority."""
    stages: tuple[StageSpec, ...] = ()
    predicted_tokens_per_s: float | None = None

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
        """Best first: the soonest, the lowest priority that leaves, the least total loss."""
        priority = max((one.priority for one in self.evicted), default=UNTOUCHED)
        loss = sum(one.loss for one in self.evicted)
        return (self.is_promised, self.ready_in_s, priority, loss)

    def load(self, model: str) -> Load:
        return Load(
            neuron=self.neuron,
            model=model,
            devices=self.devices,
            stages=self.stages,
            predicted_tokens_per_s=self.predicted_tokens_per_s,
            evict=self.evict,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Place again shortly. ``reason`` is for people."""

    neuron: str
    model: str
    reason: str
    eta_s: float | None = None
    share: float | None = None
    """The awaited load's completed share, 0 to 1; ``None``: unknown."""
    needs_time_slice: bool = False
    """Only replicas in use could make room."""
    is_for_drain: bool = False

    @property
    def words(self) -> str:
        share = "" if self.share is None else f", {self.share:.0%}"
        left = "" if self.eta_s is None else f", about {max(1, round(self.eta_s))} s left"
        return f"{self.reason}{share}{left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """``code``: no_neuron, not_enough_memory, model_recovering, load_failed (each a 503), or that
    of a failure that no retry cures. ``retry_after_s``: ``None`` where only an operator's change
    helps."""

    code: str
    message: str
    retry_after_s: float | None
    model_id: str = ""
    """The source of a model that does not load, as ``huggingface:org/name``."""
    suggestion: str = ""


Decision = Route | Load | Wait | Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """``reason`` is for people. ``at_once``: its requests are cancelled."""

    neuron: str
    model: str
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Drain, then release the device and keep the weights. ``reason`` is for people."""

    neuron: str
    model: str
    reason: str


Action = Load | Unload | Sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    loading: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron). No heartbeat may show them yet."""
    unloading: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron), also of sleeps."""
    to_restore: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Models by neuron that were loaded there before a drain or an eviction and are not loaded
    again yet; the last used first."""
    evicting: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron) of replicas being evicted for active loads."""
    overdue: frozenset[str] = frozenset()
    """Requests still running on these neurons are cancelled."""
    num_failures: Mapping[str, int] = field(default_factory=dict)
    failed_age_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds since the last failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    waiting: Mapping[str, WaitingModel] = field(default_factory=dict)
    queue_long_s: Mapping[str, float] = field(default_factory=dict)
    """For how many seconds the model's queue has been long on all its replicas."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``time_slices``: all active. ``restored``: models by neuron, back after a drain or given
    up."""

    actions: tuple[Action, ...] = ()
    time_slices: tuple[TimeSlice, ...] = ()
    restored: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_at_rest: bool = False
    """Neither time nor memory that becomes free changes it: all that is wanted is loaded, and all
    that is loaded stays. Said of a fleet of one host only."""


def with_load(snapshot: FleetSnapshot, load: Load, entry: CatalogueEntry) -> FleetSnapshot:
    neuron = snapshot.neuron(load.neuron)
    if neuron is None:
        return snapshot
    taken = _taken_bytes(load, entry)
    loading = ReplicaView(
        neuron=neuron.name,
        model=load.model,
        job_id="",
        status=ReplicaStatus.LOADING,
        status_age_s=0.0,
        devices=load.devices,
        memory_bytes=sum(taken.values()),
    )
    neuron = _changed(neuron, {*load.evict, load.model}, taken)
    replicas = sorted([*neuron.replicas, loading], key=lambda replica: replica.model)
    snapshot = _with_neuron(snapshot, replace(neuron, replicas=tuple(replicas)))
    for stage in load.stages:
        if stage.neuron and (other := snapshot.neuron(stage.neuron)) is not None:
            changed = _changed(other, stage.evict, {stage.device: stage.memory_bytes})
            snapshot = _with_neuron(snapshot, changed)
    return snapshot


def with_status(
    snapshot: FleetSnapshot, neuron_name: str, model: str, status: ReplicaStatus
) -> FleetSnapshot:
    neuron = snapshot.neuron(neuron_name)
    if neuron is None:
        return snapshot
    replicas = tuple(
        replace(replica, status=status, status_age_s=0.0) if replica.model == model else replica
        for replica in neuron.replicas
    )
    return _with_neuron(snapshot, replace(neuron, replicas=replicas))


def _with_neuron(snapshot: FleetSnapshot, changed: NeuronView) -> FleetSnapshot:
    neurons = tuple(
        changed if neuron.name == changed.name else neuron for neuron in snapshot.neurons
    )
    return replace(snapshot, neurons=neurons)


def _changed(
    neuron: NeuronView, leaving: Collection[str], taken_bytes: Mapping[str, int]
) -> NeuronView:
    more_bytes = Counter[str]()
    for replica in neuron.replicas:
        for name in devices_of(replica, neuron) if replica.model in leaving else ():
            more_bytes[name] += freed_on(replica, name, neuron)
    devices = []
    for info in neuron.devices:
        free = min(info.total_memory_bytes, info.free_memory_bytes + more_bytes[device_name(info)])
        free = max(0, free - taken_bytes.get(device_name(info), 0))
        devices.append(msgspec.structs.replace(info, free_memory_bytes=free))
    replicas = tuple(one for one in neuron.replicas if one.model not in leaving)
    return replace(neuron, devices=tuple(devices), replicas=replicas)


def _taken_bytes(load: Load, entry: CatalogueEntry) -> dict[str, int]:
    if load.stages:
        return {stage.device: stage.memory_bytes for stage in load.stages if not stage.neuron}
    kind: DeviceKind = "cpu" if "cpu" in load.devices else "cuda"
    each = Needs(entry).device_bytes(load.neuron, kind) or 0
    return dict.fromkeys(load.devices, each)
