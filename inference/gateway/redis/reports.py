"""Reports of this gateway in Redis: refused callers, for pages that list them with reasons, and the
models that requests wait for, for the control. Each class belongs to one event loop."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping

import redis
import redis.asyncio

from inference.gateway.metrics.requests import CODE_PATTERN, OTHER
from inference.gateway.request.outcome import RequestOutcome
from inference.protocol import keys
from inference.protocol.heartbeat import WaitingModel, WaitingReport, encode_waiting_report
from inference.protocol.refusals import (
    COUNTED_BY_KEY,
    HOUR_S,
    KEPT_HOURS,
    Refused,
    encode_field,
    refusals_key,
)
from inference.redis_link import redis_unavailable
from metering.ledger.entries import Outcome


class QueueDemandReporter:
    def __init__(self, client: redis.asyncio.Redis, gateway_id: str) -> None:
        self._redis = client
        self._gateway_id = gateway_id
        self._beat = 0
        self._is_published = False

    async def publish(self, waiting: Mapping[str, WaitingModel]) -> None:
        """Sends nothing while no request waits. Raises ``ServiceUnavailableError``."""
        if not waiting and not self._is_published:
            return
        self._beat += 1
        report = encode_waiting_report(WaitingReport(beat=self._beat, models=dict(waiting)))
        try:
            if waiting:
                await self._redis.hset(keys.WAITING, self._gateway_id, report)
            else:
                await self._redis.hdel(keys.WAITING, self._gateway_id)
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        self._is_published = bool(waiting)

    async def withdraw(self) -> None:
        if self._is_published:
            try:
                await self._redis.hdel(keys.WAITING, self._gateway_id)
            except (redis.RedisError, OSError) as error:
                logger.info("what waited here is not withdrawn: %s", error)


logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
MAX_COUNTED = 1000


class RefusalCounts:
    def __init__(self) -> None:
        self._counts: Counter[Refused] = Counter()

    def observe(self, outcome: RequestOutcome) -> None:
        settle = outcome.settle
        if outcome.kind is not Outcome.REFUSED and settle.outcome not in COUNTED_BY_KEY:
            return
        code = settle.outcome if CODE_PATTERN.fullmatch(settle.outcome) else OTHER
        key = settle.key if code in COUNTED_BY_KEY else ""
        self._count(Refused(code, settle.account, key, outcome.error_cause))

    def observe_connection(self, code: str) -> None:
        self._count(Refused(code, ""))

    def _count(self, refused: Refused) -> None:
        if refused in self._counts or len(self._counts) < MAX_COUNTED:
            self._counts[refused] += 1

    async def flush(self, client: redis.asyncio.Redis) -> None:
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        key = refusals_key(time.time())
        pipeline = client.pipeline(transaction=False)
        for refused, number in counts.items():
            pipeline.hincrby(key, encode_field(refused), number)
        pipeline.expire(key, KEPT_HOURS * HOUR_S)
        try:
            await pipeline.execute()
        except (redis.RedisError, OSError) as error:
            logger.info("%d refusals are not counted: %s", counts.total(), error)
