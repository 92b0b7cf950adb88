"""Finds replicas that sleep, and those that could. Pure.

A sleeping replica uses almost no device memory, and keeps its weights in the host's memory. Waking
it counts as a load of a fraction of the cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import NeuronView, ReplicaView
from inference.protocol.heartbeat import ReplicaStatus

COST_OF_WAKING = 0.2
"""The cost of waking relative to a load from files: at most a fifth of its time."""
HOST_SHARE_KEPT = 0.1
SLEEP_AGAIN_S = 60.0
"""How long a model does not sleep by itself after its neuron refused. Until then an idle one is
unloaded."""
WAKE_AGAIN_S = 5.0
"""After a failed wake: by then heartbeats show what uses the memory."""


@dataclass(frozen=True, slots=True)
class Asleep:
    """The replicas of one model that sleep by its present spec."""

    neurons: frozenset[str] = frozenset()
    """Neurons where it sleeps: there it is woken, never loaded from files."""
    wakeable: tuple[ReplicaView, ...] = ()


NONE_ASLEEP = Asleep()


def asleep_of(entry: CatalogueEntry, replicas: Sequence[ReplicaView]) -> Asleep:
    sleeping = [replica for replica in replicas if replica.status is ReplicaStatus.ASLEEP]
    if not sleeping:
        return NONE_ASLEEP
    digest = entry.spec_digest()
    current = [
        replica
        for replica in sleeping
        if replica.spec_digest in ("", digest)
        and (not entry.pinned_on or replica.neuron in entry.pinned_on)
    ]
    return Asleep(
        neurons=frozenset(replica.neuron for replica in current),
        wakeable=tuple(replica for replica in current if not has_just_failed(replica)),
    )


def has_just_failed(replica: ReplicaView) -> bool:
    return replica.failure is not None and replica.status_age_s < WAKE_AGAIN_S


def has_just_refused(replica: ReplicaView) -> bool:
    age_s = replica.sleep_refused_age_s
    return age_s is not None and age_s < SLEEP_AGAIN_S


def waking_bytes(replica: ReplicaView, device: str) -> int:
    report = replica.report
    if report is None:
        return 0
    if report.stage_memory and report.asleep is not None:
        took_bytes = sum(
            one.actual_bytes + one.process_bytes
            for one in report.stage_memory
            if one.device == device
        )
        return max(0, took_bytes - report.asleep.on(device))
    awake_bytes = report.process_bytes + report.actual_bytes
    lacking = max(0, awake_bytes - (replica.memory_bytes or 0))
    return -(-lacking // max(1, len(replica.devices)))


def may_sleep(replica: ReplicaView, neuron: NeuronView) -> bool:
    report = replica.report
    if replica.status is not ReplicaStatus.READY or report is None or report.asleep is None:
        return False
    if report.asleep.host_bytes == 0:
        return True
    host = next((device for device in neuron.devices if device.kind == "cpu"), None)
    if host is None:
        return False
    kept_bytes = int(HOST_SHARE_KEPT * host.total_memory_bytes)
    return report.asleep.host_bytes <= host.free_memory_bytes - kept_bytes
