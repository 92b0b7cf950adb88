"""A query's waiter is cancelled whenever the cancellation comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference.gateway import database
from inference.gateway.database import DatabaseThreads
from inference.wire.errors import ServiceUnavailableError
from tests.cases import each_case


@each_case("num_turns", range(6))
async def test_a_cancellation_that_comes_with_the_result(
    monkeypatch: pytest.MonkeyPatch, num_turns: int
) -> None:
    """``num_turns`` of the event loop between the two; after some the waiter has ended."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait() -> int:
        return await found

    def stand_in(query: object, **options: object) -> Callable[[], Awaitable[int]]:
        return wait

    monkeypatch.setattr(database, "DatabaseSyncToAsync", stand_in)
    waiter = asyncio.create_task(DatabaseThreads("test").query(lambda: 1))
    for _ in range(3):
        await asyncio.sleep(0)
    found.set_result(1)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    if waiter.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiter
    else:
        assert await waiter == 1


async def test_a_query_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> int:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(database, "DatabaseSyncToAsync", lambda query, **options: never)
    monkeypatch.setattr(database, "QUERY_TIMEOUT_S", 0.01)
    with pytest.raises(ServiceUnavailableError):
        await DatabaseThreads("test").query(lambda: 1)
