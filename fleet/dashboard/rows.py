"""Rows of the board's templates: an overview's lines with finished texts, and numbers for bars.
Pure, but for the addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from zlib import crc32

from fleet.dashboard.query import BoardQuery
from fleet.dashboard.words import DONE, left_words
from fleet.management.sizes import share_text, size_text, total_text
from fleet.overview import lines
from fleet.overview.selector import UPSTREAM

NUM_COLORS = 6
NUM_UNFOLDED = 3
"""Fleets of at most this many have their neurons unfolded."""
MAX_REPLICAS = 20
AWAY = "away"
Explained = Mapping[tuple[str, str], str]
"""The failures that the replicas' rows state, by model and neuron."""
NOTHING_EXPLAINED: Explained = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """A job's progress. ``percent`` is ``None`` while unknown."""

    text: str
    percent: int | None = None
    tone: str = "info"
    job_id: str = ""
    """Empty where the job cannot be cancelled."""


def job_progress(
    job: lines.JobLine, *, with_neuron: bool = False, with_failure: bool = True
) -> ProgressRow:
    """``with_neuron``: name the neuron, where the surrounding row does not. ``with_failure``: give
    the reason of a failure, where no other row does."""
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
    return _under_way(
        f"{job.kind}{where}: {stage}",
        job,
        job_id="" if job.kind in ("unload", "sleep") else job.id,
    )


def download_progress(download: lines.DownloadLine) -> ProgressRow:
    return _under_way(download.status, download)


def _under_way(
    words: str, line: lines.JobLine | lines.DownloadLine, job_id: str = ""
) -> ProgressRow:
    fraction = line.progress_fraction
    share = f"{words} {share_text(fraction)}".rstrip()
    return ProgressRow(
        text=share + left_words(line.eta_s),
        percent=None if fraction is None else round(100 * fraction),
        job_id=job_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    line: lines.ModelLine
    progress: ProgressRow | None
    num_more_jobs: int

    @property
    def replicas(self) -> str:
        line = self.line
        least = f"{line.min_replicas} to " if line.min_replicas != line.max_replicas else ""
        counts = f"{line.replicas} ready, {least}{line.max_replicas} wanted"
        return "" if line.status == UPSTREAM else counts

    @property
    def is_kept_loaded(self) -> bool:
        return self.line.min_replicas > 0

    @property
    def may_load(self) -> bool:
        return self.line.status not in ("ready", UPSTREAM)

    @property
    def may_unload(self) -> bool:
        return self.line.status not in ("unloaded", UPSTREAM) and not self.is_kept_loaded


def model_row(
    model: lines.ModelLine,
    jobs: Sequence[lines.JobLine],
    explained: Explained = NOTHING_EXPLAINED,
) -> ModelRow:
    """``jobs`` are this model's, active ones before those that have ended."""
    first, *more = progress_of_model(jobs, explained) or (None,)
    return ModelRow(line=model, progress=first, num_more_jobs=len(more))


def progress_of_model(
    jobs: Sequence[lines.JobLine], explained: Explained = NOTHING_EXPLAINED
) -> tuple[ProgressRow, ...]:
    """``jobs``, newest first: on one neuron only the newest counts."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """One piece of a device's memory bar. ``color`` is one of a few numbers, or ``other``."""

    label: str
    percent: str
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    id: str
    name: str
    memory: str
    segments: tuple[SegmentRow, ...]
    readings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    line: lines.ReplicaLine
    running: str
    """Empty, like the other figures, where its neuron is offline."""
    waiting: str
    kv_percent: int | None
    tokens_per_s: str
    is_kept_loaded: bool
    """The control would load or wake it again at once, so unload and sleep are refused."""
    progress: ProgressRow | None

    @property
    def may_sleep(self) -> bool:
        return self.line.status == "ready" and not (self.is_kept_loaded or self.line.lies_on_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronRow:
    """``devices`` and ``replicas`` are empty while it is folded; otherwise ``num_more`` replicas
    are hidden."""

    line: lines.NeuronLine
    memory: str
    load: str
    detail: str
    is_unfolded: bool
    fold: str
    """The query of the address that folds or unfolds it."""
    devices: tuple[DeviceRow, ...]
    replicas: tuple[ReplicaRow, ...]
    num_more: int


def neuron_rows(
    overview: lines.FleetOverview,
    neurons: Iterable[lines.NeuronLine],
    *,
    query: BoardQuery,
    num_neurons: int,
) -> tuple[NeuronRow, ...]:
    """``neurons`` are those to show, by lines that may lack some replicas; ``num_neurons`` are in
    the whole fleet."""
    jobs: dict[tuple[str, str], list[lines.JobLine]] = defaultdict(list)
    for job in overview.jobs:
        jobs[job.model, job.neuron].append(job)
    kept_loaded = {model.name for model in overview.models if model.min_replicas > 0}
    rows = []
    for neuron in neurons:
        is_away = neuron.status == AWAY
        is_usual = num_neurons <= NUM_UNFOLDED and not is_away
        is_unfolded = is_usual != (neuron.name in query.flipped)
        shown = neuron.replicas[:MAX_REPLICAS] if is_unfolded else ()
        row = NeuronRow(
            line=neuron,
            memory="" if is_away else _memory(neuron.devices),
            load=_load(neuron),
            detail="" if is_away else _detail(neuron),
            is_unfolded=is_unfolded,
            fold=replace(query, flipped=query.flipped ^ {neuron.name}).url_query() or "?",
            devices=tuple(map(_device_row, neuron.devices if is_unfolded and not is_away else ())),
            replicas=tuple(
                _replica_row(
                    replica,
                    jobs[replica.model, neuron.name],
                    is_away=is_away,
                    is_kept_loaded=replica.model in kept_loaded,
                )
                for replica in shown
            ),
            num_more=len(neuron.replicas) - len(shown) if is_unfolded else 0,
        )
        rows.append(row)
    return tuple(rows)


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


def _device_row(device: lines.DeviceLine) -> DeviceRow:
    used_bytes = device.total_memory_bytes - device.free_memory_bytes
    parts = [
        # The color depends on the name alone: it stays when other models come and go.
        (held.model, held.num_bytes, str(crc32(held.model.encode()) % NUM_COLORS))
        for held in device.held
    ]
    parts.append(("other", used_bytes - sum(held.num_bytes for held in device.held), "other"))
    segments = (
        SegmentRow(
            label=f"{name} {size_text(num_bytes)}",
            percent=f"{min(100.0, 100 * num_bytes / max(1, device.total_memory_bytes)):.1f}",
            color=color,
        )
        for name, num_bytes, color in parts
        if num_bytes > 0
    )
    total = total_text(device.total_memory_bytes, device.installed_memory_bytes)
    readings = (
        (device.utilization_percent, "% busy"),
        (device.temperature_c, "°C"),
        (device.power_w, "W"),
    )
    return DeviceRow(
        id=device.id,
        name=device.name,
        memory=f"{size_text(used_bytes)} of {total}",
        segments=tuple(segments),
        readings=", ".join(f"{value:.0f} {unit}" for value, unit in readings if value is not None),
    )


def _replica_row(
    replica: lines.ReplicaLine,
    jobs: Sequence[lines.JobLine],
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
