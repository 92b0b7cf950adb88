"""An overview of the fleet for the dashboard, the status command and the REST API: live where Redis
answers, else as last recorded. Each table is read in one query."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import redis
from django.db.models import Q
from django.utils import timezone

from fleet import selectors
from fleet.catalogue import CatalogueEntry
from fleet.errors import SnapshotUnavailableError
from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES, DownloadKind
from fleet.live import reading as live
from fleet.live.desired_state import KnownDevice
from fleet.live.reading import only_refused, read_cache_reports, read_counts
from fleet.models import Device, LoadJob, Neuron, Replica
from fleet.nouns import UUID_PATTERN
from fleet.overview_lines import (
    AuditLine,
    DeviceLine,
    DownloadLine,
    FleetOverview,
    HeldMemory,
    HeldStageLine,
    JobLine,
    ModelLine,
    NeuronLine,
    RefusalLine,
    ReplicaLine,
    attention,
)
from fleet.placement.division import Devices, is_large_enough
from fleet.placement.needs import Needs
from fleet.placement.returning import why_unmet
from fleet.services.neurons import models_to_restore
from inference.protocol.heartbeat import DeviceInfo
from inference.protocol.neuron_tasks import CacheReport
from inference.protocol.refusals import Refused
from inference.version import VERSION
from metering import selectors as metering_selectors
from metering.models import AuditEntry
from metering.selectors import UsageFilter, UsagePeriod
from metering.series_store import traffic

BEST_FIRST = ("ready", "recovering", "loading", "asleep", "draining", "failed", "away")
NOT_LOADED = "unloaded"
UPSTREAM = "upstream"
"""Nothing of the model is loaded."""
MAX_AUDIT_ENTRIES = 8
REFUSAL_HOURS = 2
ENDED_JOBS_SHOWN_FOR = timedelta(minutes=2)
MAX_ENDED_JOBS = 20
AS_STORED = (
    *("id", "status", "memory_bytes", "host_memory_bytes", "in_flight", "queue_depth"),
    *("kv_blocks_used", "kv_blocks_total", "decode_tokens_per_s"),
)
MEASURED = (
    *("name", "total_memory_bytes", "free_memory_bytes", "installed_memory_bytes"),
    *("utilization_percent", "temperature_c", "power_w"),
)
"""A device's fields in its report; the first four are stored too."""


def fleet_overview() -> FleetOverview:
    now = timezone.now()
    live = read_live()
    readings = live or LiveReadings()
    entries = selectors.catalogue_list()
    neurons = _neurons(readings, {entry.name: entry.spec_digest() for entry in entries})
    models = tuple(_models(entries, neurons))
    today = UsagePeriod(first=now.date(), last=now.date())
    used = metering_selectors.usage_total(period=today, where=UsageFilter())
    return FleetOverview(
        is_live=live is not None,
        attention=attention(
            neurons,
            models,
            metering_selectors.budgets_nearly_spent(now_unix_s=time.time()),
            is_live=live is not None,
            version=VERSION,
            refused=readings.refused,
        ),
        neurons=neurons,
        models=models,
        jobs=job_lines(),
        downloads=_downloads(),
        minutes=traffic(now=now),
        refusals=_refusal_lines(readings.refused),
        requests_today=used.requests,
        spent_today_micro_usd=used.cost_micro_usd,
        audit=_audit(),
    )


def _neurons(readings: LiveReadings, digests: Mapping[str, str]) -> tuple[NeuronLine, ...]:
    replicas = _replicas_by_neuron(digests)
    coming_back = models_to_restore()
    return tuple(
        _neuron_line(neuron, tuple(replicas[neuron.pk]), readings, coming_back.get(neuron.name, ()))
        for neuron in Neuron.objects.prefetch_related("devices")
    )


def _replicas_by_neuron(digests: Mapping[str, str]) -> dict[int, list[ReplicaLine]]:
    """Leaves out load reports, which are long."""
    found: dict[int, list[ReplicaLine]] = defaultdict(list)
    for row in Replica.objects.order_by("model_name").values(
        *AS_STORED,
        "neuron_id",
        "model_name",
        "spec_digest",
        "devices",
        "adapters",
        "failure_message",
        "report__stage_memory",
        "report__stages",
        "report__asleep",
    ):
        digest = digests.get(row["model_name"], "")
        line = ReplicaLine(
            **{name: row[name] for name in AS_STORED},
            model=row["model_name"],
            is_outdated=bool(digest) and row["spec_digest"] not in ("", digest),
            devices=tuple(row["devices"]),
            device_bytes={
                one["device"]: one["actual_bytes"] + one["process_bytes"]
                for one in row["report__stage_memory"] or ()
            },
            lies_on_hosts=any(one.get("neuron") for one in row["report__stages"] or ()),
            may_sleep=row["status"] == "ready" and row["report__asleep"] is not None,
            adapters=tuple(row["adapters"]),
            failure=row["failure_message"],
        )
        found[row["neuron_id"]].append(line)
    return found


