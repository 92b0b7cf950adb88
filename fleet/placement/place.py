"""Places a request for a model. Pure: an entry and a snapshot in, one decision out.

    READY replica ────────────▶ Route    the conversation's own, else the least busy
    LOADING or RECOVERING ────▶ Wait     a load is under way, or its neuron blinks
    asleep, and room for it ──▶ Load     it wakes: a load that is several times cheaper
    room on a device ─────────▶ Load     cards before processors, where it can do most
    room if idle ones leave ──▶ Load     that names what leaves first: where least is lost
    no device could hold it ──▶ Load     divided over devices of one neuron, in the same ways,
                                         or of several where no one neuron could hold it
    room after time slices ───▶ Wait     those that are in use there keep theirs first
    only DRAINING ────────────▶ Wait     it may be loaded again once it is gone
    its host is drained ──────▶ Wait     it is served there after the drain
    did not fit just now ─────▶ Wait     what it needs is known in a moment, and placed by
    its host is away ─────────▶ Reject   model_recovering, with when its host is expected back
    else ─────────────────────▶ Reject   with the reason and when to come back, if ever

Of several ready replicas a request goes to the one of its conversation.

    hint ─▶ rendezvous: the replica that this conversation's prefix belongs to, unless it is over
            the bound ─▶ the next hash's ─▶ … ─▶ the least busy

Every gateway computes the same answer, so that a conversation's turns share one prefix cache.
Source of the bound: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView, load_estimate
from fleet.placement.decisions import Catalogue, Decision, Load, Reject, Route, Wait
from fleet.placement.devices.candidates import PlacementCandidate
from fleet.placement.devices.room import (
    WAKE_AGAIN_S,
    Room,
    find_room,
    has_just_failed,
    reachable,
)
from fleet.placement.failures import retry_in_s
from fleet.placement.held_stages import stage_failed, stages_under_way
from fleet.placement.leaving import taking_requests
from fleet.placement.refusals import never_loads, refuse
from fleet.placement.returning import UnavailableHost, awaited_host, returning_hosts
from inference.protocol.heartbeat import ReplicaStatus

GONE_ETA_S = 5.0
"""For a neuron that fell silent: by then it is back, or the model is loaded elsewhere."""


def place(
    entry: CatalogueEntry,
    snapshot: FleetSnapshot,
    *,
    catalogue: Catalogue | None = None,
    tries_again: bool = False,
) -> Decision:
    """``catalogue`` has the priorities of other models; without it nothing is evicted.
    ``tries_again``: an operator requested the load, so earlier failures are ignored."""
    if routed := route(entry, snapshot):
        return routed
    replicas = reachable(snapshot, entry.name)
    if under_way := _with_status(replicas, ReplicaStatus.LOADING, ReplicaStatus.RECOVERING):
        return _wait(entry, min(under_way, key=_soonest))
    if absent := snapshot.absent_holders(entry.name):
        reason = f"{entry.name} is on {' and '.join(absent)}, which has just fallen silent"
        return Wait(neuron=absent[0], model=entry.name, reason=reason, eta_s=GONE_ETA_S)
    if held := stages_under_way(entry.name, snapshot):
        return held
    draining = _with_status(replicas, ReplicaStatus.DRAINING)
    room = find_room(
        entry,
        snapshot,
        catalogue,
        excluded={replica.neuron for replica in draining},
        tries_again=tries_again,
    )
    if room.failed.everywhere is not None:
        return never_loads(entry, room.failed.everywhere)
    if room.candidate is not None:
        return load_decision(entry, room.candidate)
    if draining:
        return _wait(entry, min(draining, key=_soonest))
    if (waits := _wait_for_room(entry, room)) is not None:
        return waits
    permanent = {replica.neuron for replica in room.failed.permanent}
    returning = returning_hosts(room.entry, snapshot, excluded=permanent)
    if drained := awaited_host(returning, replicas, snapshot):
        return _wait_for_drain(entry, drained, replicas)
    if room.failing:
        return stage_failed(entry, room.failing)
    return refuse(room, snapshot, returning)


def place_on(
    entry: CatalogueEntry,
    neuron: NeuronView,
    snapshot: FleetSnapshot,
    catalogue: Catalogue | None = None,
) -> Load | Reject:
    """Ignores earlier failures: the operator chose the neuron."""
    room = find_room(entry, snapshot, catalogue, only=neuron.name, tries_again=True)
    if room.candidate is not None:
        return load_decision(entry, room.candidate)
    return refuse(room, snapshot, only=neuron.name)


def route(
    entry: CatalogueEntry,
    snapshot: FleetSnapshot,
    *,
    hint: RoutingHint | None = None,
    sent: Mapping[str, int] | None = None,
) -> Route | None:
    """``None``: no replica serves it now. ``sent`` counts, by neuron, requests sent there that no
    heartbeat shows yet."""
    ready = serving(entry, snapshot)
    if not ready:
        return None
    if sent:
        ready = [
            replace(replica, queue_depth=replica.queue_depth + sent.get(replica.neuron, 0))
            for replica in ready
        ]
    return Route(neuron=choose_replica(ready, hint).neuron, model=entry.name)


def serving(entry: CatalogueEntry, snapshot: FleetSnapshot) -> Sequence[ReplicaView]:
    """The READY replicas for new requests (``fleet.placement.leaving``): those of an older spec
    only while none of the present one serves."""
    ready = _with_status(reachable(snapshot, entry.name), ReplicaStatus.READY)
    serving = taking_requests(entry, ready, snapshot)
    if len({replica.spec_digest for replica in serving}) > 1:
        digest = entry.spec_digest()
        serving = [replica for replica in serving if replica.spec_digest == digest] or serving
    return serving


def load_decision(entry: CatalogueEntry, candidate: PlacementCandidate) -> Load:
    return Load(
        neuron=candidate.neuron,
        model=entry.name,
        devices=candidate.devices,
        stages=candidate.stages,
        predicted_tokens_per_s=candidate.predicted_tokens_per_s,
        evict=candidate.evict,
    )


def _with_status(
    replicas: Sequence[ReplicaView], *statuses: ReplicaStatus
) -> tuple[ReplicaView, ...]:
    return tuple(replica for replica in replicas if replica.status in statuses)


def _soonest(replica: ReplicaView) -> tuple[float, str]:
    return (float("inf") if replica.eta_s is None else replica.eta_s, replica.neuron)


def _wait(entry: CatalogueEntry, replica: ReplicaView) -> Wait:
    reason = f"{replica.model} is {replica.status} on {replica.neuron}"
    progress = replica.progress
    if progress is None:
        return Wait(neuron=replica.neuron, model=replica.model, reason=reason)
    estimate = load_estimate(
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
        stage_elapsed_s=replica.stage_age_s,
        engine_elapsed_s=replica.engine_age_s,
        last_load_s=entry.last_load_s(replica.neuron),
    )
    stage: str = progress.stage
    if estimate.share is None and progress.total:
        stage = f"{stage} {progress.done / progress.total:.0%}"
    return Wait(
        neuron=replica.neuron,
        model=replica.model,
        reason=f"{reason} ({stage})",
        eta_s=estimate.left_s,
        share=estimate.share,
    )


def _wait_for_room(entry: CatalogueEntry, room: Room) -> Wait | None:
    """For the end of a time slice, or for another try at a load or at waking."""
    if (candidate := room.after_time_slices) is not None:
        where = f"{' and '.join(candidate.devices)} of {candidate.neuron}"
        users = ", ".join(candidate.evict) or "others"
        return Wait(
            neuron=candidate.neuron,
            model=entry.name,
            reason=f"{entry.name} waits for a time slice on {where}, which {users} use",
            eta_s=candidate.ready_in_s,
            needs_time_slice=True,
        )
    if unfit := room.failed.unfit:
        replica = min(unfit, key=lambda replica: (-replica.status_age_s, replica.neuron))
        return Wait(
            neuron=replica.neuron,
            model=entry.name,
            reason=f"{entry.name} did not fit on {replica.neuron}, and room is looked for",
            eta_s=retry_in_s(replica, is_unfit=True),
        )
    if any(map(has_just_failed, room.asleep)):
        neuron = min(replica.neuron for replica in room.asleep)
        reason = f"{entry.name} sleeps on {neuron} and could not be woken just now"
        return Wait(neuron=neuron, model=entry.name, reason=reason, eta_s=WAKE_AGAIN_S)
    return None


def _wait_for_drain(
    entry: CatalogueEntry, host: UnavailableHost, replicas: Sequence[ReplicaView]
) -> Wait:
    num_running = sum(one.num_requests for one in replicas if one.neuron == host.name)
    running = f" and finishes {num_running} of its requests" if num_running else ""
    return Wait(
        neuron=host.name,
        model=entry.name,
        reason=f"{entry.name} waits for {host.name}, which {host.how_long}{running}",
        eta_s=host.returns_in_s,
        is_for_drain=True,
    )


BALANCE = 1.25
"""A replica's limit is this many times the mean of all outstanding requests, plus ``SLACK``."""
SLACK = 1
"""Few requests are no load worth a prefix."""


