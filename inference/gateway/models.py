"""GET /v1/models and /v1/models/{id}: the catalogue, with what the live fleet says of it."""

from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from fleet.placement import Reject, place
from fleet.snapshot import FleetSnapshot
from inference.gateway.consumers import ApiConsumer
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.openai_models import ModelCard, model_body, model_list_body

BEST_FIRST = (
    ReplicaStatus.READY,
    ReplicaStatus.RECOVERING,
    ReplicaStatus.LOADING,
    ReplicaStatus.DRAINING,
    ReplicaStatus.FAILED,
)
UNLOADED = "unloaded"


class ModelListConsumer(ApiConsumer):
    async def answer(self, body: bytes) -> None:
        entries = await self.gateway.catalogue.entries()
        snapshot = await self.gateway.liveness.snapshot()
        cards = [model_card(entry, snapshot) for entry in entries]
        await self.respond(200, model_list_body(cards))


class ModelConsumer(ApiConsumer):
    """By name or alias; the card's id is always the catalogue's name."""

    async def answer(self, body: bytes) -> None:
        name = self.scope["url_route"]["kwargs"]["name"]
        entry = await self.gateway.catalogue.find(name)
        snapshot = await self.gateway.liveness.snapshot()
        await self.respond(200, model_body(model_card(entry, snapshot)))


def model_card(entry: CatalogueEntry, snapshot: FleetSnapshot) -> ModelCard:
    replicas = snapshot.replicas_of(entry.name)
    ready = [replica for replica in replicas if replica.status is ReplicaStatus.READY]
    statuses = [replica.status for replica in replicas]
    limits = [replica.context_tokens for replica in ready if replica.context_tokens is not None]
    return ModelCard(
        id=entry.name,
        created_unix_s=entry.created_unix_s,
        description=entry.description,
        aliases=entry.aliases,
        status=min(statuses, key=BEST_FIRST.index).value if statuses else UNLOADED,
        locations=tuple(replica.neuron for replica in ready),
        feasible_on=_feasible_on(entry, snapshot),
        # A request may land on any of them, so the least is what holds everywhere.
        context_tokens=min(limits, default=None),
    )


def _feasible_on(entry: CatalogueEntry, snapshot: FleetSnapshot) -> tuple[str, ...]:
    """Where placement would not refuse it, were this the only neuron."""
    return tuple(
        neuron.name
        for neuron in snapshot.neurons
        if not isinstance(place(entry, FleetSnapshot(neurons=(neuron,))), Reject)
    )