def _neuron_line(
    neuron: Neuron,
    replicas: tuple[ReplicaLine, ...],
    readings: LiveReadings,
    coming_back: tuple[str, ...],
) -> NeuronLine:
    stages = tuple(HeldStageLine(**stage) for stage in neuron.held_stages)
    held = _held_memory(replicas, stages)
    disk = readings.disks.get(neuron.name)
    return NeuronLine(
        name=neuron.name,
        status=neuron.status,
        version=neuron.version,
        problems=tuple(neuron.problems),
        devices=tuple(_device_line(one, neuron, held, readings) for one in neuron.devices.all()),
        replicas=replicas,
        held_stages=stages,
        coming_back=coming_back,
        disk_total_bytes=disk.disk_total_bytes if disk else None,
        disk_free_bytes=disk.disk_free_bytes if disk else None,
    )


def _device_line(
    device: Device,
    neuron: Neuron,
    held: Mapping[str, list[HeldMemory]],
    readings: LiveReadings,
) -> DeviceLine:
    device_id = f"{device.kind}:{device.index}"
    known = readings.devices.get((neuron.name, device_id), device)
    measured: dict[str, Any] = {name: getattr(known, name, None) for name in MEASURED}
    memory = tuple(held.get("cpu" if device.kind == "cpu" else device_id, ()))
    return DeviceLine(id=device_id, held=memory, **measured)


def _held_memory(
    replicas: Iterable[ReplicaLine], stages: Iterable[HeldStageLine]
) -> Mapping[str, list[HeldMemory]]:
    held: dict[str, list[HeldMemory]] = defaultdict(list)

    def hold(device: str, model: str, num_bytes: int) -> None:
        held[device].append(HeldMemory(model=model, num_bytes=num_bytes))

    for replica in replicas:
        for device in replica.devices:
            share_bytes = (replica.memory_bytes or 0) // len(replica.devices)
            hold(device, replica.model, replica.device_bytes.get(device, share_bytes))
        if replica.host_memory_bytes:
            hold("cpu", replica.model, replica.host_memory_bytes)
    for stage in stages:
        if stage.memory_bytes:
            hold(stage.device, stage.model, stage.memory_bytes)
    return held


def _models(
    entries: Sequence[CatalogueEntry], neurons: Sequence[NeuronLine]
) -> Iterator[ModelLine]:
    loaded: dict[str, list[ReplicaLine]] = defaultdict(list)
    for neuron in neurons:
        for replica in neuron.replicas:
            loaded[replica.model].append(replica)
    by_name = {entry.name: entry for entry in entries}
    for entry in entries:
        replicas = loaded[entry.base or entry.name]
        if entry.base is not None:
            replicas = [replica for replica in replicas if entry.name in replica.adapters]
        line = _model_line(entry, replicas)
        needed = by_name.get(entry.base or entry.name)
        if replicas or needed is None or needed.upstream_model:
            yield line
        else:
            no_host, not_now = why_no_host(needed, neurons), why_not_now(needed, neurons)
            yield replace(line, no_host=no_host, not_now=not_now)


def _model_line(entry: CatalogueEntry, replicas: list[ReplicaLine]) -> ModelLine:
    statuses = [replica.status for replica in replicas]
    has_outdated = entry.base is None and any(replica.is_outdated for replica in replicas)
    return ModelLine(
        name=entry.name,
        status=UPSTREAM
        if entry.upstream_model is not None
        else min(statuses, key=BEST_FIRST.index, default=NOT_LOADED),
        pinned=entry.pinned,
        replicas=statuses.count("ready"),
        min_replicas=entry.effective_min_replicas,
        max_replicas=entry.max_replicas,
        has_outdated=has_outdated,
        may_reload=has_outdated and not any(replica.lies_on_hosts for replica in replicas),
    )