@dataclass(frozen=True, slots=True)
class RoutingHint:
    """Hashes of the request's first messages, the shortest prefix first. All turns of a
    conversation share the first one; the longer ones distinguish conversations that begin alike."""

    prefixes: tuple[bytes, ...] = ()


def choose_replica(ready: Sequence[ReplicaView], hint: RoutingHint | None) -> ReplicaView:
    if len(ready) == 1:
        return ready[0]
    if hint is not None:
        most = _bound(ready)
        left = list(ready)
        for prefix in hint.prefixes:
            if len(left) == 1:
                break
            preferred = max(left, key=lambda replica: rendezvous(prefix, replica.neuron))
            if preferred.num_requests < most:
                return preferred
            left.remove(preferred)
    return min(ready, key=lambda replica: (replica.num_requests, replica.neuron))


def rendezvous(prefix: bytes, neuron: str) -> bytes:
    """The neuron with the highest score owns the prefix; when one leaves, only its prefixes
    move."""
    return hashlib.blake2b(neuron.encode(), key=prefix[:64], digest_size=8).digest()


def _bound(ready: Sequence[ReplicaView]) -> int:
    outstanding = 1 + sum(replica.num_requests for replica in ready)
    return math.ceil(BALANCE * outstanding / len(ready)) + SLACK
