"""What becomes of the requests of gateways that died: they are cancelled, and settled by others."""

from __future__ import annotations

import logging
import time

from inference.neuron.events.publisher import EventPublisher
from inference.neuron.events.usage_report_book import UsageReportBook
from inference.neuron.process.heartbeat import GatewayWatch
from inference.neuron.requests.request_table import RequestTable

log = logging.getLogger(__name__)


class DeadGateways:
    def __init__(
        self,
        watch: GatewayWatch,
        table: RequestTable,
        reports: UsageReportBook,
        publisher: EventPublisher,
    ) -> None:
        self._watch = watch
        self._table = table
        self._reports = reports
        self._publisher = publisher

    def interrupted(self) -> None:
        """A beat did not reach Redis."""
        self._watch.interrupted()

    def drop(self) -> None:
        """Cancels their open requests and makes the usage reports due, also those of requests that
        ended not long ago. Once per beat. Raises ``redis.RedisError``."""
        watched = self._table.gateway_ids() | self._reports.gateway_ids()
        for gateway_id in self._watch.dead(watched):
            num_dropped = self._table.forget_gateway(gateway_id)
            num_ended = self._reports.gateway_died(gateway_id, now_unix_s=time.time())
            # A gateway that was stopped has cancelled its own requests, so nothing went wrong.
            log.log(
                logging.WARNING if num_dropped else logging.INFO,
                "gateway %s is gone: cancelled its %d requests; %d more had ended not long ago",
                gateway_id,
                num_dropped,
                num_ended,
            )
            self._publisher.retire(gateway_id)
