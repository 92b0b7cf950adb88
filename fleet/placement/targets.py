"""Chooses a request's target and the replica for it, and decides whether it may be retried after a
failure. Pure.

    own, box/m when queue_longer_than 4, cloud/m when waiting_longer_than 5

    own                                the first whose condition holds
    own's queue is over 4 ─▶ box/m     a spill-over that holds goes before those ahead of it
    it waited for 5 s ─▶ cloud/m       the last spill-over that holds is taken

Targets that are ``left_out`` (tried, or not allowed) are ignored, also by conditions: without a
target before it, a condition with a number holds. Neighbours with one condition and a weight are
equals: of those that are ready, else of all, the one with the fewest requests for its weight is
chosen.

Of several ready replicas a request goes to the one of its conversation.

    hint ─▶ rendezvous: the replica that this conversation's prefix belongs to, unless it is over
            the bound ─▶ the next hash's ─▶ … ─▶ the least busy

Every gateway computes the same answer, so that a conversation's turns share one prefix cache.
Source of the bound: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import SPILLS, Target, When
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement.decisions import Route
from fleet.placement.leaving import taking_requests
from fleet.placement.room import reachable
from inference.protocol.heartbeat import ReplicaStatus

BALANCE = 1.25
"""A replica's limit is this many times the mean of all outstanding requests, plus ``SLACK``."""
SLACK = 1
"""Few requests are no load worth a prefix."""
MAX_ATTEMPTS = 4

UNACCEPTED = frozenset(
    {
        "neuron_lost",
        "neuron_stopping",
        "model_not_loaded",
        "model_loading",
        "recovering",
        "draining",
        "model_load_failed",
    }
)
"""Neurons send them before an engine has the request; gateways set them for lost neurons."""


def may_place_again(code: str, *, is_accepted: bool, num_attempts: int) -> bool:
    """Accepted requests, and those of unknown state (``events_lost``), never run twice."""
    return not is_accepted and code in UNACCEPTED and num_attempts < MAX_ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    is_ready: bool
    """A request can begin there at once."""
    queue: int
    num_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    index: int
    wait_s: float | None
    """From the request's start; ``None``: no limit of its own."""
    gives_way: bool = False
    """Another target is due then; this one may be chosen again after it."""


def choose_target(
    targets: Sequence[Target],
    states: Sequence[TargetState],
    *,
    waited_s: float,
    left_out: Collection[int] = (),
    is_patient: bool = False,
) -> Chosen | None:
    """``None``: no condition holds. ``is_patient``: the request waits rather than spill over."""
    before: list[int] = []
    chosen: list[int] = []
    for group in _groups(targets):
        members = [i for i in group if i not in left_out]
        queues = [states[i].queue for i in before]
        if is_patient and before and targets[group[0]].when in SPILLS:
            continue
        holding = [i for i in members if _holds(targets[i], states[i], queues, waited_s)]
        if not holding:
            continue
        if not chosen or targets[holding[0]].when in SPILLS:
            chosen = holding
        before += holding
    if not chosen:
        return None
    index = min(chosen, key=lambda i: (not states[i].is_ready, _share(targets[i], states[i]), i))
    if targets[index].when is When.READY:
        return Chosen(index=index, wait_s=waited_s)
    wait_s = None if is_patient else _wait_s(targets, index, waited_s, left_out)
    return Chosen(index=index, wait_s=wait_s, gives_way=wait_s is not None)


def _share(target: Target, state: TargetState) -> float:
    return state.num_requests / (target.weight or 1)


def _groups(targets: Sequence[Target]) -> list[list[int]]:

    def key(index: int) -> tuple[object, ...]:
        target = targets[index]
        return (target.when, target.limit, index if target.weight is None else None)

    return [list(group) for _, group in groupby(range(len(targets)), key)]


