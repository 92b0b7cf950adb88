"""An overview's parts as plain data, and the findings that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from inference.protocol.delivery import BROKE_WORKER
from inference.protocol.refusals import Cause, Refused
from metering.money import amount_words
from metering.selectors import BudgetStatus
from metering.series_store import MinuteSums

DISK_LOW_SHARE = 0.10
DISK_FULL_SHARE = 0.02
"""The free share of a disk at which no model of any size can be downloaded."""
LIMIT_CODES = frozenset({"rate_limit_exceeded", "budget_reserved", "insufficient_quota"})
LIMITS: dict[str, str] = {
    Cause.REQUESTS_PER_MINUTE: "a limit of requests a minute",
    Cause.TOKENS_PER_MINUTE: "a limit of tokens a minute",
    Cause.MAX_CONCURRENT: "a limit of requests at once",
    Cause.ACCOUNT_BUDGET: "its budget, of which its requests may need more than is left",
    Cause.KEY_BUDGET: "a key's budget, of which the key's requests may need more than is left",
    Cause.RESERVED: "what its running requests reserve of its budget",
    Cause.QUEUE_SHARE: "a queue, of whose places it may have half",
    Cause.PROMPT_TOO_DEAR: "a budget, whose rest buys no such prompt",
    Cause.STORED: "a limit of what it may keep here: files, batches or responses",
}
UNKNOWN_LIMIT = "its limits or its budget"
"""For gateways before 0.3.0, which counted no causes."""
MAX_REFUSED = 5
BROKEN_WORKERS_NOTICED = 3
"""Requests of one key that crashed an engine or a neuron, in this hour and the last."""
VERSION_PROBLEM = "it runs helexa "
"""The beginning of a neuron's problem that ``_of_versions`` reports for all neurons at once."""


class Level(StrEnum):
    URGENT = "urgent"
    """Clients are not served, or soon will not be."""
    WARNING = "warning"
    NOTICE = "notice"
    """No fault: something to do, or information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``about``: a neuron, a model, an account, a key, or empty."""

    level: Level
    kind: str
    text: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Ranks have equal parts on each device."""

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
    adapters: tuple[str, ...] = ()
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    """A divided model's bytes on each device."""
    lies_on_hosts: bool = False
    """Other neurons have stages of it: it is not reloaded in place."""
    may_sleep: bool = False


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
    """The disk for downloads. ``None``: not reported."""
    disk_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    name: str
    status: str
    pinned: bool
    replicas: int
    """Only the ready ones."""
    min_replicas: int
    max_replicas: int
    has_outdated: bool = False
    may_reload: bool = False
    no_host: str = ""
    not_now: str = ""


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
    neurons: tuple[NeuronLine, ...]
    models: tuple[ModelLine, ...]
    jobs: tuple[JobLine, ...]
    downloads: tuple[DownloadLine, ...]
    minutes: tuple[MinuteSums, ...]
    """The traffic of the last half hour, oldest first; the last minute is incomplete."""
    refusals: tuple[RefusalLine, ...]
    requests_today: int
    """Since midnight in UTC."""
    spent_today_micro_usd: int
    audit: tuple[AuditLine, ...]


def attention(
    neurons: Sequence[NeuronLine],
    models: Sequence[ModelLine],
    budgets: Sequence[BudgetStatus],
    *,
    is_live: bool,
    version: str,
    refused: Mapping[Refused, int] | None = None,
) -> tuple[Attention, ...]:
    """The most urgent first. ``budgets``: those of which little is left."""
    found = [
        *(finding for neuron in neurons for finding in _of_neuron(neuron)),
        *_of_models(models),
        *_of_versions(neurons, version),
        *_of_budgets(budgets),
        *_of_refused(refused or {}, {budget.owner for budget in budgets}),
        *_of_broken_workers(refused or {}),
    ]
    if not is_live:
        text = "Redis does not answer: this is what was recorded last"
        found.insert(0, _finding(Level.URGENT, "redis_away", "", text))
    if not neurons:
        found.append(_finding(Level.WARNING, "no_neuron", "", "no neuron has joined yet"))
    return tuple(sorted(found, key=lambda one: list(Level).index(one.level)))


