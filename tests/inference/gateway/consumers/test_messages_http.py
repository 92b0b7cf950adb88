"""Anthropic's dialect without its SDK: the order of events, pings, ends and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inference.gateway.consumers import generate as generation
from inference.gateway.consumers import generate as streaming
from inference.protocol.events import Accepted, ChoiceFinished, Event, Finished
from inference.protocol.generation import GenerationRequest, Submit
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.consumers.anthropic_messages import (
    MESSAGES,
    USAGE,
    messages_body,
    too_long,
)
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, endless, paris, silent


def frames_of(exchange: Exchange) -> list[tuple[str, Any]]:
    frames = exchange.body.decode().split("\n\n")
    assert frames.pop() == ""
    split = [frame.split("\n", 1) for frame in frames]
    return [
        (head.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for head, data in split
    ]


async def test_the_order_of_a_streams_events(client: AsgiClient, neuron: FakeNeuron) -> None:
    answer = await client.post(MESSAGES, messages_body(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    names = [name for name, _ in frames_of(answer)]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}


async def started(submit: Submit) -> AsyncIterator[list[Event]]:
    """Reports that it has started, and no more."""
    async for events in paris(submit):
        yield events
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("script", "frame"),
    [(silent, b": waiting\n\n"), (started, b'event: ping\ndata: {"type":"ping"}\n\n')],
)
async def test_a_quiet_stream_is_kept_alive(
    client: AsgiClient,
    neuron: FakeNeuron,
    monkeypatch: pytest.MonkeyPatch,
    script: Script,
    frame: bytes,
) -> None:
    """Before ``message_start``, which clients want first, by what no client takes for an event."""
    monkeypatch.setattr(generation, "STREAM_GRACE_S", 0.05)
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.05)
    neuron.script = script
    exchange = client.open("POST", MESSAGES, messages_body(stream=True))
    await exchange.until(frame * 2)
    is_started = script is started
    assert (b"message_start" in exchange.body) == is_started
    assert (b"ping" in exchange.body) == is_started
    exchange.leave()
    await exchange.finish()


@pytest.mark.parametrize(
    ("path", "body", "script"),
    [
        (MESSAGES, messages_body(stream=True), endless),
        (MESSAGES, messages_body(), endless),
        (
            f"{MESSAGES}/count_tokens",
            {"model": "tiny", "messages": messages_body()["messages"]},
            silent,
        ),
    ],
)
async def test_leaving_cancels(
    client: AsgiClient, neuron: FakeNeuron, path: str, body: Any, script: Any
) -> None:
    neuron.script = script
    exchange = client.open("POST", path, body)
    submit = await asyncio.wait_for(neuron.submitted.get(), 60)
    exchange.leave()
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
    await exchange.finish()


async def test_stop_sequence_and_full_context(client: AsgiClient, neuron: FakeNeuron) -> None:
    ended: Any = {}

    async def ends(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=20)]
        yield [ChoiceFinished(request_id=submit.request_id, **ended)]
        yield [Finished(request_id=submit.request_id, usage=USAGE)]

    neuron.script = ends
    ended = {"reason": "stop", "stop_sequence": "END"}
    answer = (await client.post(MESSAGES, messages_body(stop_sequences=["END"]))).json
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
    ended = {"reason": "context"}
    answer = (await client.post(MESSAGES, messages_body(max_tokens=32_000))).json
    assert answer["stop_reason"] == "model_context_window_exceeded"
    (_, submit) = neuron.frames
    assert isinstance(submit, Submit) and isinstance(submit.request, GenerationRequest)
    assert submit.request.ends_at_context and submit.request.stop == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "sesame"}, 200),
        ({"x-api-key": "sesame", "authorization": "Bearer placeholder"}, 200),
        ({"x-api-key": "placeholder", "authorization": "Bearer sesame"}, 200),
        ({"authorization": "Bearer sesame", "anthropic-version": "2042-01-01"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": ""}, 401),
        ({}, 401),
    ],
)
async def test_where_a_key_is_set_it_is_needed(
    make_client: MakeClient, neuron: FakeNeuron, headers: dict[str, str], status: int
) -> None:
    client = make_client(api_key="sesame")
    answer = await client.post(MESSAGES, messages_body(), headers=headers)
    assert answer.status == status
    if status == 401:
        assert answer.json["type"] == "error"
        assert answer.error["type"] == "authentication_error"
        assert answer.json["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "type_"),
    [
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("GET", f"{MESSAGES}/count_tokens", 405, "invalid_request_error"),
        ("POST", f"{MESSAGES}/nothing", 404, "not_found_error"),
        ("GET", f"{MESSAGES}/batches/x", 404, "not_found_error"),
    ],
)
async def test_refusals_before_the_body_are_in_this_dialect(
    client: AsgiClient, method: str, path: str, status: int, type_: str
) -> None:
    answer = await client.open(method, path, {}).finish()
    assert answer.status == status
    assert (answer.json["type"], answer.error["type"]) == ("error", type_)


async def test_a_body_over_the_limit(client: AsgiClient) -> None:
    answer = await client.post(MESSAGES, parts=[b"x" * 100_001])
    assert (answer.status, answer.error["type"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("agent", "advice"),
    [
        ("claude-cli/2.1.76 (external, cli)", "CLAUDE_CODE_MAX_CONTEXT_TOKENS"),
        ("opencode/1.2 ai-anthropic_sdk/provider-utils/4.0 runtime/bun", "opencode.json"),
        ("Anthropic/Python 2.11.0", None),
    ],
)
async def test_advice_on_a_full_context(
    client: AsgiClient, neuron: FakeNeuron, agent: str, advice: str | None
) -> None:
    neuron.script = too_long
    answer = await client.post(MESSAGES, messages_body(), headers={"user-agent": agent})
    assert answer.status == 400
    assert (advice or "") in answer.headers.get("x-helexa-advice", "")
    assert ("x-helexa-advice" in answer.headers) is (advice is not None)
    plain = await client.post(MESSAGES, messages_body(temperature=9), headers={"user-agent": agent})
    assert "x-helexa-advice" not in plain.headers
