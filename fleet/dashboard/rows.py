"""Rows of the board's templates, and their filters, which they load as ``dashboard``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from django import template

from fleet import overview_lines as lines
from fleet.dashboard.links import model_url, neuron_url
from fleet.overview import UPSTREAM
from fleet.words import DONE, count_words, left_words, share_text, size_text, total_text
from metering.pages import audited_url

NUM_COLORS = 6
AWAY = "away"
TONES = {
    "ready": "good",
    "online": "good",
    "loading": "info",
    "recovering": "warning",
    "draining": "warning",
    "asleep": "quiet",
    "failed": "bad",
    "away": "bad",
    "refused": "quiet",
    "unloaded": "quiet",
    "urgent": "bad",
    "warning": "warning",
    "notice": "info",
}
Row = dict[str, Any]
Explained = Mapping[tuple[str, str], str]
"""Failures that the replicas' rows state, by model and neuron."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    text: str
    percent: int | None = None
    tone: str = "info"
    job_id: str = ""
    """Empty where the job cannot be cancelled."""


def job_progress(
    job: lines.JobLine, *, with_neuron: bool = False, with_failure: bool = True
) -> ProgressRow:
    """``with_failure``: give the reason, where no other row does."""
    where = f" on {job.neuron}" if with_neuron else ""
    match job.status:
        case "succeeded":
            return ProgressRow(text=f"{DONE[job.kind]}{where}", tone="good")
        case "failed":
            reason = f": {job.failure}" if with_failure and job.failure else ""
            return ProgressRow(text=f"{job.kind} failed{where}{reason}", tone="bad")
        case "cancelled":
            return ProgressRow(text=f"{job.kind} cancelled{where}", tone="quiet")
    stage = job.stage or ("waiting for the neuron" if job.status == "pending" else "under way")
    return under_way(
        f"{job.kind}{where}: {stage}",
        job,
        job_id="" if job.kind in ("unload", "sleep") else job.id,
    )


def under_way(
    words: str, line: lines.JobLine | lines.DownloadLine, job_id: str = ""
) -> ProgressRow:
    fraction = line.progress_fraction
    share = f"{words} {share_text(fraction)}".rstrip()
    return ProgressRow(
        text=share + left_words(line.eta_s),
        percent=None if fraction is None else round(100 * fraction),
        job_id=job_id,
    )


def model_row(
    model: lines.ModelLine, jobs: Sequence[lines.JobLine], explained: Explained | None = None
) -> Row:
    """``jobs`` are this model's, active ones before those that have ended."""
    first, *more = progress_of_model(jobs, explained) or (None,)
    least = f"{model.min_replicas} to " if model.min_replicas != model.max_replicas else ""
    counts = f"{model.replicas} ready, {least}{model.max_replicas} wanted"
    is_kept_loaded = model.min_replicas > 0
    return {
        "line": model,
        "progress": first,
        "num_more_jobs": len(more),
        "replicas": "" if model.status == UPSTREAM else counts,
        "is_kept_loaded": is_kept_loaded,
        "may_load": model.status not in ("ready", UPSTREAM),
        "may_unload": model.status not in ("unloaded", UPSTREAM) and not is_kept_loaded,
    }


def progress_of_model(
    jobs: Sequence[lines.JobLine], explained: Explained | None = None
) -> tuple[ProgressRow, ...]:
    """``jobs``, newest first: on one neuron only the newest counts."""
    explained = explained or {}
    newest = {job.neuron: job for job in reversed(jobs)}
    return tuple(
        job_progress(
            job,
            with_neuron=True,
            with_failure=explained.get((job.model, job.neuron)) != job.failure,
        )
        for job in jobs
        if job.is_active or newest[job.neuron] is job
    )


