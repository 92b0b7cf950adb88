"""The board's neurons: a line each, with devices and replicas when unfolded. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from zlib import crc32

from fleet.dashboard.query import BoardQuery
from fleet.dashboard.rows import DeviceRow, NeuronRow, ReplicaRow, SegmentRow
from fleet.dashboard.words import job_progress
from fleet.management.sizes import size_text, total_text
from fleet.overview.lines import DeviceLine, FleetOverview, JobLine, NeuronLine, ReplicaLine

NUM_COLORS = 6
NUM_UNFOLDED = 3
"""Fleets of at most this many have their neurons unfolded."""
MAX_REPLICAS = 20
AWAY = "away"
ORDER = ("online", "draining", "refused", AWAY)


def rank_of(neuron: NeuronLine) -> int:
    """Problems first, then healthy neurons, then offline ones, which are one finding."""
    if neuron.status == AWAY:
        return 5
    if neuron.problems or any(replica.status == "failed" for replica in neuron.replicas):
        return 0
    if neuron.status != "online":
        return 2 + ORDER.index(neuron.status)
    return 1 if neuron.replicas else 2


def neuron_rows(
    overview: FleetOverview,
    neurons: Iterable[NeuronLine],
    *,
    query: BoardQuery,
    num_neurons: int,
) -> tuple[NeuronRow, ...]:
    """``neurons`` are those to show, by lines that may lack some replicas; ``num_neurons`` are in
    the whole fleet."""
    jobs: dict[tuple[str, str], list[JobLine]] = defaultdict(list)
    for job in overview.jobs:
        jobs[job.model, job.neuron].append(job)
    kept_loaded = {model.name for model in overview.models if model.min_replicas > 0}
    rows = []
    for neuron in neurons:
        is_usual = num_neurons <= NUM_UNFOLDED and neuron.status != AWAY
        is_unfolded = is_usual != (neuron.name in query.flipped)
        shown = neuron.replicas[:MAX_REPLICAS] if is_unfolded else ()
        replicas = tuple(
            _replica_row(
                replica,
                jobs.get((replica.model, neuron.name), ()),
                is_away=neuron.status == AWAY,
                is_kept_loaded=replica.model in kept_loaded,
            )
            for replica in shown
        )
        fold = replace(query, flipped=query.flipped ^ {neuron.name}).url_query() or "?"
        rows.append(_neuron_row(neuron, replicas, is_unfolded=is_unfolded, fold=fold))
    return tuple(rows)


def _neuron_row(
    neuron: NeuronLine, replicas: tuple[ReplicaRow, ...], *, is_unfolded: bool, fold: str
) -> NeuronRow:
    is_away = neuron.status == AWAY
    devices = () if is_away or not is_unfolded else tuple(map(_device_row, neuron.devices))
    return NeuronRow(
        line=neuron,
        memory="" if is_away else _memory(neuron.devices),
        load=_load(neuron),
        detail="" if is_away else _detail(neuron),
        is_unfolded=is_unfolded,
        fold=fold,
        devices=devices,
        replicas=replicas,
        num_more=len(neuron.replicas) - len(replicas) if is_unfolded else 0,
    )


def _memory(devices: Sequence[DeviceLine]) -> str:
    cards = [device for device in devices if not device.id.startswith("cpu")] or devices
    if not cards:
        return ""
    total_bytes = sum(device.total_memory_bytes for device in cards)
    used_bytes = total_bytes - sum(device.free_memory_bytes for device in cards)
    return f"{size_text(used_bytes)} of {size_text(total_bytes)}"


def _load(neuron: NeuronLine) -> str:
    num = len(neuron.replicas)
    words = f"{num:,} replica{'s' if num != 1 else ''}" if num else "nothing loaded"
    if not num and any(device.held for device in neuron.devices):
        words = "stages of other hosts' models"
    running = sum(replica.in_flight for replica in neuron.replicas)
    if neuron.status == AWAY or not running:
        return words
    return f"{words}, {running:,} running"


def _detail(neuron: NeuronLine) -> str:
    detail = [f"helexa {neuron.version}"] if neuron.version else []
    if neuron.disk_free_bytes is not None:
        detail.append(f"{size_text(neuron.disk_free_bytes)} of disk free")
    return ", ".join(detail)


def color_of(model: str) -> str:
    """Derived from the name alone: it stays when other models come and go."""
    return str(crc32(model.encode()) % NUM_COLORS)


def _device_row(device: DeviceLine) -> DeviceRow:
    total_bytes = max(1, device.total_memory_bytes)
    used_bytes = device.total_memory_bytes - device.free_memory_bytes
    segments = [
        SegmentRow(
            label=f"{held.model} {size_text(held.num_bytes)}",
            percent=f"{min(100.0, 100 * held.num_bytes / total_bytes):.1f}",
            color=color_of(held.model),
        )
        for held in device.held
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


def _replica_row(
    replica: ReplicaLine,
    jobs: Sequence[JobLine],
    *,
    is_away: bool,
    is_kept_loaded: bool,
) -> ReplicaRow:
    total = 0 if is_away else replica.kv_blocks_total
    return ReplicaRow(
        line=replica,
        running="" if is_away else f"{replica.in_flight:,}",
        waiting="" if is_away else f"{replica.queue_depth:,}",
        kv_percent=round(100 * replica.kv_blocks_used / total) if total else None,
        tokens_per_s="" if is_away else f"{replica.decode_tokens_per_s:.1f}",
        is_kept_loaded=is_kept_loaded,
        progress=job_progress(jobs[0], with_failure=jobs[0].failure != replica.failure)
        if jobs
        else None,
    )
