"""The live fleet at one moment, frozen: placement decides by it. A neuron that is missing here is
offline. Pure: no ORM, no Redis, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from fleet.live.desired_state import NO_DESIRED_STATES, Admission, DesiredStates, TimeSlice
from inference.protocol.engine import EngineStats
from inference.protocol.heartbeat import (
    PROTOCOL,
    Capability,
    DeviceInfo,
    HeldStage,
    HeldStageStatus,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
)
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadReport, LoadStage

BEFORE_ENGINE = frozenset({LoadStage.QUEUED, LoadStage.DOWNLOADING})
OF_A_LOAD = frozenset(
    {LoadStage.STARTING, LoadStage.PREFLIGHT, LoadStage.WEIGHTS, LoadStage.WARMUP}
)
EXPECTED_BACK = (ReplicaStatus.LOADING, ReplicaStatus.READY, ReplicaStatus.RECOVERING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """Counters are 0 until its engine has reported any."""

    neuron: str
    model: str
    job_id: str
    status: ReplicaStatus
    status_age_s: float
    """The neuron's own clock counts it, so hosts need not agree on the time."""
    num_restarts: int = 0
    num_failed_loads: int = 0
    """Consecutive failed loads there, the last one included."""
    is_unchanged: bool = False
    """The load failed, and nothing has changed since that could make the next one succeed."""
    in_flight: int = 0
    queue_depth: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    max_in_flight: int | None = None
    max_queue_depth: int | None = None
    num_preemptions: int = 0
    prefix_hit_tokens: int = 0
    """Since its engine started."""
    num_drafted_tokens: int = 0
    num_accepted_drafts: int = 0
    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    last_forward_age_s: float | None = None
    engine_age_s: float | None = None
    stage_s: float | None = None
    """Since the current load's stage began; ``None``: not reported."""
    progress: LoadProgress | None = None
    report: LoadReport | None = None
    capabilities: tuple[Capability, ...] = ()
    max_output_tokens: int | None = None
    failure: LoadFailure | None = None
    spec_digest: str = ""
    """Empty where the neuron does not report it."""
    devices: tuple[str, ...] = ()
    memory_bytes: int | None = None
    """The most that it may allocate; asleep: what it still uses. ``None``: not measured."""
    host_memory_bytes: int = 0
    """Used by a sleeping model's weights, beside ``memory_bytes``."""
    last_used_age_s: float | None = None
    sleep_refused_age_s: float | None = None
    """Seconds since it last refused to sleep; ``None``: never."""

    @property
    def num_requests(self) -> int:
        return self.in_flight + self.queue_depth

    @property
    def is_idle(self) -> bool:
        return self.num_requests == 0

    @property
    def context_tokens(self) -> int | None:
        """The limit its engine enforces on prompt plus output; ``None`` until it is loaded."""
        return self.report.context_tokens if self.report else None

    @property
    def eta_s(self) -> float | None:
        """Seconds until the present load stage ends; ``None``: no estimate."""
        if self.progress is None:
            return None
        return remaining_s(self.stage_age_s, self.progress.done, self.progress.total)

    @property
    def stage_age_s(self) -> float:
        """An upper bound where it is not reported. Stages before the engine's, as downloads, do not
        count."""
        if self.stage_s is not None:
            return self.stage_s
        return self.status_age_s if self.engine_age_s is None else self.engine_age_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStageView:
    """A stage on a neuron for another neuron's engine."""

    neuron: str
    stage: HeldStage
    status_age_s: float

    @property
    def is_failed(self) -> bool:
        return self.stage.status is HeldStageStatus.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronView:
    name: str
    epoch: str
    version: str
    devices: tuple[DeviceInfo, ...]
    replicas: tuple[ReplicaView, ...]
    num_cores: int | None = None
    problems: tuple[str, ...] = ()
    cuda_unavailable: str = ""
    """Why its cards cannot be used; empty where they can, or where it has none."""
    is_draining: bool = False
    """Drained or shutting down: no new loads, and requests only for models that are moving away."""
    is_leaving: bool = False
    """The neuron is shutting down and refuses new requests."""
    thread_problems: tuple[str, ...] = ()
    is_ready: bool = True
    """``False``: it lacks threads that requests need. Nothing is placed or routed there."""
    is_admitted: bool = True
    speaks_our_protocol: bool = True
    """``False``: its build is too old or too new. Nothing is placed or routed there."""
    stage_host: str = ""
    """The address of its stages for other neurons' engines; empty: it has none."""
    held_stages: tuple[HeldStageView, ...] = ()

    @property
    def may_load(self) -> bool:
        return self.may_serve and not self.is_draining

    @property
    def may_serve(self) -> bool:
        speaks = self.speaks_our_protocol
        return self.is_admitted and speaks and self.is_ready and not self.is_leaving

    def replica_of(self, model: str) -> ReplicaView | None:
        return next((replica for replica in self.replicas if replica.model == model), None)


