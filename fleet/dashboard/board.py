"""From an overview to the rows of the board. Pure, but for the addresses of the admin's pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.urls import reverse

from fleet.dashboard.finding_links import finding_rows
from fleet.dashboard.rows import (
    DeviceRow,
    DownloadRow,
    FindingRow,
    ModelRow,
    NeuronRow,
    OutdatedRow,
    ProgressRow,
    ReplicaRow,
    SegmentRow,
    Tile,
)
from fleet.dashboard.words import count_words, duration_words, job_progress, tone_of
from fleet.management.sizes import size_text, total_text
from fleet.overview import (
    DeviceLine,
    DownloadLine,
    FleetOverview,
    JobLine,
    ModelLine,
    NeuronLine,
    OutdatedLine,
    ReplicaLine,
)
from fleet.overview.lines import AuditLine, RefusalLine
from metering.money import cost_text

NUM_COLORS = 6
MAX_JOBS = 3
"""The most jobs that a model's row shows."""
REPLICA_ID = 1234567890
"""Stands in the pattern of a replica's address; reversing a thousand takes too long."""

Jobs = dict[tuple[str, str], list[JobLine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    attention: tuple[FindingRow, ...]
    tiles: tuple[Tile, ...]
    models: tuple[ModelRow, ...]
    neurons: tuple[NeuronRow, ...]
    downloads: tuple[DownloadRow, ...]
    refusals: tuple[RefusalLine, ...]
    audit: tuple[AuditLine, ...]
    chart: dict[str, list[str] | list[int]]
    steps: tuple[str, ...]
    """What an operator whose fleet is empty does next, by its name; empty: nothing is missing."""


def board_of(overview: FleetOverview) -> Board:
    jobs: Jobs = defaultdict(list)
    jobs_of_model: dict[str, list[JobLine]] = defaultdict(list)
    for job in overview.jobs:
        jobs[job.model, job.neuron].append(job)
        jobs_of_model[job.model].append(job)
    return Board(
        attention=finding_rows(overview.attention),
        tiles=_tiles(overview),
        models=tuple(
            _model_row(model, jobs_of_model.get(model.name, [])) for model in overview.models
        ),
        neurons=_neuron_rows(overview.neurons, jobs),
        downloads=tuple(map(_download_row, overview.downloads)),
        refusals=overview.refusals,
        audit=overview.audit,
        chart={
            "labels": [f"{minute.at:%H:%M}" for minute in overview.minutes],
            "requests": [minute.requests for minute in overview.minutes],
            "tokens": [minute.tokens for minute in overview.minutes],
        },
        steps=_steps(overview),
    )


def _steps(overview: FleetOverview) -> tuple[str, ...]:
    steps = []
    if not overview.neurons:
        steps.append("neuron")
    if not overview.models:
        steps.append("model")
    elif not any(model.replicas for model in overview.models) and not overview.jobs:
        steps.append("load")
    if steps or not overview.requests_today:
        steps.append("key")
    return tuple(steps) if steps != ["key"] else ()


def _tiles(overview: FleetOverview) -> tuple[Tile, ...]:
    replicas = [replica for neuron in overview.neurons for replica in neuron.replicas]
    last = overview.minutes[-2] if len(overview.minutes) > 1 else None
    running = sum(replica.in_flight for replica in replicas)
    waiting = sum(replica.queue_depth for replica in replicas)
    speed = sum(replica.decode_tokens_per_s for replica in replicas if replica.in_flight)
    refused = sum(line.requests for line in overview.refusals)
    return (
        Tile(
            title="Requests a minute",
            value=count_words(last.requests if last else 0),
            detail=f"{count_words(overview.requests_today)} today",
        ),
        Tile(title="Tokens a minute", value=count_words(last.tokens if last else 0)),
        Tile(
            title="In flight",
            value=f"{running:,}",
            detail=f"{waiting:,} waiting, {speed:.0f} tok/s",
        ),
        Tile(title="Refused", value=count_words(refused), detail="in this hour and the last"),
        Tile(
            title="Spent today",
            value=cost_text(overview.spent_today_micro_usd),
            detail="since midnight UTC",
            is_of_money=True,
        ),
    )


def _model_row(model: ModelLine, jobs: list[JobLine]) -> ModelRow:
    """``jobs`` are this model's; the newest few are shown."""
    least = f"{model.min_replicas} to " if model.min_replicas != model.max_replicas else ""
    return ModelRow(
        name=model.name,
        status=model.status,
        tone=tone_of(model.status),
        replicas=f"{model.replicas} ready, {least}{model.max_replicas} wanted",
        is_loaded=model.status != "unloaded",
        is_outdated=model.has_outdated,
        progress=_progress_of_model(jobs),
    )


def outdated_rows(lines: Iterable[OutdatedLine]) -> tuple[OutdatedRow, ...]:
    return tuple(
        OutdatedRow(name=line.model, progress=_progress_of_model(line.jobs)) for line in lines
    )


def _progress_of_model(jobs: Sequence[JobLine]) -> tuple[ProgressRow, ...]:
    return tuple(job_progress(job, with_neuron=True) for job in jobs[:MAX_JOBS])


def _neuron_rows(neurons: tuple[NeuronLine, ...], jobs: Jobs) -> tuple[NeuronRow, ...]:
    pattern = reverse("admin:fleet_replica_change", args=(REPLICA_ID,))
    before, after = pattern.split(str(REPLICA_ID))
    return tuple(_neuron_row(neuron, jobs, before, after) for neuron in neurons)


def _neuron_row(neuron: NeuronLine, jobs: Jobs, before: str, after: str) -> NeuronRow:
    detail = [f"helexa {neuron.version}"] if neuron.version else []
    if neuron.disk_free_bytes is not None:
        detail.append(f"{size_text(neuron.disk_free_bytes)} of disk free")
    return NeuronRow(
        name=neuron.name,
        status=neuron.status,
        tone=tone_of(neuron.status),
        detail=", ".join(detail),
        devices=tuple(map(_device_row, neuron.devices)),
        replicas=tuple(
            _replica_row(replica, f"{before}{replica.id}{after}", jobs.get(key, ()))
            for replica in neuron.replicas
            for key in ((replica.model, neuron.name),)
        ),
        may_drain=neuron.status == "online",
        may_resume=neuron.status == "draining",
    )


def _device_row(device: DeviceLine) -> DeviceRow:
    total_bytes = max(1, device.total_memory_bytes)
    used_bytes = device.total_memory_bytes - device.free_memory_bytes
    segments = [
        SegmentRow(
            label=f"{held.model} {size_text(held.num_bytes)}",
            percent=f"{min(100.0, 100 * held.num_bytes / total_bytes):.1f}",
            color=str(number % NUM_COLORS),
        )
        for number, held in enumerate(device.held)
        if held.num_bytes
    ]
    other_bytes = used_bytes - sum(held.num_bytes for held in device.held)
    if other_bytes > 0:
        percent = f"{100 * other_bytes / total_bytes:.1f}"
        label = f"other {size_text(other_bytes)}"
        segments.append(SegmentRow(label=label, percent=percent, color="other"))
    return DeviceRow(
        id=device.id,
        name=device.name,
        memory=f"{size_text(used_bytes)} of "
        f"{total_text(device.total_memory_bytes, device.installed_memory_bytes)}",
        segments=tuple(segments),
        readings=_readings(device),
    )


def _readings(device: DeviceLine) -> str:
    readings = []
    if device.utilization_percent is not None:
        readings.append(f"{device.utilization_percent} % busy")
    if device.temperature_c is not None:
        readings.append(f"{device.temperature_c} °C")
    if device.power_w is not None:
        readings.append(f"{device.power_w:.0f} W")
    return ", ".join(readings)


def _replica_row(replica: ReplicaLine, url: str, jobs: Sequence[JobLine]) -> ReplicaRow:
    total = replica.kv_blocks_total
    return ReplicaRow(
        id=replica.id,
        url=url,
        model=replica.model,
        status=replica.status,
        tone=tone_of(replica.status),
        devices=", ".join(replica.devices),
        running=replica.in_flight,
        waiting=replica.queue_depth,
        kv_percent=round(100 * replica.kv_blocks_used / total) if total else None,
        tokens_per_s=f"{replica.decode_tokens_per_s:.1f}",
        remark=replica.failure,
        is_outdated=replica.is_outdated,
        progress=job_progress(jobs[0]) if jobs else None,
    )


def _download_row(download: DownloadLine) -> DownloadRow:
    fraction = download.progress_fraction
    left = "" if download.eta_s is None else f", about {duration_words(download.eta_s)} left"
    share = "" if fraction is None else f" {fraction:.0%}"
    progress = ProgressRow(
        text=f"{download.status}{share}{left}",
        percent=None if fraction is None else round(100 * fraction),
    )
    return DownloadRow(title=f"{download.source} on {download.neuron}", progress=progress)
