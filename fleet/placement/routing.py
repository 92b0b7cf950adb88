"""Which of several ready replicas a request goes to.

    hint ─▶ rendezvous: the replica that this conversation's prefix belongs to, unless it is over
            the bound ─▶ the next hash's ─▶ … ─▶ the least busy

Every gateway comes to the same answer without asking the others, so that a conversation's turns
meet in one prefix cache. Source of the bound: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing
with Bounded Loads". Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.live.snapshot import ReplicaView

BALANCE = 1.25
"""A replica may have so many times the mean of what all have outstanding, and ``SLACK`` more."""
SLACK = 1
"""Few requests are no load worth a prefix."""


@dataclass(frozen=True, slots=True)
class RoutingHint:
    """Hashes of the request's first messages, the shortest prefix first. All turns of a
    conversation share the first one; the longer ones distinguish conversations that begin alike."""

    prefixes: tuple[bytes, ...] = ()


def choose_replica(ready: Sequence[ReplicaView], hint: RoutingHint | None) -> ReplicaView:
    """``ready`` holds at least one."""
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
    """The neuron with the highest is the prefix' own; when one goes, only its prefixes move."""
    return hashlib.blake2b(neuron.encode(), key=prefix[:64], digest_size=8).digest()


def _bound(ready: Sequence[ReplicaView]) -> int:
    outstanding = 1 + sum(replica.num_requests for replica in ready)
    return math.ceil(BALANCE * outstanding / len(ready)) + SLACK
