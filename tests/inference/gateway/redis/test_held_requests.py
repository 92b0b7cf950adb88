"""A request unknown to its neuron fails, and a neuron's request without a waiting client is
cancelled; what a gateway writes to Redis: frames and the ring with them, who waits, refusals of all
gateways by hour, account and code, and neurons' faults."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import logging
import time
import uuid
from typing import Any
from unittest.mock import Mock, call

import pytest
import redis
import redis.asyncio
from celery import Celery

from fleet.live.reading import read_counts, read_refusals
from inference.gateway.gateway import Gateway
from inference.gateway.metrics import QueueDemandReporter, RefusalCounts
from inference.gateway.redis.inbox import BYTES_A_PUSH, Dispatcher, ring_message
from inference.gateway.redis.neurons import (
    FAULT_LOG_S,
    FAULT_WINDOW_S,
    MAX_FAULTS,
    MISSES_UNTIL_LOST,
    SIGHTINGS_UNTIL_CANCELLED,
    HeldRequestsWatch,
    NeuronConduct,
)
from inference.gateway.request.event_stream import RequestStreams
from inference.gateway.request.outcome import RequestOutcome
from inference.protocol import keys
from inference.protocol.delivery import PART_BYTES, FrameAssembler
from inference.protocol.generation import (
    Cancel,
    GenerationRequest,
    InboxFrame,
    Submit,
    TextInput,
    decode_inbox_frame,
)
from inference.protocol.heartbeat import WaitingModel, decode_waiting_report
from inference.protocol.joining import celery_broker_url
from inference.protocol.refusals import Cause, Refused, newest_keys, refusals_key, sum_of
from inference.redis_link import RedisLink
from inference.wire.errors import ApiError
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body, open_stream
from tests.inference.gateway.conftest import GATEWAY
from tests.inference.gateway.fake_neuron import FakeNeuron, accepts
from tests.metering.request_records.records import ended as request_ended

FAR_S = 1e9


def watch_of(neuron: FakeNeuron, streams: RequestStreams, around: Any) -> HeldRequestsWatch:
    """``around`` are the dispatcher and the readers."""
    neuron.epoch = "e"
    return HeldRequestsWatch(neuron.client, GATEWAY, streams, around, around, lambda: ["beast"])


@each_case(
    "case",
    [
        ({GATEWAY: ["another"]}, {}, True),
        ({}, {}, True),
        ({GATEWAY: ["r"]}, {}, False),
        ({GATEWAY: []}, {"is_behind": True}, False),
        ({GATEWAY: []}, {"epoch": "f"}, False),
        ({GATEWAY: []}, {"read_until_s": 0.0}, False),
        ({GATEWAY: []}, {"is_submitted": False}, False),
    ],
    ids=[
        *("not in the list", "the gateway is not named", "held", "the list is behind"),
        *("of another epoch", "its last events may still be read", "not sent yet"),
    ],
)
async def test_what_its_neuron_does_not_know(redis_client: redis.asyncio.Redis, case: Any) -> None:
    held, more, is_lost = case
    streams, around, beast = RequestStreams(), Mock(), FakeNeuron(redis_client)
    stream = open_stream(streams, "r", "beast")
    stream.is_submitted = more.get("is_submitted", True)
    around.caught_up_s.return_value = more.get("read_until_s", FAR_S)
    watch = watch_of(beast, streams, around)
    beast.epoch = more.get("epoch", "e")
    for _ in range(MISSES_UNTIL_LOST):
        assert not stream.ended
        await beast.hold(held, is_behind=more.get("is_behind", False))
        await watch.look([])
    assert stream.ended is is_lost
    if is_lost:
        with pytest.raises(ApiError) as raised:
            await stream.next_events()
        assert raised.value.code == "request_lost"
    await redis_client.delete(keys.held_key("beast"))


async def test_what_nobody_waits_for_is_cancelled_until_it_is_gone(
    redis_client: redis.asyncio.Redis, streams: RequestStreams, caplog: pytest.LogCaptureFixture
) -> None:
    around, beast = Mock(), FakeNeuron(redis_client)
    around.caught_up_s.return_value = FAR_S
    cancelled = around.cancel_soon
    watch = watch_of(beast, streams, around)
    stream = open_stream(streams, "open", "beast")
    for number in range(1, 5):
        await beast.hold({GATEWAY: ["open", "forgotten"]})
        await watch.look(["beast"])
        repeated = max(0, number + 1 - SIGHTINGS_UNTIL_CANCELLED)
        assert cancelled.call_args_list == [call("beast", "forgotten")] * repeated
    await beast.hold({GATEWAY: ["open"]})
    await watch.look(["beast"])
    assert cancelled.call_count == repeated
    stream.is_submitted = True
    for held in ([], ["open"], []):
        for _ in range(MISSES_UNTIL_LOST - 1):
            await beast.hold({GATEWAY: held})
            for _ in range(3):
                await watch.look(["beast"])
    assert not stream.ended, "a list counts once, and one that has the request begins anew"
    for number in range(5):
        await redis_client.hset(keys.held_key("beast"), GATEWAY, b"junk %d" % number)
        await watch.look(["beast"])
    lines = [one for one in caplog.records if "lists as held" in one.getMessage()]
    assert len(lines) == 1, "a list that is not understood is logged once a minute"


async def test_a_neuron_that_takes_no_frames_fills_no_redis_and_no_log(
    client: AsgiClient,
    gateway: Gateway,
    redis_client: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It listed requests that no gateway had sent, and got a cancellation of them each second."""
    monkeypatch.setattr("inference.gateway.redis.inbox.MAX_INBOX_ENTRIES", 600)
    # Its own looks, which do not know this neuron, would count from the beginning again.
    monkeypatch.setattr("inference.gateway.gateway.LOOK_INTERVAL_S", 3600.0)
    caplog.set_level(logging.INFO)
    evil = FakeNeuron(redis_client, name="evil")
    await client.get("/health")
    for _ in range(6):
        ids = [f"{number}" for number in range(300)]
        await evil.hold({gateway.gateway_id: [*ids, "x" * 1000]})
        await gateway.held.look(["evil"])
        await gateway.dispatcher.close(60)
    frames: Any = await redis_client.xrange(keys.inbox_key("evil"))
    assert 600 <= len(frames) < 600 + 300
    assert all(len(fields[keys.INBOX_FRAME_FIELD]) < 100 for _, fields in frames)
    assert len(caplog.messages) < 20


