"""A request that has ended is freed without the garbage collector, whose full collections stop
every stream. So is one that failed, though the frames of its traceback refer to its error."""

from __future__ import annotations

import asyncio
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
@each_case("path", [CHAT, "/v1/messages", "/v1/responses"])
@each_case("script", [paris, failing, breaks, endless])
async def test_nothing_is_left(
    client: AsgiClient,
    neuron: FakeNeuron,
    nothing_is_left: Any,
    script: Script,
    path: str,
    streams: bool,
) -> None:
    neuron.script = script
    asked = responses_body(store=False) if path == "/v1/responses" else chat_body(max_tokens=8)
    exchange = client.open("POST", path, asked | {"stream": streams})
    if script is endless:
        await asyncio.wait_for(neuron.submitted.get(), 60)
        exchange.leave()
    body = (await exchange.finish()).body
    assert script is not failing or b"8192 fit" in body
    assert script is not breaks or b"crashed" in body
    del exchange
    await until(nothing_is_left)
