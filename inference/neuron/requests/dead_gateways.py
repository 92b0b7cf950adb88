"""Cancels the requests of gateways that died. Their bills are in the gateways' own files."""

from __future__ import annotations

import logging

from inference.neuron.events.publisher import EventPublisher
from inference.neuron.process.heartbeat import GatewayWatch
from inference.neuron.requests.request_table import RequestTable

log = logging.getLogger(__name__)


class DeadGateways:
    def __init__(self, watch: GatewayWatch, table: RequestTable, publisher: EventPublisher) -> None:
        self._watch = watch
        self._table = table
        self._publisher = publisher

    def interrupted(self) -> None:
        """A beat did not reach Redis."""
        self._watch.interrupted()

    def drop(self) -> None:
        """Cancels their open requests. Once per beat. Raises ``redis.RedisError``."""
        watched = self._table.gateway_ids() | self._publisher.gateway_ids()
        for gateway_id in self._watch.dead(watched):
            num_dropped = self._table.forget_gateway(gateway_id)
            # A gateway that was stopped has cancelled its own requests, so nothing went wrong.
            level = logging.WARNING if num_dropped else logging.INFO
            log.log(level, "gateway %s is gone: cancelled its %d requests", gateway_id, num_dropped)
            self._publisher.retire(gateway_id)
