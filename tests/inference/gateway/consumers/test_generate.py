"""Answers through the whole gateway: a real Redis between it and a fake neuron."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import openai
import pytest
import redis.asyncio

from fleet.placement import Wait
from inference.gateway.consumers import generate as generation
from inference.gateway.gateway import Gateway
from inference.gateway.request import place
from inference.protocol import keys
from inference.protocol.events import Event
from inference.protocol.generation import ChatInput, Submit, TokensInput
from inference.protocol.heartbeat import ReplicaStatus
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, says, silent
from tests.inference.gateway.responses_support import breaks
from tests.inference.gateway.waiting import until

CHAT = "/v1/chat/completions"


async def test_answers_in_one_body(client: AsgiClient, neuron: FakeNeuron) -> None:
    answer = await client.post(CHAT, chat_body(temperature=0))
    assert answer.status == 200
    choice = answer.json["choices"][0]
    assert choice["message"]["content"] == "The capital is Paris."
    assert choice["finish_reason"] == "stop"
    assert answer.json["usage"]["total_tokens"] == 12
    assert answer.json["id"] == f"chatcmpl-{answer.headers['x-request-id']}"
    (submit,) = neuron.frames
    assert isinstance(submit, Submit) and isinstance(submit.request.input, ChatInput)
    assert submit.request.sampling.temperature == 0
    answer = await client.post(CHAT, chat_body(model="gpt-4o"))
    assert answer.json["model"] == "gpt-4o"
    assert submit.model == neuron.frames[-1].model == "tiny"  # type: ignore[union-attr]
    answer = await client.post(CHAT, chat_body(model="huge"))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert answer.error["param"] == "model"
    body = {"model": "tiny", "prompt": [1, 2, 3], "stream": True}
    answer = await client.post("/v1/completions", body)
    texts = [chunk["choices"][0]["text"] for chunk in answer.chunks[:-1]]
    assert "".join(texts) == "The capital is Paris."
    submit = neuron.frames[-1]
    assert isinstance(submit, Submit) and submit.request.input == TokensInput(prompts=[[1, 2, 3]])


async def test_streams(client: AsgiClient, neuron: FakeNeuron, gateway: Gateway) -> None:
    """HELEXA_ALWAYS_STREAM_USAGE: for clients that track their context without asking."""
    answer = await client.post(CHAT, chat_body(stream=True, stream_options={"include_usage": True}))
    *chunks, usage, done = answer.chunks
    assert done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 5
    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "The capital is Paris."
    assert len(chunks) == 6
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    *_, last, _done = (await client.post(CHAT, chat_body(stream=True))).chunks
    assert "usage" not in last
    gateway.config = replace(gateway.config, always_stream_usage=True)
    *_, last, _done = (await client.post(CHAT, chat_body(stream=True))).chunks
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 5


async def test_the_sdk_raises_on_an_error_within_a_stream(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron
) -> None:
    neuron.script = breaks
    stream = await sdk.chat.completions.create(**chat_body(stream=True))
    with pytest.raises(openai.APIError, match="The engine crashed"):
        _ = [chunk async for chunk in stream]


async def test_many_at_once_are_all_answered_and_none_cancelled(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    answers = await asyncio.gather(
        *(client.post(CHAT, chat_body(stream=index % 2 == 0)) for index in range(60))
    )
    assert {answer.status for answer in answers} == {200}
    assert len({answer.headers["x-request-id"] for answer in answers}) == 60
    await gateway.dispatcher.close(10)
    assert len(neuron.frames) == 60 and len(gateway.streams) == 0


def statuses_seen(gateway: Gateway) -> list[ReplicaStatus]:
    """Returns the statuses of the replicas in the newest snapshot."""
    snapshot = gateway.liveness.latest
    return [replica.status for replica in snapshot.replicas_of("tiny")] if snapshot else []


async def test_a_model_is_loaded_on_demand_and_the_stream_kept_alive(
    client: AsgiClient,
    gateway: Gateway,
    neuron: FakeNeuron,
    catalogue: FakeCatalogue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "STREAM_GRACE_S", 0.05)
    monkeypatch.setattr(generation, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(place, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(place, "LOAD_REPEAT_S", 60.0)
    neuron.status = None
    await neuron.beat()
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    comment = b": waiting: tiny is loading on beast\n\n"
    await exchange.until(comment + comment)
    assert exchange.status == 200
    assert catalogue.loads == [("tiny", "beast")]
    neuron.status = ReplicaStatus.LOADING
    await neuron.beat()
    await until(lambda: statuses_seen(gateway) == [ReplicaStatus.LOADING])
    neuron.status = ReplicaStatus.READY
    await neuron.beat()
    await exchange.finish()
    assert exchange.chunks[-1] == "[DONE]"
    assert catalogue.loads == [("tiny", "beast")]


async def test_a_stream_that_waits_reports_how_the_load_goes(
    gateway: Gateway,
    client: AsgiClient,
    neuron: FakeNeuron,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comments, which readers of server-sent events skip."""
    monkeypatch.setattr(generation, "STREAM_GRACE_S", 0.02)
    monkeypatch.setattr(generation, "KEEP_ALIVE_S", 0.02)
    wait = Wait(
        neuron="beast",
        model="tiny",
        reason="tiny is loading on beast (preflight)",
        eta_s=11.7,
        share=0.4,
    )
    monkeypatch.setattr(place, "place", lambda *_, **__: wait)
    neuron.status = ReplicaStatus.LOADING
    await neuron.beat()
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    await exchange.until(
        b": waiting: tiny is loading on beast (preflight), 40%, about 12 s left\n\n"
    )
    assert gateway.placer.wait_of("tiny") == wait
    exchange.leave()
    await exchange.finish()
    assert gateway.placer.wait_of("tiny") is None


