"""The parts of an overview: plain data, ready to be shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from metering.series_store import MinuteSums


class Level(StrEnum):
    """How urgent a finding is, in the order of display."""

    URGENT = "urgent"
    """Clients are not served, or soon will not be."""
    WARNING = "warning"
    NOTICE = "notice"
    """No fault: something to do, or information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``kind`` is the sort of finding, ``about`` its object: a neuron, a model, an account, a key,
    or empty."""

    level: Level
    kind: str
    text: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """A replica's memory on a device. Ranks have equal parts on each."""

    model: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    id: str
    name: str
    total_memory_bytes: int
    """The memory limit of its neuron."""
    free_memory_bytes: int
    installed_memory_bytes: int | None = None
    """The physical memory, where an operator's limit is less."""
    held: tuple[HeldMemory, ...] = ()
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLine:
    id: int
    model: str
    status: str
    is_outdated: bool
    devices: tuple[str, ...]
    memory_bytes: int | None
    in_flight: int
    queue_depth: int
    kv_blocks_used: int
    kv_blocks_total: int
    decode_tokens_per_s: float
    failure: str = ""
    host_memory_bytes: int = 0
    """Used by the weights of a sleeping replica."""
    adapters: tuple[str, ...] = ()
    """Loaded beside it."""
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    """A divided model's bytes on each device."""
    lies_on_hosts: bool = False
    """Other neurons have stages of it: it neither sleeps nor is reloaded in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStageLine:
    model: str
    engine_neuron: str
    device: str
    first_layer: int
    last_layer: int
    """The one after its last layer."""
    status: str
    memory_bytes: int | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronLine:
    name: str
    status: str
    version: str
    problems: tuple[str, ...]
    devices: tuple[DeviceLine, ...]
    replicas: tuple[ReplicaLine, ...]
    held_stages: tuple[HeldStageLine, ...] = ()
    coming_back: tuple[str, ...] = ()
    """Models from before its drain that other neurons may hold until they are back."""
    disk_total_bytes: int | None = None
    """Size of the download disk. ``None``: the neuron does not report it."""
    disk_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    name: str
    status: str
    pinned: bool
    replicas: int
    """The number of ready ones."""
    min_replicas: int
    max_replicas: int
    has_outdated: bool = False
    may_reload: bool = False
    """Whether its outdated replicas may be reloaded in place."""
    no_host: str = ""
    """The reason why no host of the fleet can run it; empty where one can."""
    not_now: str = ""
    """The hosts that could run it, where each of them drains or is offline."""


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
    note: str = ""
    failure: str = ""

    @property
    def is_active(self) -> bool:
        return self.status in ("pending", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLine:
    neuron: str
    source: str
    status: str
    progress_fraction: float | None
    eta_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    at: datetime
    actor: str
    action: str
    object_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalLine:
    code: str
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOverview:
    is_live: bool
    """``False``: Redis does not answer, and this is the last recorded state."""
    attention: tuple[Attention, ...]
    """The most urgent first; empty: no problems."""
    neurons: tuple[NeuronLine, ...]
    models: tuple[ModelLine, ...]
    jobs: tuple[JobLine, ...]
    """The active jobs, then those that have just ended, newest first."""
    downloads: tuple[DownloadLine, ...]
    minutes: tuple[MinuteSums, ...]
    """The traffic of the last half hour, oldest first; the last minute is incomplete."""
    refusals: tuple[RefusalLine, ...]
    """The refusals of this hour and the one before, the most frequent first."""
    requests_today: int
    """Requests since midnight in UTC."""
    spent_today_micro_usd: int
    audit: tuple[AuditLine, ...]
