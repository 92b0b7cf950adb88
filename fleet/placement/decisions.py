"""Placement's decisions: on one request, and on the whole fleet in a tick of the control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import IdleAction
from fleet.live.desired_state import TimeSlice
from inference.protocol.load import StageSpec

Catalogue = Mapping[str, CatalogueEntry]
"""Every enabled model by its name, for the priorities of evictable models."""


def stage_evictions(stages: Sequence[StageSpec]) -> tuple[tuple[str, str], ...]:
    """Neuron and model of each eviction for stages on other neurons; each once."""
    found = ((stage.neuron, model) for stage in stages for model in stage.evict)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    neuron: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``devices`` are on that neuron, ``evict`` names models to evict there first; ``stages`` have
    those of other neurons."""

    neuron: str
    model: str
    devices: tuple[str, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    """How the model's layers are divided over ``devices``; empty: undivided."""
    predicted_tokens_per_s: float | None = None
    """The plan of ``stages`` predicts this rate for one request."""
    evict: tuple[str, ...] = ()

    @property
    def evictions(self) -> tuple[tuple[str, str], ...]:
        own = ((self.neuron, model) for model in self.evict)
        return (*own, *stage_evictions(self.stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Place again shortly. ``reason`` is written for people; ``eta_s`` is None when unknown."""

    neuron: str
    model: str
    reason: str
    eta_s: float | None = None
    share: float | None = None
    """The completed share of the awaited load, 0 to 1; ``None``: unknown."""
    needs_time_slice: bool = False
    """Whether only replicas in use could make room, so that the model needs a time slice."""
    is_for_drain: bool = False
    """Whether the model waits for the end of its host's drain."""

    @property
    def words(self) -> str:
        share = "" if self.share is None else f", {self.share:.0%}"
        left = "" if self.eta_s is None else f", about {max(1, round(self.eta_s))} s left"
        return f"{self.reason}{share}{left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """``code`` is no_neuron, not_enough_memory, model_recovering, load_failed (each a 503), or the
    code of a failure that no retry cures; ``message`` is for the client. ``retry_after_s`` is None
    where only a change by the operator helps."""

    code: str
    message: str
    retry_after_s: float | None
    model_id: str = ""
    """The source of a model that does not load, as ``huggingface:org/name``."""
    suggestion: str = ""


Decision = Route | Load | Wait | Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Drain and unload. ``reason`` is written for people. ``at_once``: its requests are
    cancelled."""

    neuron: str
    model: str
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Drain, then release the device and keep the weights. ``reason`` is written for people."""

    neuron: str
    model: str
    reason: str


Action = Load | Unload | Sleep


@dataclass(frozen=True, slots=True)
class Waiting:
    num_requests: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    loading: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron) of active loads, which no heartbeat may show yet."""
    unloading: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron) of active unloads and sleeps."""
    to_restore: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys are neurons. Values are models that were loaded there before a drain, or before they
    were evicted for another model, and that are not loaded again yet; the last used first."""
    evicting: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron) of replicas being evicted for active loads."""
    overdue: frozenset[str] = frozenset()
    """Neurons whose drain should have ended: requests still running there are cancelled."""
    num_failures: Mapping[str, int] = field(default_factory=dict)
    failed_age_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds since the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    queue_long_s: Mapping[str, float] = field(default_factory=dict)
    """For how many seconds each model's queue has been long on all its replicas."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``time_slices`` are all active ones, including new ones. ``restored`` are models, by neuron,
    that are loaded there again after its drain, or that cannot be."""

    actions: tuple[Action, ...] = ()
    time_slices: tuple[TimeSlice, ...] = ()
    restored: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_at_rest: bool = False
    """Neither time nor memory that becomes free changes it: all that is wanted is loaded, and all
    that is loaded stays. Said of a fleet of one host only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    model: str
    neurons: tuple[str, ...]
    """The neurons that it may run on; empty: any."""
    min_replicas: int
    max_replicas: int
    priority: int
    idle_ttl_s: int | None
    """Replicas beyond the least are removed after this long without a request; ``None``: they stay
    until their memory is needed."""
    idle_action: IdleAction = "unload"


def assignment_of(entry: CatalogueEntry) -> Assignment:
    least = entry.effective_min_replicas
    return Assignment(
        model=entry.name,
        neurons=entry.pinned_on,
        min_replicas=least,
        max_replicas=max(1, least, entry.max_replicas),
        priority=entry.effective_priority,
        idle_ttl_s=entry.idle_ttl_s,
        idle_action=entry.idle_action,
    )
