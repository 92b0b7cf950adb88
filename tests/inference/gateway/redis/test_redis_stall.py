"""Redis stalls and continues: requests pause, nothing is lost; over the limit each ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from inference.gateway.gateway import Gateway
from inference.gateway.redis import inbox as dispatch
from inference.protocol import keys, stalls
from inference.protocol.events import Accepted, ChoiceFinished, Delta, Event, Finished, Usage
from inference.protocol.generation import Cancel, InboxFrame, Submit
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, silent
from tests.inference.gateway.redis.trouble import (
    COMMAND_TIMEOUT_S,
    begun,
    config,
    mortal,
    redis_url,
    stall_limit_s,
)
from tests.inference.gateway.waiting import until
from tests.servers.private_redis import MortalRedis

__all__ = ["begun", "config", "mortal", "redis_url", "stall_limit_s"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("begun")]

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
NUM_TOKENS = 60
TEXT = "".join(f"{number} " for number in range(NUM_TOKENS))
STALL_S = 6 * COMMAND_TIMEOUT_S
"""Several commands time out meanwhile."""


async def counting(submit: Submit) -> AsyncIterator[list[Event]]:
    request_id = submit.request_id
    yield [Accepted(request_id=request_id, prompt_tokens=7)]
    for number in range(NUM_TOKENS):
        await asyncio.sleep(0.02)
        yield [Delta(request_id=request_id, text=f"{number} ")]
    usage = Usage(prompt_tokens=7, completion_tokens=NUM_TOKENS)
    yield [
        ChoiceFinished(request_id=request_id, reason="length"),
        Finished(request_id=request_id, usage=usage),
    ]


def text_of(exchange: Exchange, *, stream: bool) -> str:
    assert exchange.status == 200, exchange.body
    if not stream:
        return str(exchange.json["choices"][0]["message"]["content"])
    chunks = [chunk for chunk in exchange.chunks if chunk != "[DONE]"]
    assert exchange.chunks[-1] == "[DONE]"
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


@pytest.fixture
def pushed(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[InboxFrame]:
    """The frames that requests have handed on to be sent, whether Redis takes them or not."""
    frames: list[InboxFrame] = []
    push = gateway.dispatcher.push

    def recorded(name: str, frame: InboxFrame) -> asyncio.Future[None]:
        frames.append(frame)
        return push(name, frame)

    monkeypatch.setattr(gateway.dispatcher, "push", recorded)
    return frames


async def stall(mortal: MortalRedis, seconds: float = STALL_S) -> None:
    mortal.suspend()
    await asyncio.sleep(seconds)
    mortal.resume()


async def test_streams_pause_and_submits_wait(
    client: AsgiClient, neuron: FakeNeuron, mortal: MortalRedis
) -> None:
    neuron.script = counting
    streams = [True, False, True, False]
    running = [client.open("POST", CHAT, chat_body(stream=stream)) for stream in streams]
    for _ in running:
        await asyncio.wait_for(neuron.submitted.get(), 60)
    await running[0].until(b"1 ")
    mortal.suspend()
    submitted = [client.open("POST", CHAT, chat_body(stream=stream)) for stream in (True, False)]
    await asyncio.sleep(STALL_S)
    late = client.open("POST", CHAT, chat_body())
    await asyncio.sleep(COMMAND_TIMEOUT_S)
    mortal.resume()
    for exchange, stream in zip(
        [*running, *submitted, late], [*streams, True, False, False], strict=True
    ):
        await exchange.finish()
        assert text_of(exchange, stream=stream) == TEXT
    num_submits = sum(isinstance(frame, Submit) for frame in neuron.frames)
    assert neuron.submitted.qsize() == 3, f"of {num_submits} submits each ran once"


async def test_who_leaves_during_a_stall_frees_its_blocks(
    client: AsgiClient, neuron: FakeNeuron, mortal: MortalRedis, pushed: list[InboxFrame]
) -> None:
    neuron.script = endless
    running = client.open("POST", CHAT, chat_body(stream=True))
    submit = await asyncio.wait_for(neuron.submitted.get(), 60)
    await running.until(b"on and")
    mortal.suspend()
    pushed.clear()
    # Two: the first is on its way, the second waits behind it.
    waiting = [client.open("POST", CHAT, chat_body()) for _ in range(2)]
    await until(lambda: len(pushed) == 2)
    await asyncio.sleep(2 * COMMAND_TIMEOUT_S)
    for exchange in (running, *waiting):
        exchange.leave()
        await exchange.finish()
    await asyncio.sleep(2 * COMMAND_TIMEOUT_S)
    mortal.resume()
    cancelled = [await asyncio.wait_for(neuron.cancelled.get(), 60) for _ in range(3)]
    assert submit.request_id in cancelled
    ran = {frame.request_id for frame in neuron.frames if isinstance(frame, Submit)}
    ended = {frame.request_id for frame in neuron.frames if isinstance(frame, Cancel)}
    assert ran <= ended


async def test_keys_that_expired_meanwhile_declare_nobody_dead(
    client: AsgiClient,
    neuron: FakeNeuron,
    mortal: MortalRedis,
    redis_client: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stalls, "SETTLING_S", 3600.0)
    neuron.script = endless
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    await asyncio.wait_for(neuron.submitted.get(), 60)
    await exchange.until(b"on and")
    mortal.suspend()
    await asyncio.sleep(STALL_S)
    neuron.script = counting
    late = client.open("POST", CHAT, chat_body())
    # Redis' first act when it continues: the heartbeat has expired.
    expiring = asyncio.create_task(redis_client.delete(keys.heartbeat_key(neuron.name)))
    mortal.resume()
    await expiring
    await late.finish()
    assert text_of(late, stream=False) == TEXT
    assert not exchange.ended.is_set()
    monkeypatch.setattr(stalls, "SETTLING_S", 0.0)
    await neuron.die()
    await exchange.finish()
    assert exchange.chunks[-1]["error"]["code"] == "neuron_lost", "it had its time"


async def test_a_batch_that_comes_again_is_dropped(client: AsgiClient, neuron: FakeNeuron) -> None:
    async def repeating(submit: Submit) -> AsyncIterator[list[Event]]:
        async for events in counting(submit):
            yield events
            neuron.sequence_numbers[submit.gateway_id] -= 1
            yield events

    neuron.script = repeating
    answer = await client.post(CHAT, chat_body(stream=True))
    assert text_of(answer, stream=True) == TEXT


async def test_a_long_backlog_is_no_slow_client(client: AsgiClient, neuron: FakeNeuron) -> None:
    """Half a minute of a fast model comes at once."""

    async def fast(submit: Submit) -> AsyncIterator[list[Event]]:
        request_id = submit.request_id
        events: list[Event] = [Accepted(request_id=request_id, prompt_tokens=7)]
        events += [Delta(request_id=request_id, text="x") for _ in range(100)]
        yield events
        for _ in range(99):
            yield events[1:]
        usage = Usage(prompt_tokens=7, completion_tokens=10_000)
        yield [
            ChoiceFinished(request_id=request_id, reason="length"),
            Finished(request_id=request_id, usage=usage),
        ]

    neuron.script = fast
    answer = await client.post(CHAT, chat_body(stream=True))
    assert text_of(answer, stream=True) == 10_000 * "x"


async def test_more_than_may_wait_is_refused(
    client: AsgiClient,
    neuron: FakeNeuron,
    mortal: MortalRedis,
    monkeypatch: pytest.MonkeyPatch,
    pushed: list[InboxFrame],
) -> None:
    monkeypatch.setattr(dispatch, "MAX_PENDING_BYTES", 10_000)
    neuron.script = counting
    assert (await client.post(CHAT, chat_body())).status == 200
    mortal.suspend()
    pushed.clear()
    large = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 6000}]}
    first = client.open("POST", CHAT, large)
    await until(lambda: pushed)
    refused = await client.post(CHAT, large)
    mortal.resume()
    assert (refused.status, refused.error["code"]) == (503, "queue_full")
    await first.finish()
    assert text_of(first, stream=False) == TEXT


class TestGivenUp:
    @pytest.fixture
    def stall_limit_s(self) -> int:
        """Redis may be busy for longer than a second."""
        return 3

    async def test_over_the_limit_each_ends_once_in_its_dialect(
        self, client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, mortal: MortalRedis
    ) -> None:
        neuron.script = endless
        running = {
            (path, stream): client.open("POST", path, chat_body(stream=stream, max_tokens=1000))
            for path in (CHAT, MESSAGES)
            for stream in (True, False)
        }
        for _ in running:
            await asyncio.wait_for(neuron.submitted.get(), 60)
        for path in (CHAT, MESSAGES):
            await running[path, True].until(b"on and")
        mortal.suspend()
        submitted = client.open("POST", CHAT, chat_body())
        started_s = time.monotonic()
        for exchange in (*running.values(), submitted):
            await exchange.finish()
        assert time.monotonic() - started_s >= 0.5
        mortal.resume()
        for exchange in (running[CHAT, False], submitted):
            assert (exchange.status, exchange.error["code"]) == (503, "redis_unavailable")
            assert int(exchange.headers["retry-after"]) >= 1
        errors = [chunk for chunk in running[CHAT, True].chunks if "error" in chunk]
        assert [chunk["error"]["code"] for chunk in errors] == ["redis_unavailable"]
        message = running[MESSAGES, False]
        assert message.status == 503
        assert message.json["error"]["details"]["error_code"] == "redis_unavailable"
        assert running[MESSAGES, True].body.count(b"event: error") == 1
        ids = {exchange.headers["x-request-id"] for exchange in running.values()}
        async with asyncio.timeout(60):
            while ids:
                ids.discard(await neuron.cancelled.get())

    async def test_shutting_down_does_not_wait_for_redis(
        self, client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, mortal: MortalRedis
    ) -> None:
        neuron.script = silent
        exchange = client.open("POST", CHAT, chat_body())
        await asyncio.wait_for(neuron.submitted.get(), 60)
        mortal.suspend()
        await gateway.drain(0)
        mortal.resume()
        await exchange.finish()
        assert exchange.error["code"] in ("shutting_down", "redis_unavailable")
