"""How long Redis has not answered, and the moment from which requests stop waiting for it.

    answered ─▶ unanswered … ─┬─ answered       nothing was lost
                              └─ after limit_s  on_given_up, once

Also how the gateway refuses a request while Redis does not answer, and how often it tries again.
Belongs to one event loop; must not know Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from inference.backoff import Backoff
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)


class RedisOutage:
    def __init__(self, limit_s: float, on_given_up: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._on_given_up = on_given_up
        self._answered_s = self._loop.time()
        self._is_answering = True
        self._timer: asyncio.TimerHandle | None = None

    def answered(self) -> None:
        if not self._is_answering:
            away_s = self._loop.time() - self._answered_s
            logger.warning("Redis answers again, after %.1f s", away_s)
        self._answered_s = self._loop.time()
        self._is_answering = True
        self.close()

    def unanswered(self, error: Exception) -> None:
        if not self._is_answering:
            return
        logger.warning("Redis does not answer (%s); waiting %.0f s for it", error, self._limit_s)
        self._is_answering = False
        self._timer = self._loop.call_at(self._answered_s + self._limit_s, self._give_up)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        logger.error("Redis has not answered for %.0f s: open requests fail", self._limit_s)
        self._on_given_up()


REDIS_BACKOFF = Backoff(first_s=0.1, max_s=1.0)


def redis_unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError("redis_unavailable", "Redis does not answer; try again shortly.")