def job_lines() -> tuple[JobLine, ...]:
    is_active = Q(status__in=ACTIVE_LOAD_JOB_STATUSES)
    has_just_ended = Q(finished_at__gte=timezone.now() - ENDED_JOBS_SHOWN_FOR)
    rows = LoadJob.objects.filter(is_active | has_just_ended).select_related("neuron")
    found = [_job_line(job) for job in rows.order_by("-created_at")]
    ended = [line for line in found if not line.is_active]
    return (*(line for line in found if line.is_active), *ended[:MAX_ENDED_JOBS])


def job_lines_by_id(ids: Collection[str]) -> tuple[JobLine, ...]:
    """Oldest first. Texts that are no ids of jobs are skipped."""
    known = [one for one in ids if re.fullmatch(UUID_PATTERN, one)]
    rows = LoadJob.objects.filter(pk__in=known).select_related("neuron")
    return tuple(map(_job_line, rows.order_by("created_at")))


def _job_line(job: LoadJob) -> JobLine:
    names = ("kind", "status", "stage", "progress_fraction", "eta_s", "note")
    return JobLine(
        id=str(job.pk),
        model=job.model_name,
        neuron=job.neuron.name,
        failure=job.failure_message,
        **{name: getattr(job, name) for name in names},
    )


def _downloads() -> tuple[DownloadLine, ...]:
    pulls = selectors.downloads_active().filter(kind=DownloadKind.PULL)
    return tuple(
        DownloadLine(
            neuron=pull.neuron.name,
            source=f"{pull.source} {pull.file}".strip(),
            status=pull.status,
            progress_fraction=pull.progress_fraction,
            eta_s=pull.eta_s,
        )
        for pull in pulls.order_by("created_at")
    )


def _refusal_lines(counts: Mapping[Refused, int]) -> tuple[RefusalLine, ...]:
    by_code: Counter[str] = Counter()
    for one, number in only_refused(counts).items():
        by_code[one.code] += number
    return tuple(RefusalLine(code=code, requests=num) for code, num in by_code.most_common())


def _audit() -> tuple[AuditLine, ...]:
    rows = AuditEntry.objects.values("at", "actor", "action", "object_id")
    return tuple(AuditLine(**row) for row in rows[:MAX_AUDIT_ENTRIES])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReadings:
    devices: Mapping[tuple[str, str], DeviceInfo] = field(default_factory=dict)
    disks: Mapping[str, CacheReport] = field(default_factory=dict)
    refused: Mapping[Refused, int] = field(default_factory=dict)


def read_live() -> LiveReadings | None:
    client = live.redis_client()
    try:
        snapshot = live.read_snapshot_sync(client)
        return LiveReadings(
            devices={
                (neuron.name, f"{device.kind}:{device.index}"): device
                for neuron in snapshot.neurons
                for device in neuron.devices
            },
            disks=read_cache_reports(client, [neuron.name for neuron in snapshot.neurons]),
            refused=read_counts(client, hours=REFUSAL_HOURS),
        )
    except (SnapshotUnavailableError, redis.RedisError, OSError):
        return None


# Hosts that are offline count: they belong to the fleet. A model with an unknown need could run on
# any host with the required kind of device.
REFUSED = "refused"
ONLINE = "online"


def why_no_host(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """Empty where one can, or where there is no host."""
    allowed = [one for one in _allowed(entry, neurons) if one.status != REFUSED]
    why = why_unmet(Needs(entry), {one.name: _devices(one) for one in allowed})
    return f"it {why}" if neurons and why else ""


def why_not_now(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """Empty where a host accepts a load now, or where none ever could."""
    needs = Needs(entry)
    able = [
        neuron
        for neuron in _allowed(entry, neurons)
        if is_large_enough(needs, neuron.name, _devices(neuron))
    ]
    if any(neuron.status == ONLINE for neuron in able):
        return ""
    return ", ".join(
        f"{neuron.name} is {neuron.status}" for neuron in able if neuron.status != REFUSED
    )


def _allowed(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> list[NeuronLine]:
    return [neuron for neuron in neurons if neuron.name in (entry.pinned_on or (neuron.name,))]


def _devices(neuron: NeuronLine) -> Devices:
    return [
        KnownDevice(
            kind="cuda" if line.id.startswith("cuda:") else "cpu",
            total_memory_bytes=line.total_memory_bytes,
            name=line.name,
        )
        for line in neuron.devices
    ]
