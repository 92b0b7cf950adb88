"""What the control knows beside the snapshot, and what it decides to do about the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.live.time_slices import TimeSlice
from fleet.placement.decisions import Load


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
    """Requests for one model that wait for it at all gateways together."""

    num_requests: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The state of load jobs."""

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
    """Observations that one snapshot alone does not contain."""

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
