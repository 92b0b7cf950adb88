"""Refusals of all gateways, counted in Redis by hour, account and code; neurons' faults."""

from __future__ import annotations

import logging
import time

import pytest
import redis
import redis.asyncio

from fleet.live.refusals import read_counts, read_refusals
from inference.gateway.redis.reports import (
    LOG_INTERVAL_S,
    MAX_FAULTS,
    WINDOW_S,
    NeuronConduct,
    QueueDemandReporter,
    RefusalCounts,
)
from inference.gateway.request.outcome import RequestOutcome
from inference.protocol import keys
from inference.protocol.heartbeat import WaitingModel, decode_waiting_report
from inference.protocol.refusals import Cause, Refused, newest_keys, refusals_key, sum_of
from metering.ledger.entries import outcome_of
from tests.metering.operations import settle


def ended(
    outcome: str, status: int, account: str = "research", key: str = "hx-1", cause: str = ""
) -> RequestOutcome:
    return RequestOutcome(
        settle=settle(account=account, key=key, model="-", neuron="", outcome=outcome),
        kind=outcome_of(code=outcome, error_status=status, is_placed=False),
        is_billed=False,
        status=status,
        was_cold=False,
        error_cause=cause,
    )


async def test_gateways_count_together(redis_url: str, redis_db: redis.Redis) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    try:
        for _ in range(2):
            counts = RefusalCounts()
            counts.observe(ended("insufficient_quota", 429))
            counts.observe(ended("insufficient_quota", 429, cause=Cause.KEY_BUDGET))
            counts.observe(ended("invalid_api_key", 401, account=""))
            counts.observe(ended("request_broke_worker", 500, "lab 2"))
            counts.observe(ended("request_broke_worker", 500, "anonymous", key=""))
            counts.observe(ended("finished", 200))
            counts.observe(ended("cancelled", 0))
            counts.observe(ended("internal_error", 500))  # a failure is no refusal
            counts.observe(ended("A client's text", 400))
            await counts.flush(client)
            await counts.flush(client)  # nothing is left to count
    finally:
        await client.aclose()
    refused = {
        Refused("insufficient_quota", "research"): 4,
        Refused("invalid_api_key", ""): 2,
        Refused("other", "research"): 2,
    }
    assert read_refusals(redis_db, hours=24) == refused
    assert read_counts(redis_db, hours=24) == refused | {
        Refused("insufficient_quota", "research"): 2,
        Refused("insufficient_quota", "research", cause="key_budget"): 2,
        Refused("request_broke_worker", "lab 2", "hx-1"): 2,
        Refused("request_broke_worker", "anonymous"): 2,
    }
    (key,) = redis_db.keys("helexa:refusals:*")
    assert 0 < redis_db.ttl(key) <= 25 * 3600


@pytest.mark.asyncio
async def test_who_waits_is_published_until_nobody_does(
    redis_url: str, redis_db: redis.Redis
) -> None:
    waiting = {"tiny": WaitingModel(num_requests=2, oldest_s=1.5)}
    client = redis.asyncio.Redis.from_url(redis_url)
    try:
        reporter = QueueDemandReporter(client, "g1")
        await reporter.publish(waiting)
        report = redis_db.hget(keys.WAITING, "g1")
        assert isinstance(report, bytes)
        assert decode_waiting_report(report).models == waiting
        await reporter.publish({})
        assert redis_db.hget(keys.WAITING, "g1") is None
    finally:
        await client.aclose()
    await reporter.publish({})  # nothing is sent, so nothing fails


@pytest.mark.asyncio
async def test_a_redis_that_is_away_harms_nobody() -> None:
    client = redis.asyncio.Redis.from_url("unix:///nonexistent/redis.sock")
    counts = RefusalCounts()
    counts.observe(ended("insufficient_quota", 429))
    await counts.flush(client)
    await client.aclose()


def test_hours_and_what_does_not_read_like_a_count() -> None:
    now = time.time()
    assert newest_keys(now, 3) == [refusals_key(now - ago * 3600) for ago in (0, 1, 2)]
    assert len(newest_keys(now, 1000)) == 25
    odd = {b"code": b"1", b"code account": b"many", b"other \xff": b"2"}
    assert list(sum_of([odd]).values()) == [2]


class Conduct:
    """The neurons that were cut off, and why, by a clock that is set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.cut_off: list[tuple[str, str]] = []
        conduct = NeuronConduct(lambda *one: self.cut_off.append(one), clock=lambda: self.now_s)
        self.fault = conduct.fault


def test_too_many_faults_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    conduct = Conduct()
    with caplog.at_level(logging.ERROR):
        for _ in range(20_000):
            conduct.fault("evil", "junk")
        for _ in range(MAX_FAULTS):
            conduct.fault("odd", "junk")
    assert conduct.cut_off == [("evil", f"junk, the last of {MAX_FAULTS + 1} faults in a minute")]
    assert len(caplog.records) == 2
    conduct.now_s = LOG_INTERVAL_S
    conduct.fault("odd", "junk")
    assert f"and {MAX_FAULTS - 1} more" in caplog.text
    assert [name for name, _ in conduct.cut_off] == ["evil", "odd"]


def test_faults_of_long_ago_do_not_count_and_a_grave_one_is_enough() -> None:
    conduct = Conduct()
    for _ in range(10):
        for _ in range(MAX_FAULTS):
            conduct.fault("beast", "junk")
        conduct.now_s += WINDOW_S + 1
    assert conduct.cut_off == []
    conduct.fault("evil", "an entry is too large", is_grave=True)
    assert conduct.cut_off == [("evil", "an entry is too large")]
