"""Publishes the models that requests wait for at this gateway, for the control."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import redis
import redis.asyncio

from inference.protocol import keys
from inference.protocol.waiting import WaitingModel, WaitingReport, encode_waiting_report
from inference.redis_link import redis_unavailable

logger = logging.getLogger(__name__)


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