def _of_neuron(neuron: NeuronLine) -> Iterator[Attention]:
    if neuron.status == "away":
        yield _finding(Level.URGENT, "neuron_away", neuron.name, f"{neuron.name} is away")
    if neuron.status == "refused":
        text = f"{neuron.name} is not admitted: nothing is placed there"
        yield _finding(Level.NOTICE, "neuron_refused", neuron.name, text)
    for problem in neuron.problems:
        if not problem.startswith(VERSION_PROBLEM):
            text = f"{neuron.name}: {problem}"
            yield _finding(Level.WARNING, "neuron_problem", neuron.name, text)
    yield from _of_disk(neuron)
    for replica in neuron.replicas:
        if replica.status == "failed":
            text = f"{replica.model} failed on {neuron.name}: {replica.failure}"
            yield _finding(Level.URGENT, "model_failing", replica.model, text)
        if replica.is_outdated and replica.status == "ready":
            how = "unload it, and load it again" if replica.lies_on_hosts else "reload it"
            text = f"{replica.model} on {neuron.name} is outdated: {how}"
            yield _finding(Level.WARNING, "outdated", replica.model, text)


def _of_versions(neurons: Iterable[NeuronLine], version: str) -> Iterator[Attention]:
    others = [
        f"{neuron.name} ({neuron.version})"
        for neuron in neurons
        if neuron.version not in ("", version) and neuron.status != "away"
    ]
    if others:
        text = f"not of this version, {version}: {', '.join(others)}"
        yield _finding(Level.WARNING, "version_mismatch", "", text)


def _of_disk(neuron: NeuronLine) -> Iterator[Attention]:
    total_bytes, free_bytes = neuron.disk_total_bytes, neuron.disk_free_bytes
    if not total_bytes or free_bytes is None:
        return
    share = free_bytes / total_bytes
    if share < DISK_LOW_SHARE:
        level = Level.URGENT if share < DISK_FULL_SHARE else Level.WARNING
        text = f"the disk of {neuron.name} is nearly full: {share:.0%} are left for downloads"
        yield _finding(level, "disk_nearly_full", neuron.name, text)


def _of_models(models: Iterable[ModelLine]) -> Iterator[Attention]:
    for model in models:
        if model.replicas < model.min_replicas:
            text = f"{model.name} has {model.replicas} of at least {model.min_replicas} replicas"
            level = Level.WARNING if model.replicas else Level.URGENT
            yield _finding(level, "too_few_replicas", model.name, text)
        if model.no_host:
            text = f"no host can run {model.name}: {model.no_host}"
            yield _finding(Level.WARNING, "no_host", model.name, text)


def _of_budgets(budgets: Iterable[BudgetStatus]) -> Iterator[Attention]:
    for budget in budgets:
        kind = "budget_spent" if budget.left == 0 else "budget_nearly_spent"
        of = f"the budget of the {budget.on} {budget.owner}"
        left, cap = (amount_words(budget.unit, one) for one in (budget.left, budget.cap))
        text = f"{of}: {left} of {cap} are left"
        yield _finding(Level.NOTICE, kind, budget.owner, text)


def _of_refused(refused: Mapping[Refused, int], spent: Collection[str]) -> Iterator[Attention]:
    found = [
        (number, one.account, LIMITS.get(one.cause, UNKNOWN_LIMIT))
        for one, number in refused.items()
        if one.account and one.account not in spent and one.code in LIMIT_CODES
    ]
    for number, account, limit in sorted(found, key=lambda one: (-one[0], one[1]))[:MAX_REFUSED]:
        times = "once" if number == 1 else f"{number:,} times"
        text = f"{account} was refused {times} lately by {limit}"
        yield _finding(Level.NOTICE, "account_refused", account, text)


def _of_broken_workers(refused: Mapping[Refused, int]) -> Iterator[Attention]:
    for one, number in refused.items():
        if one.code == BROKE_WORKER and number >= BROKEN_WORKERS_NOTICED:
            who = (
                f"the key {one.key} of {one.account}" if one.key else one.account or "nobody known"
            )
            text = (
                f"{who} sent {number:,} requests lately that each ended an engine or a neuron: the "
                f"gateway's log names them by {BROKE_WORKER}"
            )
            yield _finding(Level.URGENT, "key_breaks_workers", one.key or one.account, text)


def _finding(level: Level, kind: str, about: str, text: str) -> Attention:
    return Attention(level=level, kind=kind, about=about, text=text)
