"""GET /health: 200 while this gateway can answer some request, else 503. Needs no key.

One offline model does not take a gateway out of a balancer's rotation: it is unhealthy when Redis
does not answer, no neuron is online, or no model could be served. The causes, with their hosts, are
shown to keys that may read the fleet; others see only whether it is healthy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import orjson

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Reject, place
from helexa_site.data_directory import INSTANCE_HEADER, instance_id
from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.protocol.heartbeat import ReplicaStatus
from inference.supervised_threads import thread_problems
from inference.wire.errors import ApiError
from inference.wire.openapi import document_bytes
from metering.principal import Scope

STALLED_AFTER_S = 60.0
DEVICE_FIELDS = (
    *("name", "kind", "index"),
    *("free_memory_bytes", "total_memory_bytes", "installed_memory_bytes"),
)
REPLICA_FIELDS = (
    *("model", "in_flight", "queue_depth", "kv_blocks_used", "kv_blocks_total"),
    *("decode_tokens_per_s", "last_forward_age_s", "num_restarts"),
)


openapi_document = cache(document_bytes)
Reason = dict[str, str]


def reason(code: str, message: str) -> Reason:
    return {"code": code, "message": message}


class HealthConsumer(ApiConsumer):
    error_outcome = "unhealthy"

    async def health(self, body: bytes) -> None:
        reasons = []
        entries: tuple[CatalogueEntry, ...] | None = None
        snapshot = None
        try:
            entries = await self.gateway.catalogue.entries()
        except ApiError as error:
            reasons.append(reason(error.code, error.message))
        try:
            snapshot = await self.gateway.liveness.snapshot()
        except ApiError as error:
            reasons.append(reason(error.code, error.message))
        else:
            reasons += fleet_reasons(entries or (), snapshot)
        reasons += [reason("thread_broke", f"This gateway: {one}.") for one in thread_problems()]
        if problem := self.gateway.accounting.problem:
            reasons.append(reason("bills_not_spooled", f"This gateway: {problem}."))
        left_out = self.gateway.upstreams.left_out()
        reasons += upstream_reasons(entries or (), left_out)
        serves = snapshot is not None and can_serve(entries, snapshot, left_out)
        knows = await self._may_see_causes()
        brief = orjson.dumps({"status": "ok" if serves else "unhealthy"})
        found = health_body(serves, reasons, snapshot) if knows else brief
        instance = instance_id(self.gateway.config.data_dir)
        headers = [(INSTANCE_HEADER.encode(), instance.encode())] if instance else []
        await self.respond(200 if serves else 503, found, headers)

    async def openapi(self, body: bytes) -> None:
        await self.respond(200, openapi_document())

    async def _may_see_causes(self) -> bool:
        try:
            await self.gateway.identifier.identify(self.scope["headers"], scope=Scope.FLEET_READ)
        except ApiError:
            return False
        return True


def can_serve(
    entries: Sequence[CatalogueEntry] | None,
    snapshot: FleetSnapshot,
    left_out: Collection[str] = (),
) -> bool:
    """Judges upstreams by their last requests; none is sent for this. ``entries`` ``None``: the
    catalogue is unknown. An empty one is no failure."""
    if any(_upstreams_of(entry) - set(left_out) for entry in entries or ()):
        return True
    if not snapshot.neurons:
        return False
    replicas = [
        replica for neuron in snapshot.neurons if neuron.is_ready for replica in neuron.replicas
    ]
    if any(r.status is ReplicaStatus.READY and not _has_stalled(r) for r in replicas):
        return True
    if entries is None:
        return False
    own = [entry for entry in entries if entry.upstream_model is None]
    return not entries or any(not isinstance(place(entry, snapshot), Reject) for entry in own)


def upstream_reasons(entries: Sequence[CatalogueEntry], left_out: Collection[str]) -> list[Reason]:
    names = set[str]().union(*(_upstreams_of(entry) for entry in entries)) & set(left_out)
    return [
        reason("upstream_unavailable", f"The upstream {name} was unavailable and is left out.")
        for name in sorted(names)
    ]


def _upstreams_of(entry: CatalogueEntry) -> set[str]:
    return {name for name in entry.upstream_names if entry.upstream_named(name) is not None}


def fleet_reasons(entries: Sequence[CatalogueEntry], snapshot: FleetSnapshot) -> list[Reason]:
    if not snapshot.neurons:
        return [reason("neuron_away", "No neuron is online.")]
    reasons = [
        reason("thread_broke", f"{neuron.name}: {problem}.")
        for neuron in snapshot.neurons
        for problem in neuron.thread_problems
    ]
    for entry in entries:
        replicas = snapshot.replicas_of(entry.name)
        if found := _model_reason(entry, replicas):
            reasons.append(found)
    return reasons


def health_body(serves: bool, reasons: Sequence[Reason], snapshot: FleetSnapshot | None) -> bytes:
    neurons = snapshot.neurons if snapshot else ()
    status = "unhealthy" if not serves else "degraded" if reasons else "ok"
    return orjson.dumps(
        {
            "status": status,
            "reasons": reasons,
            "neurons": [
                {
                    "name": neuron.name,
                    "version": neuron.version,
                    "problems": (*neuron.problems, *neuron.thread_problems),
                    "is_ready": neuron.is_ready,
                    "devices": [
                        {field: getattr(device, field) for field in DEVICE_FIELDS}
                        for device in neuron.devices
                    ],
                    "replicas": [_replica_object(replica) for replica in neuron.replicas],
                }
                for neuron in neurons
            ],
        }
    )


def _model_reason(entry: CatalogueEntry, replicas: Sequence[ReplicaView]) -> Reason | None:
    ready = [replica for replica in replicas if replica.status is ReplicaStatus.READY]
    if ready:
        stalled = [replica.neuron for replica in ready if _has_stalled(replica)]
        if len(stalled) < len(ready):
            return None
        return reason("engine_stalled", f"{entry.name} makes no progress on {stalled[0]}.")
    statuses = sorted({replica.status.value for replica in replicas})
    if not entry.is_kept_loaded and ReplicaStatus.RECOVERING.value not in statuses:
        return None
    return reason("model_away", f"{entry.name} is {' and '.join(statuses) or 'not loaded'}.")


def _has_stalled(replica: ReplicaView) -> bool:
    age_s = replica.last_forward_age_s
    return replica.in_flight > 0 and age_s is not None and age_s > STALLED_AFTER_S


def _replica_object(replica: ReplicaView) -> dict[str, Any]:
    shown = {field: getattr(replica, field) for field in REPLICA_FIELDS}
    failure = replica.failure.message if replica.failure else None
    return {"status": replica.status.value, **shown, "failure": failure}
