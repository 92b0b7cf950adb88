"""What a request leaves behind is gone when it has ended, without a collection that looks for it:
a full one stops every stream while it looks. What fails at its neuron is left to one: an error and
the frames of its traceback hold each other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inference.gateway.call import Call
from inference.gateway.consumers import ApiConsumer
from inference.gateway.placed_request import PlacedRequest
from inference.gateway.streams import RequestStream
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import FakeNeuron, endless
from tests.inference.gateway.waiting import until

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TURNS = [{"role": "user", "content": "What is the capital of France?"}]
CHAT_BODY: dict[str, Any] = {"model": "tiny", "messages": TURNS}
RESPONSE_BODY: dict[str, Any] = {"model": "tiny", "input": "Hi", "store": False}


@pytest.fixture
def nothing_is_left() -> Iterator[Callable[[], bool]]:
    """Whether all that came meanwhile is gone, with the collector off."""
    gc.collect()
    gc.disable()
    before = parts_of_requests()
    yield (
        lambda: (
            not any(all(there is not other for other in before) for there in parts_of_requests())
        )
    )
    gc.enable()


def parts_of_requests() -> list[object]:
    kinds = (ApiConsumer, PlacedRequest, RequestStream, Call)
    return [there for there in gc.get_objects() if isinstance(there, kinds)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, CHAT_BODY),
        (CHAT, {**CHAT_BODY, "stream": True}),
        (CHAT, {**CHAT_BODY, "n": 2, "stream": True}),
        (CHAT, {**CHAT_BODY, "model": "huge"}),
        (CHAT, {**CHAT_BODY, "temperature": "hot"}),
        ("/v1/completions", {"model": "tiny", "prompt": "Hi", "stream": True}),
        (MESSAGES, {**CHAT_BODY, "max_tokens": 8}),
        (MESSAGES, {**CHAT_BODY, "max_tokens": 8, "stream": True}),
        (RESPONSES, RESPONSE_BODY),
        (RESPONSES, {**RESPONSE_BODY, "stream": True}),
        ("/api/chat", CHAT_BODY),
    ],
)
async def test_an_answer(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Callable[[], bool],
    path: str,
    body: dict[str, Any],
) -> None:
    status = (await client.post(path, body)).status
    assert status == {"huge": 404, "hot": 400}.get(str(body.get("temperature", body["model"])), 200)
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