async def test_a_gateway_looks_by_itself(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.gateway.gateway.LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr("inference.gateway.redis.event_reader.BLOCK_MS", 20)
    neuron.script = accepts
    exchange = client.open("POST", "/v1/chat/completions", chat_body())
    await asyncio.wait_for(neuron.submitted.get(), 60)
    async with asyncio.timeout(60):
        while not exchange.ended.is_set():
            await neuron.hold({gateway.gateway_id: ["another"]})
            await asyncio.sleep(0.02)
    assert (exchange.status, exchange.error["code"]) == (503, "request_lost")
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) in (
        "another",
        exchange.headers["x-request-id"],
    )


TASK_ID = uuid.UUID("6ad19bd1-4d9c-4a25-9c2b-15b2ab1bb8b5")
NOW = datetime.datetime(2030, 5, 1, 12, 0, tzinfo=datetime.UTC)


def _submit(request_id: str, num_characters: int) -> Submit:
    request = GenerationRequest(model="m", input=TextInput(texts=["x" * num_characters]))
    return Submit(
        request_id=request_id, gateway_id="g", model="m", request=request, deadline_unix_s=0.0
    )


async def test_frames_are_in_pieces(
    redis_url: str, redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that carried it whole made Redis hold all of it, twice."""
    link = RedisLink(redis_url, timeout_s=60.0)
    dispatcher = Dispatcher(link, stall_limit_s=60.0)
    frames: list[InboxFrame] = [
        _submit("small", 1),
        _submit("large", 2 * BYTES_A_PUSH),
        Cancel(request_id="small"),
        _submit("last", PART_BYTES),
    ]
    await asyncio.gather(*(dispatcher.push("beast", frame) for frame in frames))
    entries: Any = await redis_client.xrange(keys.inbox_key("beast"))
    assert max(len(fields[keys.INBOX_FRAME_FIELD]) for _, fields in entries) == PART_BYTES
    assembler = FrameAssembler()
    whole = [assembler.add(fields, 0.0) for _, fields in entries]
    assert [decode_inbox_frame(frame) for frame in whole if frame is not None] == frames
    assert await redis_client.llen(keys.neuron_queue("beast")) == 1, "rung once: it was empty once"
    monkeypatch.setattr("inference.gateway.redis.inbox.MAX_PENDING_BYTES", 10_000)
    waiting = dispatcher.push("beast", _submit("waits", 6_000))
    with pytest.raises(ApiError) as refused:
        await dispatcher.push("beast", _submit("too much", 6_000))
    assert (refused.value.status, refused.value.code) == (503, "queue_full")
    await waiting
    await dispatcher.close(1.0)
    await link.aclose()


VOLATILE = {"id", "root_id", "expires", "origin", "correlation_id", "reply_to", "delivery_tag"}
"""Values that differ from message to message; their types must not."""


def shape(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: shape(item, key) for key, item in sorted(value.items())}
    return type(value).__name__ if name in VOLATILE else value


def test_the_ring_and_hours(redis_url: str, redis_db: redis.Redis) -> None:
    ours = json.loads(ring_message("beast", task_id=TASK_ID, now=NOW))
    expires = datetime.datetime.fromisoformat(ours["headers"]["expires"])
    assert expires - NOW == datetime.timedelta(seconds=keys.DRAIN_INBOX_EXPIRES_S)
    app = Celery(broker=celery_broker_url(redis_url), set_as_current=False)
    app.conf.task_ignore_result = True
    options = {"expires": keys.DRAIN_INBOX_EXPIRES_S, "ignore_result": True}
    app.send_task(keys.TASK_DRAIN_INBOX, queue=keys.neuron_queue("beast"), **options)
    app.close()
    theirs: Any = json.loads(redis_db.rpop(keys.neuron_queue("beast")))  # type: ignore[arg-type]
    bodies = [json.loads(base64.b64decode(message.pop("body"))) for message in (ours, theirs)]
    assert bodies[0] == bodies[1]
    assert shape(ours) == shape(theirs)
    # Hours and what does not read like a count.
    now = time.time()
    assert newest_keys(now, 3) == [refusals_key(now - ago * 3600) for ago in (0, 1, 2)]
    assert len(newest_keys(now, 1000)) == 25
    odd = {b"code": b"1", b"code account": b"many", b"other \xff": b"2"}
    assert list(sum_of([odd]).values()) == [2]


def ended(outcome: str, status: int, account: str = "research", **more: str) -> RequestOutcome:
    return request_ended(outcome=outcome, status=status, account=account, neuron="", **more)


async def test_refusals_and_who_waits(redis_client: redis.asyncio.Redis, redis_db: Any) -> None:
    for _ in range(2):
        counts = RefusalCounts()
        for one in (
            ended("insufficient_quota", 429),
            ended("insufficient_quota", 429, error_cause=Cause.KEY_BUDGET),
            ended("invalid_api_key", 401, account=""),
            ended("request_broke_worker", 500, "lab 2"),
            ended("request_broke_worker", 500, "anonymous", key=""),
            ended("finished", 200),
            ended("cancelled", 0),
            ended("internal_error", 500),  # a failure is no refusal
            ended("A client's text", 400),
        ):
            counts.observe(one)
        await counts.flush(redis_client)
        await counts.flush(redis_client)  # nothing is left to count
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
    # Who waits is published.
    reporter = QueueDemandReporter(redis_client, "g1")
    for waiting in ({"tiny": WaitingModel(num_requests=2, oldest_s=1.5)}, {}):
        await reporter.publish(waiting)
        report = redis_db.hget(keys.WAITING, "g1")
        assert (decode_waiting_report(report).models if report else {}) == waiting
    away = redis.asyncio.Redis.from_url("unix:///nonexistent/redis.sock")
    await QueueDemandReporter(away, "g1").publish({})  # nothing is sent, so nothing fails
    counts.observe(ended("insufficient_quota", 429))
    await counts.flush(away)
    await away.aclose()


def test_the_conduct_of_neurons(caplog: pytest.LogCaptureFixture) -> None:
    now_s, cut_off = 0.0, list[tuple[str, str]]()
    fault = NeuronConduct(lambda *one: cut_off.append(one), clock=lambda: now_s).fault
    with caplog.at_level(logging.ERROR):
        for _ in range(20_000):
            fault("evil", "junk")
        for _ in range(MAX_FAULTS):
            fault("odd", "junk")
    assert cut_off == [("evil", f"junk, the last of {MAX_FAULTS + 1} faults in a minute")]
    assert len(caplog.records) == 2
    now_s = FAULT_LOG_S
    fault("odd", "junk")
    assert f"and {MAX_FAULTS - 1} more" in caplog.text
    assert [name for name, _ in cut_off] == ["evil", "odd"]
    # Faults of long ago do not count and a grave one is enough.
    cut_off.clear()
    for _ in range(10):
        now_s += FAULT_WINDOW_S + 1
        for _ in range(MAX_FAULTS):
            fault("beast", "junk")
    assert cut_off == []
    fault("grave", "an entry is too large", is_grave=True)
    assert cut_off == [("grave", "an entry is too large")]
