"""Decides which replicas leave their neurons, and why.

its neuron drains, or one that holds a stage of it ─▶ no new requests, but while it moves
its model's pinned_on names other neurons          ─▶ it serves until another one does
its model is not offered, or it is one too many, or idle for long ─▶ it is surplus
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement.capacity import (
    HELD,
    devices_of,
    freed_on,
    idle_age_s,
    may_sleep,
    stage_neurons,
)
from fleet.placement.decisions import Sleep, Unload
from inference.protocol.heartbeat import ReplicaStatus, device_name

DRAINS = "its neuron drains"
MISPLACED = "its pinned_on names other neurons"
UNKNOWN_GRACE_S = 30.0
"""How long a replica stays that the catalogue does not offer: the control's data may be older."""
SETTLED_S = 10.0
"""How long each of several replicas must have been ready before one is surplus."""
EXTRA_IDLE_S = 60.0
"""A second replica is unloaded when it has been idle for this long."""
SLEEP_AGAIN_S = 60.0
"""A model does not sleep for this long after its neuron refused; an idle one is unloaded."""


def why_it_leaves(entry: CatalogueEntry, replica: ReplicaView, snapshot: FleetSnapshot) -> str:
    if drains(replica, snapshot):
        return DRAINS
    if entry.pinned_on and replica.neuron not in entry.pinned_on:
        return MISPLACED
    return ""


def drains(replica: ReplicaView, snapshot: FleetSnapshot) -> bool:
    """Its neuron accepts no loads, or another one that holds a stage of it drains."""
    own = snapshot.neuron(replica.neuron)
    others = (snapshot.neuron(name) for name in stage_neurons(replica))
    return (
        own is None
        or not own.may_load
        or any(other is not None and other.is_draining for other in others)
    )


def staying(entry: CatalogueEntry, snapshot: FleetSnapshot) -> list[ReplicaView]:
    return [
        replica
        for replica in snapshot.replicas_of(entry.name)
        if replica.status in HELD and not why_it_leaves(entry, replica, snapshot)
    ]


def why_not_loaded_on(
    entry: CatalogueEntry, neuron: NeuronView, snapshot: FleetSnapshot, loading: Collection[str]
) -> str:
    """The control would undo a load there for this reason. ``loading``: neurons that load it."""
    if not neuron.may_load:
        return f"{neuron.name} {_state(neuron)}"
    if entry.pinned_on and neuron.name not in entry.pinned_on:
        return (
            f"{entry.name} may run on {', '.join(entry.pinned_on)} only, by its pinned_on: name "
            f"one of these, or add {neuron.name} to its pinned_on first"
        )
    others = {replica.neuron for replica in staying(entry, snapshot)} | {*loading}
    most = entry.effective_max_replicas
    if neuron.name in others or len(others) < most:
        return ""
    return (
        f"{entry.name} is loaded on {', '.join(sorted(others))}, and by its max_replicas on {most} "
        f"at most: one would be unloaded again. Raise that, unload it there first, or move it by "
        f"naming {neuron.name} as its pinned_on"
    )


def _state(neuron: NeuronView) -> str:
    if not neuron.is_admitted:
        return "is not admitted: admit it first"
    if neuron.is_leaving:
        return "is stopping: it is loaded there once it is back"
    if neuron.is_draining:
        return "is draining: resume it first"
    return "takes no loads now: its problems are on its page"


def taking_requests(
    entry: CatalogueEntry, ready: Sequence[ReplicaView], snapshot: FleetSnapshot
) -> Sequence[ReplicaView]:
    """While a load elsewhere runs, draining replicas serve; without one they accept none, or the
    drain would never end."""
    loaded = staying(entry, snapshot)
    if here := [replica for replica in ready if replica in loaded]:
        return here
    if loaded:
        return ready
    return [replica for replica in ready if not drains(replica, snapshot)]


def unknown_leaves(replica: ReplicaView) -> Unload | None:
    if replica.status is ReplicaStatus.DRAINING or replica.status_age_s < UNKNOWN_GRACE_S:
        return None
    return unload_of(replica, "the catalogue does not offer it")


def surplus_leaves(
    entry: CatalogueEntry,
    ready: Sequence[ReplicaView],
    digest: str,
    snapshot: FleetSnapshot,
    homes: Collection[str] = (),
) -> Unload | Sleep | None:
    """``ready``: on neurons that stay. ``homes``: neurons that have it back after a drain."""
    if len(ready) <= entry.effective_min_replicas or not ready:
        return None

    def keeps(replica: ReplicaView) -> tuple[bool, bool, int, bool, float, str]:
        """Least valuable first: an older spec, a substitute, the least memory, the longest idle."""
        idle_s = idle_age_s(replica)
        return (
            replica.spec_digest == digest,
            replica.neuron in homes,
            _room_bytes(replica, snapshot),
            idle_s is None,
            -(idle_s or 0.0),
            replica.neuron,
        )

    least, most = min(ready, key=keeps), entry.effective_max_replicas
    if len(ready) > most:
        has_come_back = any(replica.neuron in homes for replica in ready)
        is_settled = min(replica.status_age_s for replica in ready) >= SETTLED_S
        reason = f"one of {len(ready)}, and at most {most} stay"
        return unload_of(least, reason) if has_come_back or is_settled else None
    ttl_s = entry.idle_ttl_s
    if ttl_s is not None and (expired := [one for one in ready if _is_idle_for(one, ttl_s)]):
        leaves, reason = min(expired, key=keeps), f"idle for {ttl_s} s"
        if entry.idle_action == "sleep" and _may_sleep_now(leaves, snapshot):
            return Sleep(neuron=leaves.neuron, model=leaves.model, reason=reason)
        return unload_of(leaves, reason)
    is_extra = len(ready) > max(1, entry.effective_min_replicas)
    if is_extra and _is_idle_for(least, EXTRA_IDLE_S):
        return unload_of(least, f"one of {len(ready)}, and idle for {EXTRA_IDLE_S:.0f} s")
    return None


def _room_bytes(replica: ReplicaView, snapshot: FleetSnapshot) -> int:
    neuron = snapshot.neuron(replica.neuron)
    assert neuron is not None, "it stays there"
    names = devices_of(replica, neuron)
    free = sum(i.free_memory_bytes for i in neuron.devices if device_name(i) in names)
    return free + sum(freed_on(replica, name, neuron) for name in names)


def _may_sleep_now(replica: ReplicaView, snapshot: FleetSnapshot) -> bool:
    neuron, refused_s = snapshot.neuron(replica.neuron), replica.sleep_refused_age_s
    has_refused = refused_s is not None and refused_s < SLEEP_AGAIN_S
    return neuron is not None and may_sleep(replica, neuron) and not has_refused


def _is_idle_for(replica: ReplicaView, seconds: float) -> bool:
    idle_s = idle_age_s(replica)
    return idle_s is not None and idle_s >= seconds


def unload_of(replica: ReplicaView, reason: str) -> Unload:
    return Unload(neuron=replica.neuron, model=replica.model, reason=reason)
