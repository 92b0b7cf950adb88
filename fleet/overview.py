"""The whole fleet at one look: for the status command, the REST answer and pages.

Live where Redis answers, else as it was last recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet import live, selectors
from fleet.errors import SnapshotUnavailableError
from fleet.models import Device, LoadJob, Neuron, Replica
from fleet.outdated import is_outdated


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    id: str
    name: str
    total_memory_bytes: int
    free_memory_bytes: int
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLine:
    model: str
    status: str
    is_outdated: bool
    devices: tuple[str, ...]
    in_flight: int
    queue_depth: int
    decode_tokens_per_s: float
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronLine:
    name: str
    status: str
    problems: tuple[str, ...]
    devices: tuple[DeviceLine, ...]
    replicas: tuple[ReplicaLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    name: str
    status: str
    pinned: bool
    replicas: int
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    id: str
    kind: str
    model: str
    neuron: str
    status: str
    stage: str
    progress_fraction: float | None
    eta_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOverview:
    is_live: bool
    """False: Redis does not answer; this is what was recorded last."""
    problems: tuple[str, ...]
    """In words, for people; empty: all is as it should be."""
    neurons: tuple[NeuronLine, ...]
    models: tuple[ModelLine, ...]
    jobs: tuple[JobLine, ...] = field(default=())
    """Those under way."""


BEST_FIRST = ("ready", "recovering", "loading", "draining", "failed", "away")
NOT_LOADED = "unloaded"


def fleet_overview() -> FleetOverview:
    readings = _live_devices()
    neurons = tuple(
        _neuron_line(neuron, readings or {})
        for neuron in Neuron.objects.prefetch_related("devices", "replicas")
    )
    models = tuple(_model_line(entry.name) for entry in selectors.catalogue_list())
    jobs = selectors.load_jobs_active().order_by("created_at")
    return FleetOverview(
        is_live=readings is not None,
        problems=tuple(_problems(neurons, models, is_live=readings is not None)),
        neurons=neurons,
        models=models,
        jobs=tuple(_job_line(job) for job in jobs),
    )


def _live_devices() -> dict[tuple[str, str], DeviceLine] | None:
    """By neuron and device; ``None``: Redis does not answer."""
    try:
        snapshot = live.read_snapshot_sync(live.redis_client())
    except SnapshotUnavailableError:
        return None
    return {
        (neuron.name, f"{device.kind}:{device.index}"): DeviceLine(
            id=f"{device.kind}:{device.index}",
            name=device.name,
            total_memory_bytes=device.total_memory_bytes,
            free_memory_bytes=device.free_memory_bytes,
            utilization_percent=device.utilization_percent,
            temperature_c=device.temperature_c,
            power_w=device.power_w,
        )
        for neuron in snapshot.neurons
        for device in neuron.devices
    }


def _neuron_line(neuron: Neuron, readings: dict[tuple[str, str], DeviceLine]) -> NeuronLine:
    return NeuronLine(
        name=neuron.name,
        status=neuron.status,
        problems=tuple(neuron.problems),
        devices=tuple(
            readings.get((neuron.name, f"{device.kind}:{device.index}"), _recorded(device))
            for device in neuron.devices.all()
        ),
        replicas=tuple(_replica_line(replica) for replica in neuron.replicas.all()),
    )


def _recorded(device: Device) -> DeviceLine:
    return DeviceLine(
        id=f"{device.kind}:{device.index}",
        name=device.name,
        total_memory_bytes=device.total_memory_bytes,
        free_memory_bytes=device.free_memory_bytes,
    )


def _replica_line(replica: Replica) -> ReplicaLine:
    entry = selectors.catalogue_find(replica.model_name)
    return ReplicaLine(
        model=replica.model_name,
        status=replica.status,
        is_outdated=entry is not None and is_outdated(replica.spec_digest, entry),
        devices=tuple(replica.devices),
        in_flight=replica.in_flight,
        queue_depth=replica.queue_depth,
        decode_tokens_per_s=replica.decode_tokens_per_s,
        failure=replica.failure_message,
    )


def _model_line(name: str) -> ModelLine:
    entry = selectors.catalogue_find(name)
    assert entry is not None, "a model of the list is in the catalogue"
    statuses = list(Replica.objects.filter(model_name=name).values_list("status", flat=True))
    return ModelLine(
        name=name,
        status=min(statuses, key=BEST_FIRST.index) if statuses else NOT_LOADED,
        pinned=entry.pinned,
        replicas=statuses.count("ready"),
        min_replicas=entry.effective_min_replicas,
        max_replicas=entry.max_replicas,
    )


def _job_line(job: LoadJob) -> JobLine:
    return JobLine(
        id=str(job.pk),
        kind=job.kind,
        model=job.model_name,
        neuron=job.neuron.name,
        status=job.status,
        stage=job.stage,
        progress_fraction=job.progress_fraction,
        eta_s=job.eta_s,
    )


def _problems(
    neurons: tuple[NeuronLine, ...], models: tuple[ModelLine, ...], *, is_live: bool
) -> list[str]:
    problems = [] if is_live else ["Redis does not answer: this is what was recorded last"]
    if not neurons:
        problems.append("no neuron has joined yet")
    for neuron in neurons:
        if neuron.status == "away":
            problems.append(f"{neuron.name} is away")
        problems += [f"{neuron.name}: {problem}" for problem in neuron.problems]
        problems += [
            f"{replica.model} failed on {neuron.name}: {replica.failure}"
            for replica in neuron.replicas
            if replica.status == "failed"
        ]
        problems += [
            f"{replica.model} on {neuron.name} is outdated: reload it"
            for replica in neuron.replicas
            if replica.is_outdated and replica.status == "ready"
        ]
    problems += [
        f"{model.name} has {model.replicas} of at least {model.min_replicas} replicas"
        for model in models
        if model.replicas < model.min_replicas
    ]
    return problems
