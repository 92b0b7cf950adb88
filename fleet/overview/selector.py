"""Reads the overview: each table in one query, and live state from Redis."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import redis
from django.utils import timezone

from fleet import selectors
from fleet.catalogue import CatalogueEntry
from fleet.errors import SnapshotUnavailableError
from fleet.lifecycles import DownloadKind
from fleet.live import reading as live
from fleet.live.cached_models import read_cache_reports
from fleet.live.desired_state import KnownDevice
from fleet.live.refusals import only_refused, read_counts
from fleet.live.snapshot import FleetSnapshot
from fleet.models import Device, Neuron, Replica
from fleet.overview.attention import attention
from fleet.overview.jobs import job_lines
from fleet.overview.lines import (
    AuditLine,
    DeviceLine,
    DownloadLine,
    FleetOverview,
    HeldMemory,
    HeldStageLine,
    ModelLine,
    NeuronLine,
    RefusalLine,
    ReplicaLine,
)
from fleet.placement.devices.needs import Needs
from fleet.placement.returning import Devices, is_large_enough, why_unmet
from fleet.services.hosts.neurons import models_to_restore
from inference.protocol.downloads import CacheReport
from inference.protocol.refusals import Refused
from inference.version import VERSION
from metering import selectors as metering_selectors
from metering.models import AuditEntry
from metering.selectors import UsageFilter, UsagePeriod

BEST_FIRST = ("ready", "recovering", "loading", "asleep", "draining", "failed", "away")
NOT_LOADED = "unloaded"
UPSTREAM = "upstream"
"""The status of a model that an upstream serves: nothing of it is loaded."""
MAX_AUDIT_ENTRIES = 8
REFUSAL_HOURS = 2
AS_STORED = (
    *("id", "status", "memory_bytes", "host_memory_bytes", "in_flight", "queue_depth"),
    *("kv_blocks_used", "kv_blocks_total", "decode_tokens_per_s"),
)
"""The columns of a replica that its line has under the same names."""


def fleet_overview() -> FleetOverview:
    now = timezone.now()
    live = read_live()
    readings = live or NO_READINGS
    entries = selectors.catalogue_list()
    neurons = _neurons(readings, {entry.name: entry.spec_digest() for entry in entries})
    models = _models(entries, neurons)
    budgets = metering_selectors.budgets_nearly_spent(now_unix_s=time.time())
    today = now.date()
    used = metering_selectors.usage_total(
        period=UsagePeriod(first=today, last=today), where=UsageFilter()
    )
    is_live = live is not None
    return FleetOverview(
        is_live=is_live,
        attention=attention(
            neurons,
            models,
            budgets,
            is_live=is_live,
            version=VERSION,
            refused=readings.refused,
        ),
        neurons=neurons,
        models=models,
        jobs=job_lines(),
        downloads=_downloads(),
        minutes=metering_selectors.traffic(now=now),
        refusals=_refusal_lines(only_refused(readings.refused)),
        requests_today=used.requests,
        spent_today_micro_usd=used.cost_micro_usd,
        audit=_audit(),
    )


def _neurons(readings: LiveReadings, digests: Mapping[str, str]) -> tuple[NeuronLine, ...]:
    replicas = _replicas_by_neuron(digests)
    devices: dict[int, list[Device]] = defaultdict(list)
    for device in Device.objects.order_by("kind", "index"):
        devices[device.neuron_id].append(device)
    coming_back = models_to_restore()
    return tuple(
        _neuron_line(
            neuron,
            devices[neuron.pk],
            tuple(replicas[neuron.pk]),
            readings,
            coming_back.get(neuron.name, ()),
        )
        for neuron in Neuron.objects.all()
    )


def _replicas_by_neuron(digests: Mapping[str, str]) -> dict[int, list[ReplicaLine]]:
    """The replicas, without their load reports, which are long."""
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
            adapters=tuple(row["adapters"]),
            failure=row["failure_message"],
        )
        found[row["neuron_id"]].append(line)
    return found


def _neuron_line(
    neuron: Neuron,
    devices: Iterable[Device],
    replicas: tuple[ReplicaLine, ...],
    readings: LiveReadings,
    coming_back: tuple[str, ...],
) -> NeuronLine:
    held = _held_memory(replicas)
    stages = tuple(HeldStageLine(**stage) for stage in neuron.held_stages)
    for stage in stages:
        if stage.memory_bytes:
            memory = HeldMemory(model=stage.model, num_bytes=stage.memory_bytes)
            held.setdefault(stage.device, []).append(memory)
    disk = readings.disks.get(neuron.name)
    return NeuronLine(
        name=neuron.name,
        status=neuron.status,
        version=neuron.version,
        problems=tuple(neuron.problems),
        devices=tuple(_device_line(neuron, device, held, readings) for device in devices),
        replicas=replicas,
        held_stages=stages,
        coming_back=coming_back,
        disk_total_bytes=disk.disk_total_bytes if disk else None,
        disk_free_bytes=disk.disk_free_bytes if disk else None,
    )


def _device_line(
    neuron: Neuron,
    device: Device,
    held: Mapping[str, list[HeldMemory]],
    readings: LiveReadings,
) -> DeviceLine:
    name = "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
    device_id = f"{device.kind}:{device.index}"
    line = readings.devices.get((neuron.name, device_id)) or DeviceLine(
        id=device_id,
        name=device.name,
        total_memory_bytes=device.total_memory_bytes,
        free_memory_bytes=device.free_memory_bytes,
        installed_memory_bytes=device.installed_memory_bytes,
    )
    return replace(line, held=tuple(held.get(name, ())))


def _held_memory(replicas: Iterable[ReplicaLine]) -> dict[str, list[HeldMemory]]:
    held: dict[str, list[HeldMemory]] = defaultdict(list)
    for replica in replicas:
        for device in replica.devices:
            share_bytes = (replica.memory_bytes or 0) // len(replica.devices)
            num_bytes = replica.device_bytes.get(device, share_bytes)
            held[device].append(HeldMemory(model=replica.model, num_bytes=num_bytes))
        if replica.host_memory_bytes:
            away = HeldMemory(model=replica.model, num_bytes=replica.host_memory_bytes)
            held["cpu"].append(away)
    return held


def _models(
    entries: Sequence[CatalogueEntry], neurons: Sequence[NeuronLine]
) -> tuple[ModelLine, ...]:
    loaded: dict[str, list[ReplicaLine]] = defaultdict(list)
    for neuron in neurons:
        for replica in neuron.replicas:
            loaded[replica.model].append(replica)
    loadable = [entry for entry in entries if entry.base is None and not entry.upstream_model]
    no_host = {entry.name: why_no_host(entry, neurons) for entry in loadable}
    not_now = {entry.name: why_not_now(entry, neurons) for entry in loadable}
    return tuple(
        _model_line(
            entry,
            _replicas_of(entry, loaded),
            no_host=no_host.get(entry.base or entry.name, ""),
            not_now=not_now.get(entry.base or entry.name, ""),
        )
        for entry in entries
    )


def _replicas_of(
    entry: CatalogueEntry, loaded: Mapping[str, list[ReplicaLine]]
) -> list[ReplicaLine]:
    if entry.base is None:
        return loaded[entry.name]
    return [replica for replica in loaded[entry.base] if entry.name in replica.adapters]


def _model_line(
    entry: CatalogueEntry, replicas: list[ReplicaLine], *, no_host: str, not_now: str
) -> ModelLine:
    statuses = [replica.status for replica in replicas]
    has_outdated = entry.base is None and any(replica.is_outdated for replica in replicas)
    return ModelLine(
        name=entry.name,
        status=_status(entry, statuses),
        pinned=entry.pinned,
        replicas=statuses.count("ready"),
        min_replicas=entry.effective_min_replicas,
        max_replicas=entry.max_replicas,
        has_outdated=has_outdated,
        may_reload=has_outdated and not any(replica.lies_on_hosts for replica in replicas),
        no_host="" if replicas else no_host,
        not_now="" if replicas else not_now,
    )


def _status(entry: CatalogueEntry, statuses: Sequence[str]) -> str:
    if entry.upstream_model is not None:
        return UPSTREAM
    return min(statuses, key=BEST_FIRST.index) if statuses else NOT_LOADED


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


def _refusal_lines(refused: Mapping[Refused, int]) -> tuple[RefusalLine, ...]:
    by_code: Counter[str] = Counter()
    for one, number in refused.items():
        by_code[one.code] += number
    return tuple(RefusalLine(code=code, requests=num) for code, num in by_code.most_common())


def _audit() -> tuple[AuditLine, ...]:
    return tuple(
        AuditLine(at=entry.at, actor=entry.actor, action=entry.action, object_id=entry.object_id)
        for entry in AuditEntry.objects.defer("detail")[:MAX_AUDIT_ENTRIES]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReadings:
    devices: Mapping[tuple[str, str], DeviceLine] = field(default_factory=dict)
    disks: Mapping[str, CacheReport] = field(default_factory=dict)
    refused: Mapping[Refused, int] = field(default_factory=dict)
    """Refused requests by caller and reason, in this hour and the last."""


NO_READINGS = LiveReadings()


def read_live() -> LiveReadings | None:
    client = live.redis_client()
    try:
        snapshot = live.read_snapshot_sync(client)
        reports = read_cache_reports(client, [neuron.name for neuron in snapshot.neurons])
        refused = read_counts(client, hours=REFUSAL_HOURS)
    except (SnapshotUnavailableError, redis.RedisError, OSError):
        return None
    return LiveReadings(
        devices=_device_lines(snapshot),
        disks=reports,
        refused=refused,
    )


def _device_lines(snapshot: FleetSnapshot) -> dict[tuple[str, str], DeviceLine]:
    return {
        (neuron.name, f"{device.kind}:{device.index}"): DeviceLine(
            id=f"{device.kind}:{device.index}",
            name=device.name,
            total_memory_bytes=device.total_memory_bytes,
            free_memory_bytes=device.free_memory_bytes,
            installed_memory_bytes=device.installed_memory_bytes,
            utilization_percent=device.utilization_percent,
            temperature_c=device.temperature_c,
            power_w=device.power_w,
        )
        for neuron in snapshot.neurons
        for device in neuron.devices
    }


# Hosts that are offline count: they belong to the fleet. A model with an unknown need could run on
# any host with the required kind of device.
REFUSED = "refused"
ONLINE = "online"


def why_no_host(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """The reason why no host can run the model, in words; empty where one can, or where there is no
    host."""
    allowed = [one for one in _allowed(entry, neurons) if one.status != REFUSED]
    why = why_unmet(Needs(entry), {one.name: _devices(one) for one in allowed})
    return f"it {why}" if neurons and why else ""


def why_not_now(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """The hosts that could run the model, where none of them accepts a load now; empty where one
    does, or where no host ever could."""
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
