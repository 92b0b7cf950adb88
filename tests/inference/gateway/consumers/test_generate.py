"""Answers through the whole gateway: a real Redis between it and a fake neuron."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from inference.gateway.consumers import generate as generation
from inference.gateway.gateway import Gateway
from inference.gateway.request import place
from inference.protocol.events import Event
from inference.protocol.generation import ChatInput, Submit, TokensInput
from inference.protocol.heartbeat import ReplicaStatus
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, says, silent
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
