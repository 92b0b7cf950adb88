"""Answers that fail, and the errors that clients get: a real Redis between the gateway and a fake
neuron."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from inference.protocol.events import (
    Accepted,
    Cancelled,
    Delta,
    Event,
    Failed,
    Failure,
)
from inference.protocol.generation import Submit
from inference.wire.errors import ServiceUnavailableError
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, failing

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_byte_keeps_its_status(
    client: AsgiClient, neuron: FakeNeuron, stream: bool
) -> None:
    neuron.script = failing
    answer = await client.post(CHAT, chat_body(stream=stream))
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["param"] == "messages"
    assert (answer.error["prompt_len"], answer.error["max"]) == (9000, 8192)
    assert "retry-after" not in answer.headers


async def crashing(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
    yield [Delta(request_id=submit.request_id, text="The")]
    failure = Failure(code="engine_crashed", message="The engine died.")
    yield [Failed(request_id=submit.request_id, failure=failure)]


async def test_a_failure_within_a_stream_is_its_last_event(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    neuron.script = crashing
    answer = await client.post(CHAT, chat_body(stream=True))
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["code"] == "engine_crashed"
    assert "[DONE]" not in answer.chunks


async def test_a_failure_before_a_body_is_a_503(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = crashing
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "engine_crashed")
    assert answer.headers["retry-after"] == "5"


async def cancelled_by_neuron(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
    yield [Cancelled(request_id=submit.request_id)]


async def test_a_cancel_nobody_here_asked_for_is_a_503(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    neuron.script = cancelled_by_neuron
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "cancelled")


async def test_a_lost_batch_fails_the_request(client: AsgiClient, neuron: FakeNeuron) -> None:
    async def gap(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        neuron.sequence_numbers[submit.gateway_id] += 1
        yield [Delta(request_id=submit.request_id, text="after the hole")]

    neuron.script = gap
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "events_lost")
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == answer.headers["x-request-id"]


async def test_events_without_an_acceptance_are_a_loss(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    async def headless(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Delta(request_id=submit.request_id, text="tail")]

    neuron.script = headless
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "events_lost")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_neuron_that_falls_silent_fails_its_requests_once(
    client: AsgiClient, neuron: FakeNeuron, stream: bool
) -> None:
    neuron.script = endless
    exchange = client.open("POST", CHAT, chat_body(stream=stream))
    await asyncio.wait_for(neuron.submitted.get(), 60)
    if stream:
        await exchange.until(b"on and")
    await neuron.die()
    await exchange.finish()
    error = exchange.chunks[-1]["error"] if stream else exchange.error
    assert error["code"] == "neuron_lost"
    assert exchange.status == (200 if stream else 503)


async def test_no_neuron(client: AsgiClient, neuron: FakeNeuron) -> None:
    await neuron.die()
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "no_neuron")
    assert int(answer.headers["retry-after"]) >= 1


async def test_database_away(
    client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    catalogue.failure = ServiceUnavailableError("database_unavailable", "away")
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
