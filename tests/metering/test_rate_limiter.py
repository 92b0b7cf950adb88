"""Limits over a real Redis by a clock that the tests set, what counts mean, and the headers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import redis.asyncio

from inference.redis_link import LuaScript, RedisLink
from metering.errors import LimitsUnavailableError, RateLimitedError
from metering.limits import (
    PARTS,
    Counts,
    Subject,
    SubjectKind,
    anthropic_headers,
    duration,
    limit_state,
    openai_headers,
    refusal,
    refuse_impossible,
    subjects_of,
)
from metering.principal import NO_LIMITS, LimitKind, LimitState, LimitStatus, Principal, RateLimits
from metering.rate_limiter import LEASE_S, SCRIPT, RateLimiter
from tests.cases import each_case

LEASE_MS = int(LEASE_S * 1000)
CLOCK_KEY = "test:clock"
START_MS = 1_795_345_071_058
NONE = RateLimits()

assert SCRIPT.text.count("redis.call('TIME')") == 1
CLOCKED_SCRIPT = LuaScript(
    SCRIPT.text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK_KEY}', 0, 1)")
)
"""Redis' own TIME has a list's place: seconds and microseconds."""


def principal(*, key: RateLimits = NONE, account: RateLimits = NONE) -> Principal:
    return Principal(account="lab", key="hx-abc", key_limits=key, account_limits=account)


async def set_clock(client: redis.asyncio.Redis, now_ms: int) -> None:
    seconds, milliseconds = divmod(now_ms, 1000)
    async with client.pipeline() as pipeline:
        pipeline.delete(CLOCK_KEY)
        pipeline.rpush(CLOCK_KEY, seconds, milliseconds * 1000 + 999)
        await pipeline.execute()


async def contents(client: redis.asyncio.Redis) -> dict[bytes, bytes]:
    """Every count and lease, byte for byte."""
    keys = [key async for key in client.scan_iter("helexa:limit:*")]
    return {key: await client.dump(key) for key in sorted(keys)}


@pytest_asyncio.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2, socket_timeout=60) as made:
        yield made


@pytest_asyncio.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    made = RedisLink(redis_url, timeout_s=60.0)
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def clocked(client: redis.asyncio.Redis, link: RedisLink) -> RateLimiter:
    """Returns a limiter by a clock that stands until it is set."""
    await set_clock(client, START_MS)
    return RateLimiter(link, script=CLOCKED_SCRIPT)


async def test_what_is_charged_is_corrected_and_extended_while_it_runs(
    clocked: RateLimiter, client: redis.asyncio.Redis
) -> None:
    who = principal(
        key=RateLimits(tokens_per_minute=1000), account=RateLimits(tokens_per_minute=5000)
    )
    states = [
        await clocked.acquire(who, f"r{number}", 100, most=most)
        for number, most in enumerate((2000, 2000, 150))
    ]  # without a named length, half of what is left
    assert [state.tokens_charged for state in states] == [100 + 450, 100 + 175, 100 + 37]
    with pytest.raises(RateLimitedError) as refused:
        await clocked.acquire(who, "r3", 100, most=2000)
    assert refused.value.state is not None and refused.value.state.tokens is not None
    assert refused.value.state.tokens.remaining == 1000 - 550 - 275 - 137
    for used in (120, 120):  # a repetition changes nothing
        clocked.correct("r0", used)
    clocked.release("r0")
    assert (await clocked.acquire(who, "r3", 100)).tokens_charged == 100
    await client.delete(*await contents(client))
    who = principal(key=RateLimits(requests_per_minute=1, tokens_per_minute=1000, max_concurrent=1))
    await clocked.acquire(who, "r1", 400)
    await clocked.extend("r1", 300)  # by its tokens alone: its request and its lease are counted
    await set_clock(client, START_MS + 1000)
    before = await contents(client)
    with pytest.raises(RateLimitedError) as refused:
        await clocked.extend("r1", 301)
    assert refused.value.kind is LimitKind.TOKENS and refused.value.retry_after_s is None
    assert await contents(client) == before
    clocked.correct("r1", 320)
    clocked.release("r1")
    await clocked.extend("r1", 300)  # it holds nothing any more
    clocked.correct("r1", 0)  # too late
    clocked.release("r1")
    await set_clock(client, START_MS + 60_000)
    assert (await clocked.acquire(who, "r2", 1000)).tokens_charged == 1000


async def test_slots_of_the_dead_come_free_and_the_living_have_theirs_after_redis_was_lost(
    clocked: RateLimiter, client: redis.asyncio.Redis, link: RedisLink
) -> None:
    who = principal(account=RateLimits(max_concurrent=2))
    alive = RateLimiter(link, script=CLOCKED_SCRIPT)
    await clocked.acquire(who, "dead", 1)
    await alive.acquire(who, "alive", 1)
    for now_ms in (START_MS + LEASE_MS - 1, START_MS + LEASE_MS):
        await set_clock(client, now_ms)
        if now_ms < START_MS + LEASE_MS:
            await alive.renew()
        else:
            await alive.acquire(who, "next", 1)
        with pytest.raises(RateLimitedError):
            await alive.acquire(who, "one more", 1)
    for request_id in ("alive", "next"):
        alive.release(request_id)
    await alive.flush()
    assert await contents(client) == {}
    who = principal(key=RateLimits(max_concurrent=600), account=RateLimits(max_concurrent=700))
    for index in range(600):
        await alive.acquire(who, str(index), 1)
    await client.flushall()
    await client.script_flush()
    await set_clock(client, START_MS + 5)
    await alive.renew()
    assert await client.zcard("helexa:limit:key:hx-abc:open") == 600
    with pytest.raises(RateLimitedError):
        await alive.acquire(who, "one more", 1)
    alive.release("17")
    await alive.acquire(who, "one more", 1)


async def test_a_refused_request_is_charged_nowhere(
    clocked: RateLimiter, client: redis.asyncio.Redis
) -> None:
    for key, account, kind in (
        ({"requests_per_minute": 9}, {"requests_per_minute": 2}, LimitKind.REQUESTS),
        ({"tokens_per_minute": 99}, {"tokens_per_minute": 25}, LimitKind.TOKENS),
        ({"max_concurrent": 9}, {"max_concurrent": 2}, LimitKind.CONCURRENCY),
        ({"requests_per_minute": 2, "max_concurrent": 3}, {}, LimitKind.REQUESTS),
    ):
        await client.delete(*await contents(client), "none")
        who = principal(key=RateLimits(**key), account=RateLimits(**account))
        await clocked.acquire(who, "r1", 10)
        await clocked.acquire(who, "r2", 10)
        before = await contents(client)
        with pytest.raises(RateLimitedError) as refused:
            await clocked.acquire(who, "r3", 10)
        assert refused.value.kind is kind
        assert await contents(client) == before


async def test_faults_and_callers_that_leave_charge_and_hold_nothing(
    clocked: RateLimiter, client: redis.asyncio.Redis, tmp_path_factory: pytest.TempPathFactory
) -> None:
    who = principal(account=RateLimits(tokens_per_minute=1000, max_concurrent=1))
    acquiring = asyncio.create_task(clocked.acquire(who, "gone", 1000))
    await asyncio.sleep(0)  # the script is sent
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    await clocked.flush()
    assert (await clocked.acquire(who, "next", 1000)).tokens_charged == 1000
    await client.delete(*await contents(client))
    who = principal(key=RateLimits(requests_per_minute=9), account=RateLimits(max_concurrent=9))
    await client.set("helexa:limit:account:lab:open", b"not a sorted set", ex=60)
    before = await contents(client)
    with pytest.raises(LimitsUnavailableError):
        await clocked.acquire(who, "r1", 10)
    await clocked.flush()
    assert await contents(client) == before, "a script that fails half way"
    nowhere = tmp_path_factory.mktemp("redis") / "none.sock"
    limiter = RateLimiter(RedisLink(f"unix://{nowhere}", timeout_s=60.0))
    for request_id in ("r1", "r2"):
        with pytest.raises(LimitsUnavailableError):
            await limiter.acquire(who, request_id, 1)
    await limiter.flush()
    assert await limiter.acquire(principal(), "r3", 1) is NO_LIMITS


def debt(charges: list[list[int]], per_minute: int, now_ms: int) -> int:
    """What a bucket owes that takes ``charges``, each a time and tokens, and drains ``per_minute``
    parts a millisecond."""
    owed, at_ms = 0, 0
    for charged_ms, tokens in charges:
        owed = max(0, owed - per_minute * (charged_ms - at_ms)) + tokens * PARTS
        at_ms = charged_ms
    return max(0, owed - per_minute * (now_ms - at_ms))


@each_case("seed", range(6))
async def test_what_is_owed_is_what_was_used_had_it_been_known_at_once(
    link: RedisLink, client: redis.asyncio.Redis, seed: int
) -> None:
    """To a second's drain: the script keeps one sum a second. Two gateways share the count."""
    await client.flushall()
    chance, per_minute, now_ms = random.Random(seed), (70, 997)[seed % 2], START_MS
    gateways = [RateLimiter(link, script=CLOCKED_SCRIPT) for _ in range(2)]
    who = principal(account=RateLimits(tokens_per_minute=per_minute))
    charges: list[list[int]] = []
    running: dict[str, tuple[RateLimiter, list[int]]] = {}
    for number in range(80):
        now_ms += chance.choice([0, 0, chance.randrange(2500), 20_000, 62_500])
        await set_clock(client, now_ms)
        exact = debt(charges, per_minute, now_ms)
        tokens, gateway = chance.randrange(1, per_minute), chance.choice(gateways)
        try:
            await gateway.acquire(who, f"r{number}", tokens)
        except RateLimitedError:
            assert exact + 1000 * per_minute + tokens * PARTS > per_minute * PARTS
        else:
            assert exact + tokens * PARTS <= per_minute * PARTS
            charges.append([now_ms, tokens])
            running[f"r{number}"] = gateway, charges[-1]
        if running and chance.random() < 0.7:
            name = chance.choice(sorted(running))
            gateway, bound = running.pop(name)
            used = int(bound[1] * chance.choice([0, 0.1, 0.9, 1.2]))
            gateway.correct(name, used)
            gateway.release(name)
            await gateway.flush()
            if used > bound[1]:
                charges.append([now_ms, used - bound[1]])
            else:
                bound[1] = used
        found = await client.hmget("helexa:limit:account:lab", ["tokens", "tokens_at_ms"])
        stored, at_ms = (int(one or 0) for one in found)
        owed = max(0, stored - per_minute * (now_ms - at_ms))
        exact = debt(charges, per_minute, now_ms)
        assert exact <= owed <= exact + 1000 * per_minute


