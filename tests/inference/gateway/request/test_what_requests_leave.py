"""A request that has ended is freed without the garbage collector, whose full collections stop
every stream. So is one that failed, though the frames of its traceback refer to its error."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.request.attempt import PlacedRequest
from inference.gateway.request.event_stream import RequestStream
from inference.gateway.request.outcome import Call
from inference.protocol.events import Delta, Event
from inference.protocol.generation import Submit
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import (
    ACCEPTED,
    FakeNeuron,
    Script,
    endless,
    failing,
    saying,
)
from tests.inference.gateway.waiting import until

pytestmark = pytest.mark.slow

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TURNS = [{"role": "user", "content": "What is the capital of France?"}]
CHAT_BODY: dict[str, Any] = {"model": "tiny", "messages": TURNS}
RESPONSE_BODY: dict[str, Any] = {"model": "tiny", "input": "Hi", "store": False}


@pytest.fixture
def nothing_is_left() -> Iterator[Callable[[], bool]]:
    """A function: whether the parts of every request since are freed. The collector is off
    meanwhile."""
    gc.collect()
    gc.disable()
    before = parts_of_requests()  # kept, so that no new part has the id of an old one
    known = {id(part) for part in before}
    yield lambda: all(id(part) in known for part in parts_of_requests())
    gc.enable()


def parts_of_requests() -> list[object]:
    kinds = (ApiConsumer, PlacedRequest, RequestStream, Call)
    return [there for there in gc.get_objects() if isinstance(there, kinds)]


ASKED: dict[str, dict[str, Any]] = {
    CHAT: CHAT_BODY,
    MESSAGES: CHAT_BODY | {"max_tokens": 8},
    RESPONSES: RESPONSE_BODY,
    "/v1/completions": {"model": "tiny", "prompt": "Hi"},
    "/api/chat": CHAT_BODY,
}


@each_case("streams", [False, True])
@each_case(
    ("path", "more", "status"),
    [
        *((path, {}, 200) for path in ASKED),
        (CHAT, {"n": 2}, 200),
        (CHAT, {"model": "huge"}, 404),
        (CHAT, {"temperature": "hot"}, 400),
    ],
)
async def test_an_answer(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Callable[[], bool],
    path: str,
    more: dict[str, Any],
    status: int,
    streams: bool,
) -> None:
    assert (await client.post(path, ASKED[path] | {"stream": streams} | more)).status == status
    await until(nothing_is_left)


async def failing_late(submit: Submit) -> AsyncIterator[list[Event]]:
    """Fails in the middle of its answer."""
    async for events in saying([ACCEPTED], [Delta(request_id="", text="The capital")])(submit):
        yield events
    async for events in failing(submit):
        yield events


@each_case("script", [failing, failing_late])
@each_case("streams", [False, True])
@each_case("path", ASKED)
async def test_a_request_that_failed(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Callable[[], bool],
    path: str,
    streams: bool,
    script: Script,
) -> None:
    neuron.script = script
    answer = await client.post(path, ASKED[path] | {"stream": streams})
    assert b"8192 fit" in answer.body
    await until(nothing_is_left)


async def test_a_client_that_left(
    client: AsgiClient, neuron: FakeNeuron, nothing_is_left: Callable[[], bool]
) -> None:
    neuron.script = endless
    exchange = client.open("POST", CHAT, {**CHAT_BODY, "stream": True})
    await exchange.until(b"data:")
    exchange.leave()
    await exchange.finish()
    del exchange
    await until(nothing_is_left)
