"""Where a request for a model goes. Pure: an entry and a snapshot in, one decision out.

    READY replica ────────────▶ Route    least busy first, ties by neuron name
    LOADING or RECOVERING ────▶ Wait     a load is under way
    a feasible neuron ────────▶ Load     most free memory first, ties by neuron name
    only DRAINING ────────────▶ Wait     it may be loaded again once it is gone
    else ─────────────────────▶ Reject   with the reason and when to come back

No ORM, no Redis, no clock: ages come with the snapshot. Performing a decision is others' work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.protocol.heartbeat import ReplicaStatus

FAILED_LOAD_BACKOFF_S = 30.0
"""A load that failed on a neuron is not tried there again for this long."""

NO_NEURON_RETRY_AFTER_S = 5.0
NOT_ENOUGH_MEMORY_RETRY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    neuron: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``evict`` names the models that must leave that neuron first."""

    neuron: str
    model: str
    evict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Place again shortly. ``reason`` is written for people; ``eta_s`` is None when unknown."""

    neuron: str
    model: str
    reason: str
    eta_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A 503: ``code`` is no_neuron, not_enough_memory or load_failed; ``message`` is for the
    client."""

    code: str
    message: str
    retry_after_s: float


Decision = Route | Load | Wait | Reject


def place(entry: CatalogueEntry, snapshot: FleetSnapshot) -> Decision:
    replicas = snapshot.replicas_of(entry.name)
    if ready := _with_status(replicas, ReplicaStatus.READY):
        chosen = min(ready, key=lambda replica: (replica.num_requests, replica.neuron))
        return Route(neuron=chosen.neuron, model=entry.name)
    if under_way := _with_status(replicas, ReplicaStatus.LOADING, ReplicaStatus.RECOVERING):
        return _wait(min(under_way, key=_soonest))
    if feasible := [neuron for neuron in snapshot.neurons if _is_feasible(entry, neuron)]:
        target = min(feasible, key=lambda neuron: (-neuron.free_memory_bytes, neuron.name))
        return Load(neuron=target.name, model=entry.name)
    if draining := _with_status(replicas, ReplicaStatus.DRAINING):
        return _wait(min(draining, key=_soonest))
    return _reject(entry, snapshot)


def _with_status(
    replicas: Sequence[ReplicaView], *statuses: ReplicaStatus
) -> tuple[ReplicaView, ...]:
    return tuple(replica for replica in replicas if replica.status in statuses)


def _soonest(replica: ReplicaView) -> tuple[float, str]:
    return (float("inf") if replica.eta_s is None else replica.eta_s, replica.neuron)


def _wait(replica: ReplicaView) -> Wait:
    reason = f"{replica.model} is {replica.status} on {replica.neuron}"
    if replica.progress is not None:
        reason += f" ({replica.progress.stage})"
    return Wait(neuron=replica.neuron, model=replica.model, reason=reason, eta_s=replica.eta_s)


def _is_feasible(entry: CatalogueEntry, neuron: NeuronView) -> bool:
    replica = neuron.replica_of(entry.name)
    if replica is not None and not _may_retry(replica):
        return False
    return _fits(entry, neuron)


def _may_retry(replica: ReplicaView) -> bool:
    """A neuron holds one replica of a model; only one whose failure has aged makes room."""
    return replica.status is ReplicaStatus.FAILED and replica.status_age_s >= FAILED_LOAD_BACKOFF_S


def _fits(entry: CatalogueEntry, neuron: NeuronView) -> bool:
    """A size nobody has measured is left to the neuron's preflight, which answers with numbers."""
    if not neuron.devices:
        return False
    needed_bytes = _needed_bytes(entry, neuron)
    return needed_bytes is None or needed_bytes <= neuron.free_memory_bytes


def _needed_bytes(entry: CatalogueEntry, neuron: NeuronView) -> int | None:
    return entry.needed_memory_bytes(neuron.name, neuron.load_device_kind)


def _reject(entry: CatalogueEntry, snapshot: FleetSnapshot) -> Reject:
    failed = _with_status(snapshot.replicas_of(entry.name), ReplicaStatus.FAILED)
    if recent := [replica for replica in failed if not _may_retry(replica)]:
        return _load_failed(recent)
    if short := [neuron for neuron in snapshot.neurons if _is_short(entry, neuron)]:
        return _not_enough_memory(entry, short)
    return Reject(
        code="no_neuron",
        message=f"No neuron that could run {entry.name} is online",
        retry_after_s=NO_NEURON_RETRY_AFTER_S,
    )


def _is_short(entry: CatalogueEntry, neuron: NeuronView) -> bool:
    return bool(neuron.devices) and not _fits(entry, neuron)


def _not_enough_memory(entry: CatalogueEntry, short: Sequence[NeuronView]) -> Reject:
    """The neuron that comes closest speaks for all."""

    def lacking_bytes(neuron: NeuronView) -> int:
        return (_needed_bytes(entry, neuron) or 0) - neuron.free_memory_bytes

    closest = min(short, key=lambda neuron: (lacking_bytes(neuron), neuron.name))
    return Reject(
        code="not_enough_memory",
        message=f"{entry.name} needs {_needed_bytes(entry, closest) or 0:,} bytes of free memory "
        f"on {closest.name}, and {closest.free_memory_bytes:,} are free there; no neuron comes "
        "closer",
        retry_after_s=NOT_ENOUGH_MEMORY_RETRY_AFTER_S,
    )


def _load_failed(failed: Sequence[ReplicaView]) -> Reject:
    """The failure that may be tried again first speaks for all."""
    oldest = min(failed, key=lambda replica: (-replica.status_age_s, replica.neuron))
    why = oldest.failure.message if oldest.failure else "no reason was given"
    return Reject(
        code="load_failed",
        message=f"Loading {oldest.model} failed on {oldest.neuron}: {why}",
        retry_after_s=max(1.0, FAILED_LOAD_BACKOFF_S - oldest.status_age_s),
    )
