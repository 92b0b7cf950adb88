"""GET /health: 200 while requests can be answered, else 503 with the reasons. Needs no key.

Healthy means that Redis and the database answer, a neuron is there, and each model that ought to
be loaded has a replica whose engine answers: idle, or with a recent successful forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from fleet.catalogue import CatalogueEntry
from fleet.snapshot import FleetSnapshot, ReplicaView
from inference.gateway.consumers import ApiConsumer
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.errors import ApiError

STALLED_AFTER_S = 60.0
"""An engine with work whose last forward pass is older than this has stalled."""


@dataclass(frozen=True, slots=True)
class Reason:
    code: str
    message: str


class HealthConsumer(ApiConsumer):
    needs_key = False

    async def answer(self, body: bytes) -> None:
        reasons = []
        entries: tuple[CatalogueEntry, ...] = ()
        snapshot = None
        try:
            entries = await self.gateway.catalogue.entries()
        except ApiError as error:
            reasons.append(Reason(error.code, error.message))
        try:
            snapshot = await self.gateway.liveness.snapshot()
        except ApiError as error:
            reasons.append(Reason(error.code, error.message))
        else:
            reasons += fleet_reasons(entries, snapshot)
        await self.respond(503 if reasons else 200, health_body(reasons, snapshot))


def fleet_reasons(entries: Sequence[CatalogueEntry], snapshot: FleetSnapshot) -> list[Reason]:
    """What keeps the fleet from answering, in the order of the catalogue."""
    if not snapshot.neurons:
        return [Reason("neuron_away", "No neuron is online.")]
    reasons = []
    for entry in entries:
        replicas = snapshot.replicas_of(entry.name)
        if reason := _model_reason(entry, replicas):
            reasons.append(reason)
    return reasons


def health_body(reasons: Sequence[Reason], snapshot: FleetSnapshot | None) -> bytes:
    neurons = snapshot.neurons if snapshot else ()
    return orjson.dumps(
        {
            "status": "unhealthy" if reasons else "ok",
            "reasons": [asdict(reason) for reason in reasons],
            "neurons": [
                {
                    "name": neuron.name,
                    "version": neuron.version,
                    "problems": neuron.problems,
                    "devices": [
                        {
                            "name": device.name,
                            "kind": device.kind,
                            "index": device.index,
                            "free_memory_bytes": device.free_memory_bytes,
                            "total_memory_bytes": device.total_memory_bytes,
                        }
                        for device in neuron.devices
                    ],
                    "replicas": [_replica_object(replica) for replica in neuron.replicas],
                }
                for neuron in neurons
            ],
        }
    )


def _model_reason(entry: CatalogueEntry, replicas: Sequence[ReplicaView]) -> Reason | None:
    """A pinned model must be there, and one that crashed must come back; others are loaded when
    somebody asks."""
    ready = [replica for replica in replicas if replica.status is ReplicaStatus.READY]
    if ready:
        stalled = [replica.neuron for replica in ready if _has_stalled(replica)]
        if len(stalled) < len(ready):
            return None
        return Reason("engine_stalled", f"{entry.name} makes no progress on {stalled[0]}.")
    statuses = sorted({replica.status.value for replica in replicas})
    if not entry.pinned and ReplicaStatus.RECOVERING.value not in statuses:
        return None
    return Reason("model_away", f"{entry.name} is {' and '.join(statuses) or 'not loaded'}.")


def _has_stalled(replica: ReplicaView) -> bool:
    age_s = replica.last_forward_age_s
    return replica.in_flight > 0 and age_s is not None and age_s > STALLED_AFTER_S


def _replica_object(replica: ReplicaView) -> dict[str, Any]:
    return {
        "model": replica.model,
        "status": replica.status.value,
        "in_flight": replica.in_flight,
        "queue_depth": replica.queue_depth,
        "kv_blocks_used": replica.kv_blocks_used,
        "kv_blocks_total": replica.kv_blocks_total,
        "decode_tokens_per_s": replica.decode_tokens_per_s,
        "last_forward_age_s": replica.last_forward_age_s,
        "num_restarts": replica.num_restarts,
        "failure": replica.failure.message if replica.failure else None,
    }