async def test_leaving_while_it_loads_stops_the_wait(
    client: AsgiClient,
    neuron: FakeNeuron,
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "STREAM_GRACE_S", 60.0)
    gateway.ensure_started()
    neuron.status = ReplicaStatus.LOADING
    await neuron.beat()
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    await until(lambda: gateway.placer.num_waiting)
    exchange.leave()
    await exchange.finish()
    assert exchange.status == 0 and not neuron.frames
    assert gateway.placer.num_waiting == 0


async def test_a_load_or_a_first_token_past_the_deadline(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    neuron.script = silent
    gateway.config = replace(gateway.config, request_timeout_s=1)
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "deadline_exceeded")
    assert await asyncio.wait_for(neuron.cancelled.get(), 60)
    neuron.status = ReplicaStatus.LOADING
    await neuron.beat()
    await until(lambda: statuses_seen(gateway) == [ReplicaStatus.LOADING])
    gateway.config = replace(gateway.config, request_timeout_s=0)
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "model_loading")
    assert int(answer.headers["retry-after"]) >= 1


async def test_the_deadline_is_for_the_first_token_only(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    gates = [asyncio.Event(), asyncio.Event(), asyncio.Event()]

    async def slow(submit: Submit) -> AsyncIterator[list[Event]]:
        async for events in says("slow", reason="length")(submit):
            yield events
            await gates.pop(0).wait()

    has_begun, goes_on, _ = gates
    neuron.script = slow
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    await asyncio.wait_for(neuron.submitted.get(), 60)
    (stream,) = gateway.streams
    await until(lambda: stream.accepted)
    deadline = stream._deadline
    assert deadline is not None and not deadline.cancelled()
    has_begun.set()
    await exchange.until(b"slow")
    assert deadline.cancelled()
    goes_on.set()
    await exchange.finish()
    assert b'"finish_reason":"length"' in exchange.body


async def test_an_empty_inbox_is_rung_by_a_gateway_that_is_alive(
    client: AsgiClient, gateway: Gateway, redis_client: redis.asyncio.Redis
) -> None:
    quiet = FakeNeuron(redis_client)
    await quiet.beat()
    exchanges = [client.open("POST", CHAT, chat_body()) for _ in range(3)]
    async with asyncio.timeout(60):
        while not await redis_client.xlen(keys.inbox_key("beast")):
            await asyncio.sleep(0)
        assert await redis_client.exists(keys.gateway_alive_key(gateway.gateway_id))
        while await redis_client.xlen(keys.inbox_key("beast")) < 3:
            await asyncio.sleep(0.01)
    assert await redis_client.llen(keys.neuron_queue("beast")) == 1
    for exchange in exchanges:
        exchange.leave()
        await exchange.finish()
