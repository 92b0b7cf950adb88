"""Limits that two connections use at once, over a real Redis and by its own clock."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import redis.asyncio

from metering.errors import RateLimitedError
from metering.limits.rate_limiter import RateLimiter
from metering.limits.state import LimitKind, LimitState
from metering.principal import RateLimits
from tests.metering.limits_support import connect, limit_keys, link_to, principal


@pytest_asyncio.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with connect(redis_url) as made:
        yield made


@pytest_asyncio.fixture
async def gateways(redis_url: str) -> AsyncIterator[list[RateLimiter]]:
    """Two, each with a connection of its own."""
    links = [link_to(redis_url), link_to(redis_url)]
    yield [RateLimiter(link) for link in links]
    for link in links:
        await link.aclose()


async def test_two_gateways_in_bursts_stay_under_the_limits(gateways: list[RateLimiter]) -> None:
    """The clock is Redis' own, whatever time the test takes: in any stretch of time no more than a
    minute's limit and what refilled meanwhile."""
    limits = RateLimits(requests_per_minute=30, tokens_per_minute=3000)
    who = principal(key=limits, account=RateLimits(tokens_per_minute=2500))
    admitted: list[tuple[int, int]] = []

    async def request(gateway: RateLimiter, request_id: str, tokens: int) -> None:
        try:
            state = await gateway.acquire(who, request_id, tokens)
        except RateLimitedError:
            return
        admitted.append((state.now_ms, tokens))

    chance = random.Random(7)
    for burst in range(5):
        await asyncio.gather(
            *(
                request(gateways[index % 2], f"{burst}-{index}", chance.randint(1, 200))
                for index in range(40)
            )
        )
    assert admitted
    admitted.sort()
    for first, (since_ms, _) in enumerate(admitted):
        tokens = 0
        for num_requests, (at_ms, cost) in enumerate(admitted[first:], start=1):
            tokens += cost
            elapsed_ms = at_ms - since_ms
            assert num_requests * 60_000 <= 30 * (60_000 + elapsed_ms)
            assert tokens * 60_000 <= 2500 * (60_000 + elapsed_ms)
    # And no less than there is: the last burst left less than its biggest request needs, or the
    # requests' own limit is used up.
    assert len(admitted) >= 30 or sum(cost for _, cost in admitted) > 2500 - 200


async def test_slots_are_never_more_than_there_are(
    client: redis.asyncio.Redis, gateways: list[RateLimiter]
) -> None:
    who = principal(key=RateLimits(max_concurrent=3), account=RateLimits(max_concurrent=5))
    running: set[str] = set()
    most = 0

    async def caller(gateway: RateLimiter, name: str) -> None:
        """Asks until it was served three times, which takes released slots."""
        nonlocal most
        served = 0
        for attempt in itertools.count():
            request_id = f"{name}-{attempt}"
            try:
                await gateway.acquire(who, request_id, 1)
            except RateLimitedError as error:
                assert (error.kind, error.subject) == (LimitKind.CONCURRENCY, "hx-abc")
                continue
            running.add(request_id)
            most, served = max(most, len(running)), served + 1
            assert len(running) <= 3
            await asyncio.sleep(0)
            while most < 3:  # the first ones keep their slots until all are taken
                await asyncio.sleep(0.001)
            running.discard(request_id)
            gateway.release(request_id)
            if served == 3:
                return

    await asyncio.gather(*(caller(gateways[index % 2], str(index)) for index in range(10)))
    assert most == 3
    for gateway in gateways:
        await gateway.flush()
    assert await limit_keys(client) == []


async def test_a_caller_that_leaves_before_the_answer_holds_nothing(
    client: redis.asyncio.Redis, gateways: list[RateLimiter]
) -> None:
    limiter, _ = gateways
    who = principal(account=RateLimits(tokens_per_minute=1000, max_concurrent=1))
    await limiter.acquire(who, "first", 0)
    limiter.release("first")
    await limiter.flush()
    await client.client_pause(60_000, all=False)
    acquiring = asyncio.create_task(limiter.acquire(who, "gone", 1000))
    await asyncio.sleep(0.1)
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    await client.client_unpause()
    await limiter.flush()
    state: LimitState = await limiter.acquire(who, "next", 990)
    assert state.tokens is not None