def _holds(target: Target, state: TargetState, queues: Sequence[int], waited_s: float) -> bool:
    match target.when:
        case When.ALWAYS:
            return True
        case When.READY:
            return state.is_ready
        case When.QUEUE_LONGER_THAN:
            return all(queue > target.limit for queue in queues)
        case When.WAITING_LONGER_THAN:
            return not queues or waited_s >= target.limit


def _wait_s(
    targets: Sequence[Target], index: int, waited_s: float, left_out: Collection[int]
) -> float | None:
    """Seconds of waiting at which the first target behind ``index`` opens."""
    limits = [
        target.limit
        for i, target in enumerate(targets)
        if i > index and i not in left_out and target.when is When.WAITING_LONGER_THAN
    ]
    return min((limit for limit in limits if limit > waited_s), default=None)


@dataclass(frozen=True, slots=True)
class RoutingHint:
    """Hashes of the request's first messages, the shortest prefix first. All turns of a
    conversation share the first one; the longer ones distinguish conversations that begin alike."""

    prefixes: tuple[bytes, ...] = ()


def route(
    entry: CatalogueEntry,
    snapshot: FleetSnapshot,
    *,
    hint: RoutingHint | None = None,
    sent: Mapping[str, int] | None = None,
) -> Route | None:
    """``None``: no replica serves it now. ``sent``: requests by neuron, not in heartbeats yet."""
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
    """READY replicas; those of an older spec only while none of the present one serves."""
    replicas = reachable(snapshot, entry.name)
    ready = [replica for replica in replicas if replica.status is ReplicaStatus.READY]
    serving = taking_requests(entry, ready, snapshot)
    if len({replica.spec_digest for replica in serving}) > 1:
        digest = entry.spec_digest()
        serving = [replica for replica in serving if replica.spec_digest == digest] or serving
    return serving


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
    """The highest score owns the prefix; when its neuron leaves, only its prefixes move."""
    return hashlib.blake2b(neuron.encode(), key=prefix[:64], digest_size=8).digest()


def _bound(ready: Sequence[ReplicaView]) -> int:
    outstanding = 1 + sum(replica.num_requests for replica in ready)
    return math.ceil(BALANCE * outstanding / len(ready)) + SLACK


def own_state(
    entry: CatalogueEntry,
    snapshot: FleetSnapshot,
    *,
    sent: Mapping[str, int],
    num_waiting: int,
) -> TargetState:
    """``sent``: by neuron, not in heartbeats yet. ``num_waiting``: until the model is loaded."""
    ready = serving(entry, snapshot)
    num_sent = sum(sent.get(replica.neuron, 0) for replica in ready)
    return TargetState(
        is_ready=bool(ready),
        queue=min((_queue(replica, sent) for replica in ready), default=num_waiting),
        num_requests=num_waiting + num_sent + sum(replica.num_requests for replica in ready),
    )


def _queue(replica: ReplicaView, sent: Mapping[str, int]) -> int:
    """Requests sent since the last heartbeat count as running while the replica has places."""
    num_sent = sent.get(replica.neuron, 0)
    if replica.max_in_flight is None:
        return replica.queue_depth + num_sent
    return max(replica.queue_depth, replica.num_requests + num_sent - replica.max_in_flight)


CALLERS_OWN = frozenset({400, 401, 403, 404, 413, 429})
NEVER_RAN = UNACCEPTED | {"queue_full", "queue_timeout", "vision_unsupported"}
"""Engines and neurons with these codes have not begun the request."""
OF_UPSTREAMS = frozenset(
    {
        "upstream_unavailable",
        "upstream_failed",
        "rate_limit_exceeded",
        "queue_full",
        "queue_timeout",
        "unsupported_parameter",
    }
)
"""The upstream may answer later, does not answer as it should, or has no such field."""


def may_fail_over(code: str, status: int, *, is_own: bool, is_sent: bool) -> bool:
    """No token was sent yet. ``is_sent``: to an engine or an upstream, which may have begun it."""
    if not is_own:
        return code in OF_UPSTREAMS
    if code in NEVER_RAN:
        return True
    return not is_sent and status not in CALLERS_OWN
