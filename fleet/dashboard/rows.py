"""Data for the board's templates: finished texts, and numbers for its bars."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.overview.lines import ModelLine, NeuronLine, ReplicaLine
from fleet.overview.selector import UPSTREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """A job's progress. ``percent`` is ``None`` while unknown."""

    text: str
    percent: int | None = None
    tone: str = "info"
    job_id: str = ""
    """Empty where the job cannot be cancelled."""


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
    line: ReplicaLine
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

    line: NeuronLine
    memory: str
    load: str
    detail: str
    is_unfolded: bool
    fold: str
    """The query of the address that folds or unfolds it."""
    devices: tuple[DeviceRow, ...]
    replicas: tuple[ReplicaRow, ...]
    num_more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    line: ModelLine
    replicas: str
    progress: ProgressRow | None
    num_more_jobs: int

    @property
    def is_kept_loaded(self) -> bool:
        return self.line.min_replicas > 0

    @property
    def may_load(self) -> bool:
        return self.line.status not in ("ready", UPSTREAM)

    @property
    def may_unload(self) -> bool:
        return self.line.status not in ("unloaded", UPSTREAM) and not self.is_kept_loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingRow:
    """Position in a list. ``words`` is empty where it has one page; ``kept`` has the names shown;
    ``previous`` and ``next`` are queries of addresses, empty at the ends."""

    words: str
    page: int
    kept: str
    previous: str
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRow:
    title: str
    progress: ProgressRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    title: str
    value: str
    detail: str = ""
    url: str = ""
    """The page of the counted rows; empty: none."""
    is_of_money: bool = False
