"""A gateway that stood still says so, and gives Redis its whole time to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inference.gateway.neurons.standstill import LOOK_INTERVAL_S, StandstillWatch
from inference.gateway.request.event_stream import (
    RequestStreams,
    events_lost,
    neuron_lost,
    request_lost,
)
from inference.protocol.keys import GATEWAY_ALIVE_EXPIRY_S
from inference.redis_link import RedisOutage, redis_unavailable
from inference.wire.errors import ApiError
from tests.inference.gateway.answers import open_stream

LIMIT_S = 30.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def told(streams: RequestStreams, request_id: str, error: ApiError) -> str:
    stream = open_stream(streams, request_id, "beast")
    assert not stream.stood_still_s, "it came afterwards"
    stream.fail(error)
    with pytest.raises(ApiError) as raised:
        await stream.next_events()
    return raised.value.message


async def test_what_is_lost_by_a_standstill_is_called_so() -> None:
    clock, streams = Clock(), RequestStreams()
    watch = StandstillWatch(streams, clock=clock)
    errors = (request_lost("beast"), events_lost(), redis_unavailable(), neuron_lost("beast"))
    open_ones = [open_stream(streams, f"r{number}", "beast") for number in range(len(errors))]
    clock.now_s += LOOK_INTERVAL_S + GATEWAY_ALIVE_EXPIRY_S - 1
    await watch.look()
    assert not any(stream.stood_still_s for stream in open_ones), "its key has not lapsed"
    clock.now_s += 12
    await watch.look()
    words = []
    for stream, error in zip(open_ones, errors, strict=True):
        stream.fail(error)
        with pytest.raises(ApiError) as raised:
            await stream.next_events()
        words.append(raised.value.message)
    assert all("This gateway stood still for 12 s" in one for one in words[:3])
    assert words[3] == neuron_lost("beast").message, "its neuron did go away"
    assert await told(streams, "later", request_lost("beast")) == request_lost("beast").message


class Loop:
    """Timers and a clock by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now_s

    def call_at(self, due_s: float, callback: Callable[[], None]) -> Loop:
        self.timer = due_s, callback
        return self

    def cancel(self) -> None:
        self.timer = None

    def advance(self, to_s: float) -> None:
        self.now_s = to_s
        if self.timer is not None and self.timer[0] <= to_s:
            (_, callback), self.timer = self.timer, None
            callback()


@pytest.mark.parametrize("stands_still", ["before Redis fails", "while Redis is away", "never"])
async def test_redis_is_waited_for_by_a_gateway_that_runs(
    monkeypatch: pytest.MonkeyPatch, stands_still: str
) -> None:
    given_up: list[float] = []
    loop: Any = Loop()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: loop)
        outage = RedisOutage(LIMIT_S, lambda: given_up.append(loop.now_s))
    outage.answered()
    paused_s = 0.0 if stands_still == "never" else 100.0
    if stands_still == "before Redis fails":
        loop.advance(paused_s)
    outage.unanswered(ConnectionError("lost"))
    outage.unanswered(ConnectionError("lost"))
    if stands_still == "while Redis is away":
        loop.advance(paused_s)
    loop.advance(paused_s + LIMIT_S - 1)
    assert given_up == []
    loop.advance(paused_s + LIMIT_S)
    assert given_up == [paused_s + LIMIT_S]