KEY = Subject(SubjectKind.KEY, "hx-abc", RateLimits(requests_per_minute=60, tokens_per_minute=1000))
ACCOUNT = Subject(SubjectKind.ACCOUNT, "lab", RateLimits(tokens_per_minute=600, max_concurrent=4))


def test_the_tighter_and_longer_limit_is_reported_and_what_never_fits_refused_for_good() -> None:
    counts = [Counts(3 * PARTS, 700 * PARTS, 0), Counts(0, 100 * PARTS, 1)]
    state = limit_state([KEY, ACCOUNT], counts, now_ms=5)
    assert state.requests == LimitStatus(limit=60, remaining=57, reset_ms=3000)
    assert state.tokens == LimitStatus(limit=1000, remaining=300, reset_ms=42_000)
    counts = [Counts(0, 200 * PARTS, 0), Counts(0, 500 * PARTS + 1, 1)]
    state = limit_state([KEY, ACCOUNT], counts, now_ms=5)
    assert state.tokens == LimitStatus(limit=600, remaining=99, reset_ms=50_001)
    owed = limit_state([KEY], [Counts(0, 1500 * PARTS, 0)], now_ms=5)  # more than the bound
    assert owed.tokens == LimitStatus(limit=1000, remaining=0, reset_ms=90_000)
    none, full = Counts(0, 0, 0), Counts(0, 1000 * PARTS, 0)
    for counts, tokens, kind, subject, retry_after_s in (
        # A whole minute of requests is owed: one more fits when one has drained.
        ([Counts(60 * PARTS, 0, 0), none], 1, LimitKind.REQUESTS, "hx-abc", 1.0),
        ([Counts(59 * PARTS + 30, 0, 0), none], 1, LimitKind.REQUESTS, "hx-abc", 0.001),
        # The key's 1,000 have room in 6 s, the account's 600 in 30 s.
        ([full, Counts(0, 600 * PARTS, 0)], 100, LimitKind.TOKENS, "lab", 10.0),
        ([none, Counts(0, 0, 4)], 1, LimitKind.CONCURRENCY, "lab", 1.0),
    ):
        error = refusal([KEY, ACCOUNT], counts, tokens=tokens, now_ms=7)
        assert (error.kind, error.subject, error.retry_after_s) == (kind, subject, retry_after_s)
        assert error.state is not None and error.state.now_ms == 7
        assert subject in str(error)
    refuse_impossible([KEY, ACCOUNT], 600)
    with pytest.raises(RateLimitedError) as refused:
        refuse_impossible([KEY, ACCOUNT], 601)
    error = refused.value
    assert (error.kind, error.subject, error.limit) == (LimitKind.TOKENS, "lab", 600)
    assert error.retry_after_s is None and "601" in str(error) and "never" in str(error)
    for limits in (RateLimits(requests_per_minute=0), RateLimits(max_concurrent=0)):
        with pytest.raises(RateLimitedError) as refused:
            refuse_impossible([Subject(SubjectKind.KEY, "hx-abc", limits)], 0)
        assert refused.value.retry_after_s is None
    anonymous = Principal(account="anonymous", account_limits=RateLimits(max_concurrent=2))
    assert [str(subject) for subject in subjects_of(anonymous)] == ["account anonymous"]
    assert subjects_of(Principal(account="lab", key="hx-abc")) == ()


