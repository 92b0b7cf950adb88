"""Which replicas were ordered: requests go to no other ones.

    control ─▶ LoadSpec(order) ─▶ neuron ─▶ ReplicaState(order) ─▶ gateway, control: is it ours?

A neuron may report any replica in its heartbeat. One that nobody ordered there would draw the
requests for its model, prompts included, and hold up real loads. An order is a mark that only
gateways and controls can make, for one model on one neuron; it travels with the load spec and
survives in it. A replica without it does not exist for placement, pages and load jobs.
"""

from __future__ import annotations

import hmac
from functools import cache

import msgspec
from django.conf import settings

from inference.protocol.heartbeat import NeuronHeartbeat

PURPOSE = b"helexa load order"
NUM_HEX = 32


class LoadOrders:
    """All processes of a fleet that sign share ``secret_key``, Django's."""

    def __init__(self, secret_key: str) -> None:
        self._secret = hmac.digest(secret_key.encode(), PURPOSE, "sha256")

    def order(self, *, neuron: str, model: str) -> str:
        """Hex digits. A neuron's name and a model's hold no line feed."""
        return hmac.digest(self._secret, f"{neuron}\n{model}".encode(), "sha256").hex()[:NUM_HEX]

    def ordered(self, heartbeat: NeuronHeartbeat) -> tuple[NeuronHeartbeat, list[str]]:
        """The heartbeat without the replicas that nobody ordered, and the models of those."""
        ordered, others = [], []
        for state in heartbeat.replicas:
            expected = self.order(neuron=heartbeat.name, model=state.model)
            if hmac.compare_digest(state.order.encode(), expected.encode()):
                ordered.append(state)
            else:
                others.append(state.model)
        if not others:
            return heartbeat, []
        return msgspec.structs.replace(heartbeat, replicas=ordered), others


@cache
def load_orders() -> LoadOrders:
    """Returns the orders that this process' fleet signs and checks."""
    return LoadOrders(settings.SECRET_KEY)
