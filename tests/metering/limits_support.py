"""Who is limited, the limiter's script by a clock that a test sets, and what it leaves in Redis."""

from __future__ import annotations

import redis
import redis.asyncio

from inference.redis_link import LuaScript, RedisLink
from metering.limits.rate_limiter import SCRIPT
from metering.principal import Principal, RateLimits

CLOCK_KEY = "test:clock"
START_MS = 1_795_345_071_058

assert SCRIPT.text.count("redis.call('TIME')") == 1
CLOCKED_SCRIPT = LuaScript(
    SCRIPT.text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK_KEY}', 0, 1)")
)
"""Redis' own TIME has a list's place: seconds and microseconds."""


def principal(*, key: RateLimits | None = None, account: RateLimits | None = None) -> Principal:
    return Principal(
        account="lab",
        key="hx-abc",
        key_limits=key or RateLimits(),
        account_limits=account or RateLimits(),
    )


def connect(url: str) -> redis.asyncio.Redis:
    """What a test reads and changes Redis with."""
    return redis.asyncio.Redis.from_url(url, protocol=2, socket_timeout=60)


def link_to(url: str) -> RedisLink:
    """Connects as a gateway does."""
    return RedisLink(url, timeout_s=60.0)


async def set_clock(client: redis.asyncio.Redis, now_ms: int) -> None:
    seconds, milliseconds = divmod(now_ms, 1000)
    async with client.pipeline() as pipeline:
        pipeline.delete(CLOCK_KEY)
        pipeline.rpush(CLOCK_KEY, seconds, milliseconds * 1000 + 999)
        await pipeline.execute()


async def limit_keys(client: redis.asyncio.Redis) -> list[bytes]:
    return sorted([key async for key in client.scan_iter("helexa:limit:*")])


async def contents(client: redis.asyncio.Redis) -> dict[bytes, bytes]:
    """Every count and lease, byte for byte."""
    return {key: await client.dump(key) for key in await limit_keys(client)}
