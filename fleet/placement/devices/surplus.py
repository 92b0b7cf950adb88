"""Which replicas are surplus: of models that are not offered, above the maximum, or idle for long.

One replica of a model at a time, so that the next tick sees the result. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fleet.live.snapshot import ReplicaView
from fleet.placement.assignments import Assignment
from fleet.placement.devices.capacity import idle_age_s
from fleet.placement.plan import Sleep, Unload
from inference.protocol.heartbeat import ReplicaStatus

UNKNOWN_GRACE_S = 30.0
"""How long a replica stays that the catalogue does not offer: the control may be behind."""
SETTLED_S = 10.0
"""How long each of several replicas must have been ready before one is surplus."""
EXTRA_IDLE_S = 60.0
"""A second replica goes when it has been idle for so long, or for its model's idle time."""


def unknown_leaves(replica: ReplicaView) -> Unload | None:
    """``replica`` is of a model that the catalogue does not offer."""
    if replica.status is ReplicaStatus.DRAINING or replica.status_age_s < UNKNOWN_GRACE_S:
        return None
    return _unload(replica, "the catalogue does not offer it")


def surplus_leaves(
    assignment: Assignment,
    ready: Sequence[ReplicaView],
    digest: str,
    room_bytes: Callable[[ReplicaView], int],
    may_sleep: Callable[[ReplicaView], bool] = lambda replica: False,
    homes: Collection[str] = (),
) -> Unload | Sleep | None:
    """``ready`` are the model's replicas that are READY on neurons that stay. ``room_bytes``: what
    one has and could have where it is. ``may_sleep``: whether one can, and its host has room.
    ``homes`` are neurons to which it has just come back after their drain: what stood in for it
    leaves at once."""
    if len(ready) <= assignment.min_replicas or not ready:
        return None

    def keeps(replica: ReplicaView) -> tuple[bool, bool, int, bool, float, str]:
        """Sort key, least valuable first: an older spec, then a substitute for a neuron's own,
        then the least room, then the longest idle."""
        idle_s = idle_age_s(replica)
        return (
            replica.spec_digest == digest,
            replica.neuron in homes,
            room_bytes(replica),
            idle_s is None,
            -(idle_s or 0.0),
            replica.neuron,
        )

    least = min(ready, key=keeps)
    if len(ready) > assignment.max_replicas:
        has_come_back = any(replica.neuron in homes for replica in ready)
        if has_come_back or min(replica.status_age_s for replica in ready) >= SETTLED_S:
            return _unload(
                least, f"one of {len(ready)}, and at most {assignment.max_replicas} stay"
            )
        return None
    ttl_s = assignment.idle_ttl_s
    if ttl_s is not None and (expired := [one for one in ready if _is_idle_for(one, ttl_s)]):
        leaves = min(expired, key=keeps)
        if assignment.idle_action == "sleep" and may_sleep(leaves):
            return Sleep(neuron=leaves.neuron, model=leaves.model, reason=f"idle for {ttl_s} s")
        return _unload(leaves, f"idle for {ttl_s} s")
    is_extra = len(ready) > max(1, assignment.min_replicas)
    if is_extra and _is_idle_for(least, EXTRA_IDLE_S):
        return _unload(least, f"one of {len(ready)}, and idle for {EXTRA_IDLE_S:.0f} s")
    return None


def _is_idle_for(replica: ReplicaView, seconds: float) -> bool:
    idle_s = idle_age_s(replica)
    return idle_s is not None and idle_s >= seconds


def _unload(replica: ReplicaView, reason: str) -> Unload:
    return Unload(neuron=replica.neuron, model=replica.model, reason=reason)
