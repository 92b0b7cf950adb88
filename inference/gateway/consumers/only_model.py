"""The model that a request means which names none."""

from __future__ import annotations

from inference.gateway.gateway import Gateway
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.errors import MissingParameterError
from metering.principal import Principal


async def only_model(gateway: Gateway, who: Principal) -> str:
    """The one that is loaded of those that the caller may use, or the one that is offered. Raises
    ``MissingParameterError`` where there are none or several."""
    names = {entry.name for entry in await gateway.catalogue.entries() if who.may_use(entry.name)}
    snapshot = await gateway.liveness.snapshot()
    replicas = [replica for neuron in snapshot.neurons for replica in neuron.replicas]
    loaded = {one.model for one in replicas if one.status is ReplicaStatus.READY} & names
    for found in (loaded, names):
        if len(found) == 1:
            return found.pop()
    raise MissingParameterError("model")
