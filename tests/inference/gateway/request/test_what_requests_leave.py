"""A request that has ended is freed without the garbage collector, whose full collections stop
every stream. So is one that failed, though the frames of its traceback refer to its error."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.request.attempt import PlacedRequest
from inference.gateway.request.event_stream import RequestStream
from inference.gateway.request.outcome import Call
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import breaks, chat_body, responses_body, until
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, endless, failing, paris

pytestmark = pytest.mark.slow

ASKED: dict[str, dict[str, Any]] = {
    CHAT: chat_body(),
    "/v1/messages": chat_body(max_tokens=8),
    "/v1/responses": responses_body(store=False),
}


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


@each_case("streams", [False, True])
@each_case(
    ("path", "more", "script"),
    [
        *((path, {}, script) for path in ASKED for script in (paris, failing, breaks)),
        (CHAT, {"n": 2}, paris),
        (CHAT, {"model": "huge"}, paris),
        (CHAT, {"temperature": "hot"}, paris),
    ],
)
async def test_an_answer_and_one_that_fails(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Callable[[], bool],
    path: str,
    more: dict[str, Any],
    script: Script,
    streams: bool,
) -> None:
    neuron.script = script
    answer = await client.post(path, ASKED[path] | {"stream": streams} | more)
    if script is paris:
        assert (answer.status == 200) == (more in ({}, {"n": 2}))
    else:
        assert (b"8192 fit" if script is failing else b"crashed") in answer.body
    await until(nothing_is_left)


async def test_a_client_that_left(
    client: AsgiClient, neuron: FakeNeuron, nothing_is_left: Callable[[], bool]
) -> None:
    neuron.script = endless
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    await exchange.until(b"data:")
    exchange.leave()
    await exchange.finish()
    del exchange
    await until(nothing_is_left)
