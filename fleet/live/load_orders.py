"""Orders of loads: requests are routed only to replicas with a valid order.

    control ─▶ LoadSpec(order) ─▶ neuron ─▶ ReplicaState(order) ─▶ gateway, control: is it ours?

A neuron may report any replica in its heartbeat. Without this check a false report would attract
the model's requests, prompts included, and block real loads. An order is a signature that only
gateways and the control plane can make, for one model on one neuron; the load spec contains it.
Placement, pages and load jobs ignore a replica without one.
"""

from __future__ import annotations

import hmac
from functools import cache

import msgspec
from django.conf import settings

from inference.protocol.heartbeat import LoadState, NeuronHeartbeat

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
        """The heartbeat without replicas and held stages that lack a valid order, and their
        models."""

        others: list[str] = []

        def is_ordered(one: LoadState) -> bool:
            expected = self.order(neuron=heartbeat.name, model=one.model)
            is_valid = hmac.compare_digest(one.order.encode(), expected.encode())
            if not is_valid:
                others.append(one.model)
            return is_valid

        replicas = [state for state in heartbeat.replicas if is_ordered(state)]
        stages = [stage for stage in heartbeat.stages if is_ordered(stage)]
        if not others:
            return heartbeat, []
        return msgspec.structs.replace(heartbeat, replicas=replicas, stages=stages), others


@cache
def load_orders() -> LoadOrders:
    return LoadOrders(settings.SECRET_KEY)
