"""Orders of loads: requests are routed only to replicas with a valid order.

    control ─▶ LoadSpec(order) ─▶ neuron ─▶ ReplicaState(order) ─▶ gateway, control: is it ours?

A neuron may report any replica in its heartbeat. Without this check a false report would attract
the model's requests, prompts included, and block real loads. An order is a signature that only
gateways and the control plane can make, for one model on one neuron; it is stored in the load spec.
Placement, pages and load jobs ignore a replica without one.
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
        """The heartbeat without replicas that lack a valid order, and the models of those."""
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