def neuron_rows(
    overview: lines.FleetOverview,
    neurons: Iterable[lines.NeuronLine],
    is_unfolded: Callable[[lines.NeuronLine], bool] = lambda _: True,
) -> list[Row]:
    """The lines may lack replicas. A folded neuron shows neither devices nor replicas."""
    newest = {(job.model, job.neuron): job for job in reversed(overview.jobs)}
    kept_loaded = {model.name for model in overview.models if model.min_replicas > 0}
    rows = []
    for neuron in neurons:
        is_away, unfolded = neuron.status == AWAY, is_unfolded(neuron)
        row = {
            "line": neuron,
            "memory": "" if is_away else _memory(neuron.devices),
            "load": _load(neuron),
            "detail": "" if is_away else _detail(neuron),
            "is_unfolded": unfolded,
            "devices": [_device_row(one) for one in neuron.devices if unfolded and not is_away],
            "replicas": [
                _replica_row(
                    replica,
                    newest.get((replica.model, neuron.name)),
                    is_away=is_away,
                    is_kept_loaded=replica.model in kept_loaded,
                )
                for replica in neuron.replicas
                if unfolded
            ],
        }
        rows.append(row)
    return rows


def _memory(devices: Sequence[lines.DeviceLine]) -> str:
    cards = [device for device in devices if not device.id.startswith("cpu")] or devices
    if not cards:
        return ""
    total_bytes = sum(device.total_memory_bytes for device in cards)
    used_bytes = total_bytes - sum(device.free_memory_bytes for device in cards)
    return f"{size_text(used_bytes)} of {size_text(total_bytes)}"


def _load(neuron: lines.NeuronLine) -> str:
    num = len(neuron.replicas)
    words = f"{num:,} replica{'s' if num != 1 else ''}" if num else "nothing loaded"
    if not num and any(device.held for device in neuron.devices):
        words = "stages of other hosts' models"
    running = sum(replica.in_flight for replica in neuron.replicas)
    if neuron.status == AWAY or not running:
        return words
    return f"{words}, {running:,} running"


def _detail(neuron: lines.NeuronLine) -> str:
    detail = [f"helexa {neuron.version}"] if neuron.version else []
    if neuron.disk_free_bytes is not None:
        detail.append(f"{size_text(neuron.disk_free_bytes)} of disk free")
    return ", ".join(detail)


def _device_row(device: lines.DeviceLine) -> Row:
    used_bytes = device.total_memory_bytes - device.free_memory_bytes
    parts = [
        # The color depends on the name alone: it stays when other models come and go.
        (held.model, held.num_bytes, str(crc32(held.model.encode()) % NUM_COLORS))
        for held in device.held
    ]
    parts.append(("other", used_bytes - sum(held.num_bytes for held in device.held), "other"))
    percent = 100 / max(1, device.total_memory_bytes)
    readings = (
        (device.utilization_percent, "% busy"),
        (device.temperature_c, "°C"),
        (device.power_w, "W"),
    )
    total = total_text(device.total_memory_bytes, device.installed_memory_bytes)
    return {
        "id": device.id,
        "name": device.name,
        "memory": f"{size_text(used_bytes)} of {total}",
        "segments": [
            {
                "label": f"{name} {size_text(num_bytes)}",
                "percent": f"{min(100.0, percent * num_bytes):.1f}",
                "color": color,
            }
            for name, num_bytes, color in parts
            if num_bytes > 0
        ],
        "readings": ", ".join(
            f"{value:.0f} {unit}" for value, unit in readings if value is not None
        ),
    }


def _replica_row(
    replica: lines.ReplicaLine, job: lines.JobLine | None, *, is_away: bool, is_kept_loaded: bool
) -> Row:
    """``is_kept_loaded``: the control would reload it at once, so unload and sleep are refused."""
    total = 0 if is_away else replica.kv_blocks_total
    return {
        "line": replica,
        "running": "" if is_away else f"{replica.in_flight:,}",
        "waiting": "" if is_away else f"{replica.queue_depth:,}",
        "kv_percent": round(100 * replica.kv_blocks_used / total) if total else None,
        "tokens_per_s": "" if is_away else f"{replica.decode_tokens_per_s:.1f}",
        "is_kept_loaded": is_kept_loaded,
        "may_sleep": replica.may_sleep and not is_kept_loaded,
        "progress": job and job_progress(job, with_failure=job.failure != replica.failure),
    }


register = template.Library()
register.filter("model_url", model_url)
register.filter("neuron_url", neuron_url)
register.filter("size", size_text)
register.filter("count", count_words)


@register.filter("tone")
def tone_of(status: str) -> str:
    return TONES.get(status, "quiet")


@register.filter("audited_url")
def url_of_line(line: lines.AuditLine) -> str:
    return audited_url(line.action, line.object_id)
