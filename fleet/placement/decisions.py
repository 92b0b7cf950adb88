"""What placement decides: about one request, and about the whole fleet in a tick of the control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import IdleAction
from fleet.live.desired_state import TimeSlice
from inference.protocol.load import StageSpec

Catalogue = Mapping[str, CatalogueEntry]
"""Every enabled model by its name: what evictable models are worth."""


def stage_evictions(stages: Sequence[StageSpec]) -> tuple[tuple[str, str], ...]:
    """The neuron and the model of each that leaves for stages on other neurons; each once."""
    found = ((stage.neuron, model) for stage in stages for model in stage.evict)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    neuron: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``devices`` are where on that neuron, ``evict`` names the models that must leave it first;
    ``stages`` have those of other neurons."""

    neuron: str
    model: str
    devices: tuple[str, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    """How its layers are divided over those; empty: they are not."""
    predicted_tokens_per_s: float | None = None
    """One request's, by the plan of those stages."""
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
    """How much of the load that is waited for is done, 0 to 1; ``None``: it is unknown."""
    needs_time_slice: bool = False
    """Whether only replicas that are in use could make room, so that the model waits for a time
    slice."""
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
    where a retry makes no sense until the operator changes something."""

    code: str
    message: str
    retry_after_s: float | None
    model_id: str = ""
    """The source of a model that does not load, as ``huggingface:org/name``."""
    suggestion: str = ""


Decision = Route | Load | Wait | Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Drain and unload. ``reason`` is written for people. ``at_once``: its requests end."""

    neuron: str
    model: str
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Drain, then give the device back and keep the weights. ``reason`` is written for people."""

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
    """(model, neuron) of loads that are under way: a heartbeat may not show them yet."""
    unloading: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron) of unloads that are under way; those that fall asleep are among them."""
    to_restore: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys are neurons. Values are the models that were loaded there before a drain, or before they
    made room for another model, and that are not loaded again yet; the last used first."""
    evicting: frozenset[tuple[str, str]] = frozenset()
    """(model, neuron) of replicas that leave for loads under way."""
    overdue: frozenset[str] = frozenset()
    """Neurons whose drain was to be over by now: what still runs there ends."""
    num_failures: Mapping[str, int] = field(default_factory=dict)
    """How many loads of each model have failed in a row."""
    failed_age_s: Mapping[str, float] = field(default_factory=dict)
    """How long ago the last of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    queue_long_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which each model's queue has been long on all its replicas without a break."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``time_slices`` are all that are under way now, those that have just been given among them.
    ``restored`` are models, by neuron, that are loaded there again after its drain, or that cannot
    be."""

    actions: tuple[Action, ...] = ()
    time_slices: tuple[TimeSlice, ...] = ()
    restored: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    model: str
    neurons: tuple[str, ...]
    """The neurons that it may run on; empty: any."""
    min_replicas: int
    max_replicas: int
    priority: int
    idle_ttl_s: int | None
    """Replicas beyond the least go after so long without a request; ``None``: they stay until
    their room is needed."""
    idle_action: IdleAction = "unload"
    """How they go."""


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