@dataclass(frozen=True, kw_only=True)
class FleetSnapshot:
    """``neurons`` are sorted by name."""

    neurons: tuple[NeuronView, ...]
    desired_states: DesiredStates = NO_DESIRED_STATES
    """As last published, also of neurons that are not in the snapshot."""

    absent: tuple[NeuronView, ...] = ()
    time_slices: tuple[TimeSlice, ...] = ()

    @cached_property
    def by_model(self) -> Mapping[str, tuple[ReplicaView, ...]]:
        found: dict[str, list[ReplicaView]] = {}
        for replica in self.replicas():
            found.setdefault(replica.model, []).append(replica)
        return {model: tuple(replicas) for model, replicas in found.items()}

    @cached_property
    def _by_name(self) -> Mapping[str, NeuronView]:
        return {neuron.name: neuron for neuron in self.neurons}

    def replicas(self) -> Iterator[ReplicaView]:
        for neuron in self.neurons:
            yield from neuron.replicas

    def replicas_of(self, model: str) -> tuple[ReplicaView, ...]:
        return self.by_model.get(model, ())

    def replica_on(self, neuron: str, model: str) -> ReplicaView | None:
        return next((one for one in self.replicas_of(model) if one.neuron == neuron), None)

    def held_stages(self) -> Iterator[HeldStageView]:
        for neuron in self.neurons:
            yield from neuron.held_stages

    def neuron(self, name: str) -> NeuronView | None:
        return self._by_name.get(name)

    def absent_holders(self, model: str) -> tuple[str, ...]:
        return tuple(
            neuron.name
            for neuron in self.absent
            if any(r.model == model and r.status in EXPECTED_BACK for r in neuron.replicas)
        )


def build_snapshot(
    heartbeats: Iterable[NeuronHeartbeat],
    desired_states: DesiredStates = NO_DESIRED_STATES,
    time_slices: tuple[TimeSlice, ...] = (),
) -> FleetSnapshot:
    views = (_neuron_view(heartbeat, desired_states) for heartbeat in heartbeats)
    neurons = tuple(sorted(views, key=lambda view: view.name))
    return FleetSnapshot(neurons=neurons, desired_states=desired_states, time_slices=time_slices)


def remaining_s(elapsed_s: float, done: int, total: int) -> float | None:
    if elapsed_s <= 0 or done <= 0 or total <= 0:
        return None
    return max(0.0, elapsed_s * (total - done) / done)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEstimate:
    share: float | None = None
    """The completed share of the whole load, 0 to 1."""
    left_s: float | None = None


NO_ESTIMATE = LoadEstimate()


def load_estimate(
    *,
    stage: str,
    done: int,
    total: int,
    stage_elapsed_s: float | None,
    engine_elapsed_s: float | None,
    last_load_s: float | None,
) -> LoadEstimate:
    """``engine_elapsed_s``: since the load's engine started; ``last_load_s``: from an engine's
    start to its end, when it was last loaded there. An engine starts, reads headers and warms up
    without a rate: then the last load's duration counts, and once that is exceeded, the stage's
    rate."""
    stage_left_s = None if stage_elapsed_s is None else remaining_s(stage_elapsed_s, done, total)
    if stage in BEFORE_ENGINE:
        left_s = None if stage_left_s is None else stage_left_s + (last_load_s or 0.0)
        return LoadEstimate(left_s=left_s)
    is_as_usual = (
        stage in OF_A_LOAD
        and last_load_s is not None
        and engine_elapsed_s is not None
        and engine_elapsed_s < last_load_s
    )
    if not is_as_usual:
        return LoadEstimate(left_s=stage_left_s)
    assert last_load_s is not None and engine_elapsed_s is not None
    return LoadEstimate(
        share=max(0.0, engine_elapsed_s) / last_load_s,
        left_s=last_load_s - max(0.0, engine_elapsed_s),
    )