def test_headers_as_openai_and_anthropic_document_them() -> None:
    requests = LimitStatus(limit=60, remaining=59, reset_ms=1000)
    tokens = LimitStatus(limit=150_000, remaining=149_984, reset_ms=360_000)
    state = LimitState(now_ms=1_795_345_071_250, requests=requests, tokens=tokens)
    limits = {"limit-requests": "60", "remaining-requests": "59", "reset-requests": "1s"}
    limits |= {"limit-tokens": "150000", "remaining-tokens": "149984", "reset-tokens": "6m0s"}
    named = [(f"x-ratelimit-{name}".encode(), value.encode()) for name, value in limits.items()]
    assert openai_headers(state) == named
    assert anthropic_headers(state) == [
        (b"anthropic-ratelimit-requests-limit", b"60"),
        (b"anthropic-ratelimit-requests-remaining", b"59"),
        (b"anthropic-ratelimit-requests-reset", b"2026-11-22T10:57:53Z"),  # 1 s after, rounded up
        (b"anthropic-ratelimit-tokens-limit", b"150000"),
        (b"anthropic-ratelimit-tokens-remaining", b"149984"),
        (b"anthropic-ratelimit-tokens-reset", b"2026-11-22T11:03:52Z"),
    ]
    assert openai_headers(NO_LIMITS) == anthropic_headers(NO_LIMITS) == []
    only_requests = LimitState(now_ms=0, requests=requests)
    assert len(openai_headers(only_requests)) == len(anthropic_headers(only_requests)) == 3
    written = {0: "0s", 20: "20ms", 999: "999ms", 1000: "1s", 1500: "1.5s", 59_999: "59.999s"}
    written |= {60_000: "1m0s", 3_600_000: "1h0m0s", 3_661_020: "1h1m1.02s"}
    assert {milliseconds: duration(milliseconds) for milliseconds in written} == written
