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
from inference.protocol.events import Accepted, Delta, Event
from inference.protocol.generation import Submit
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, endless, failing
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


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, CHAT_BODY, 200),
        (CHAT, {**CHAT_BODY, "stream": True}, 200),
        (CHAT, {**CHAT_BODY, "n": 2, "stream": True}, 200),
        (CHAT, {**CHAT_BODY, "model": "huge"}, 404),
        (CHAT, {**CHAT_BODY, "temperature": "hot"}, 400),
        ("/v1/completions", {"model": "tiny", "prompt": "Hi", "stream": True}, 200),
        (MESSAGES, {**CHAT_BODY, "max_tokens": 8}, 200),
        (MESSAGES, {**CHAT_BODY, "max_tokens": 8, "stream": True}, 200),
        (RESPONSES, RESPONSE_BODY, 200),
        (RESPONSES, {**RESPONSE_BODY, "stream": True}, 200),
        ("/api/chat", CHAT_BODY, 200),
    ],
)
async def test_an_answer(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Callable[[], bool],
    path: str,
    body: dict[str, Any],
    status: int,
) -> None:
    assert (await client.post(path, body)).status == status
    await until(nothing_is_left)


async def failing_late(submit: Submit) -> AsyncIterator[list[Event]]:
    """Fails in the middle of its answer."""
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    yield [Delta(request_id=submit.request_id, text="The capital")]
    async for events in failing(submit):
        yield events


@pytest.mark.parametrize("script", [failing, failing_late])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, CHAT_BODY),
        (MESSAGES, CHAT_BODY | {"max_tokens": 8}),
        (RESPONSES, RESPONSE_BODY),
        ("/v1/completions", {"model": "tiny", "prompt": "Hi"}),
        ("/api/chat", CHAT_BODY),
    ],
)
async def test_a_request_that_failed(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Callable[[], bool],
    path: str,
    body: dict[str, Any],
    streams: bool,
    script: Script,
) -> None:
    neuron.script = script
    answer = await client.post(path, body | {"stream": streams})
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