def protocol_problems(heartbeat: NeuronHeartbeat) -> list[str]:
    if heartbeat.protocol == PROTOCOL:
        return []
    whom = "this host is" if heartbeat.protocol < PROTOCOL else "gateways and controls are"
    return [
        f"it speaks protocol {heartbeat.protocol} and gateways {PROTOCOL}: no requests go there "
        f"until {whom} upgraded"
    ]


def _neuron_view(heartbeat: NeuronHeartbeat, desired_states: DesiredStates) -> NeuronView:
    desired = desired_states.of(heartbeat.name)
    return NeuronView(
        name=heartbeat.name,
        epoch=heartbeat.epoch,
        version=heartbeat.version,
        devices=tuple(heartbeat.devices),
        replicas=tuple(
            _replica_view(heartbeat, state)
            for state in sorted(heartbeat.replicas, key=lambda state: state.model)
        ),
        num_cores=max(1, heartbeat.host.num_cores),
        problems=(*heartbeat.host.problems, *protocol_problems(heartbeat)),
        cuda_unavailable=heartbeat.host.cuda_unavailable,
        is_draining=desired.drain or heartbeat.is_leaving,
        is_leaving=heartbeat.is_leaving,
        thread_problems=tuple(heartbeat.thread_problems),
        is_ready=heartbeat.is_ready,
        is_admitted=desired.admission is Admission.ADMITTED,
        speaks_our_protocol=heartbeat.protocol == PROTOCOL,
        stage_host=heartbeat.stage_host,
        held_stages=tuple(
            HeldStageView(
                neuron=heartbeat.name,
                stage=stage,
                status_age_s=max(0.0, heartbeat.time_unix_s - stage.since_unix_s),
            )
            for stage in sorted(heartbeat.stages, key=lambda one: (one.model, one.index))
        ),
    )


VIEWED = {field.name for field in fields(ReplicaView)} - {"devices", "capabilities"}
OF_STATE = VIEWED.intersection(ReplicaState.__struct_fields__)
OF_STATS = VIEWED.intersection(EngineStats.__struct_fields__)


def _replica_view(heartbeat: NeuronHeartbeat, state: ReplicaState) -> ReplicaView:
    stats, refusal = state.stats, state.sleep_refusal
    refused_unix_s = None if refusal is None else refusal.at_unix_s
    forward_unix_s = None if stats is None else stats.last_forward_unix_s
    copied: dict[str, Any] = {name: getattr(state, name) for name in OF_STATE}
    if stats is not None:
        copied |= {name: getattr(stats, name) for name in OF_STATS}
    return ReplicaView(
        neuron=heartbeat.name,
        status_age_s=max(0.0, heartbeat.time_unix_s - state.since_unix_s),
        engine_age_s=_age_s(heartbeat, state.engine_since_unix_s),
        stage_s=_age_s(heartbeat, state.stage_since_unix_s),
        capabilities=tuple(state.capabilities),
        devices=tuple(state.devices),
        last_used_age_s=_age_s(heartbeat, state.last_used_unix_s),
        sleep_refused_age_s=_age_s(heartbeat, refused_unix_s),
        last_forward_age_s=_age_s(heartbeat, forward_unix_s),
        **copied,
    )


def _age_s(heartbeat: NeuronHeartbeat, moment_unix_s: float | None) -> float | None:
    return None if moment_unix_s is None else max(0.0, heartbeat.time_unix_s - moment_unix_s)


GRACE_S = 10.0
"""After its heartbeat has lapsed, which takes four seconds. Long enough for a stalled host or a
short network failure, and shorter than most loads."""


class Absences:
    """Neurons that have just fallen silent: for ``GRACE_S`` their replicas are expected back, then
    their models are loaded elsewhere. One that announced its shutdown is not waited for."""

    def __init__(self) -> None:
        self._last_seen: dict[str, tuple[float, NeuronView]] = {}

    def noted(self, snapshot: FleetSnapshot, now_s: float) -> FleetSnapshot:
        for neuron in snapshot.neurons:
            self._last_seen[neuron.name] = (now_s, neuron)
        absent = []
        for name, (seen_s, neuron) in list(self._last_seen.items()):
            if now_s - seen_s >= GRACE_S or neuron.is_leaving or not neuron.is_admitted:
                del self._last_seen[name]
            elif snapshot.neuron(name) is None:
                absent.append(neuron)
        return replace(snapshot, absent=tuple(absent)) if absent else snapshot
