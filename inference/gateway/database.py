"""The gateway's threads for database work: off the event loop, every failure an ``ApiError``.

Each user has threads of its own, so that a slow page of the admin does not hold up requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from channels.db import DatabaseSyncToAsync
from django.db import DatabaseError, InterfaceError

from inference.supervised_threads import SupervisedPool
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

NUM_THREADS = 2
QUERY_TIMEOUT_S = 30.0

Result = TypeVar("Result")


class DatabaseThreads:
    def __init__(self, name: str) -> None:
        self._threads = SupervisedPool(NUM_THREADS, thread_name_prefix=name)

    async def query(self, query: Callable[[], Result]) -> Result:
        """Raises ``ServiceUnavailableError`` (database_unavailable)."""
        call = DatabaseSyncToAsync(query, thread_sensitive=False, executor=self._threads)
        try:
            # wait_for, before Python 3.12, loses a cancellation that comes with the result.
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                result: Result = await call()
        except (DatabaseError, InterfaceError, TimeoutError) as error:
            logger.warning("the database does not answer: %s", error)
            raise unavailable() from error
        return result


def unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "database_unavailable", "The database does not answer; try again shortly."
    )
