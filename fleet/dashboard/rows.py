"""What the board's template prints: text that is ready, and numbers for its bars.

Templates only loop over these: a fleet of a thousand replicas is shown every two seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding. ``about`` is as in ``Attention``; ``url`` is the page with details, and ``page``
    its name; empty: there is none."""

    level: str
    tone: str
    kind: str
    about: str
    text: str
    url: str
    page: str


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
    id: int
    url: str
    model: str
    status: str
    tone: str
    devices: str
    running: int
    waiting: int
    kv_percent: int | None
    tokens_per_s: str
    remark: str
    is_outdated: bool
    progress: ProgressRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronRow:
    name: str
    status: str
    tone: str
    detail: str
    devices: tuple[DeviceRow, ...]
    replicas: tuple[ReplicaRow, ...]
    may_drain: bool
    may_resume: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedRow:
    """A model that serves by earlier settings."""

    name: str
    progress: tuple[ProgressRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    name: str
    status: str
    tone: str
    replicas: str
    is_loaded: bool
    is_outdated: bool
    progress: tuple[ProgressRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRow:
    title: str
    progress: ProgressRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    title: str
    value: str
    detail: str = ""
    is_of_money: bool = False
