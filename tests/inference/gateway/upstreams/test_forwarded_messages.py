"""An upstream of Anthropic's dialect: every dialect's requests over it, its errors and bills."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import anthropic
import openai
import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.upstreams.forwarding import (
    CHAT,
    SECRET,
    chat,
    cut_early,
    serve,
)
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, block, message_end, message_start


def text_events(*texts: str) -> list[dict[str, Any]]:
    opened = {"type": "text", "text": ""}
    return block(0, opened, *({"type": "text_delta", "text": text} for text in texts))


START = message_start(input_tokens=4, cache_read_input_tokens=3, output_tokens=1)
END = [message_end("end_turn"), {"type": "message_stop"}]
HELLO = [START, {"type": "ping"}, *text_events("Hel", "lo"), *END]
THOUGHT = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "hm"},
    {"type": "signature_delta", "signature": "c2ln"},
)
CALL = block(
    1,
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"city":'},
    {"type": "input_json_delta", "partial_json": ' "Ulm"}'},
)
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
MAX_TOKENS = {"max_tokens": 9}


@pytest.fixture(autouse=True)
def claude(upstream: FakeUpstream, catalogue: FakeCatalogue, far: CatalogueEntry) -> None:
    serve(catalogue, far, url=upstream.origin, dialect="anthropic")
    upstream.answer = lambda asked, wire: wire.events(HELLO)


@pytest.mark.usefixtures("neuron")
async def test_every_dialect_gets_the_same_answer(
    client: AsgiClient,
    sdk: openai.AsyncOpenAI,
    anthropic_sdk: anthropic.AsyncAnthropic,
    upstream: FakeUpstream,
    ledger: FakeLedger,
) -> None:
    answer = await chat(client, **MAX_TOKENS, stop=["x"])
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    (asked,) = upstream.asked
    assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages", SECRET)
    assert "authorization" not in asked.headers
    assert asked.json == {
        "model": "org/m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stream": True,
        "stop_sequences": ["x"],
    }
    (settled,) = ledger.settled
    assert (settled.neuron, settled.cost_micro_usd) == ("upstream:box", 7 + 2 * 2)
    assert (settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens) == (7, 3, 2)
    response = await sdk.responses.create(model="far", input="hi", store=False)
    assert response.output_text == "Hello"
    turns: Any = CHAT["messages"]
    async with anthropic_sdk.messages.stream(
        model="far", max_tokens=9, system="short", messages=turns
    ) as stream:
        message = await stream.get_final_message()
    assert (message.content[0].text, message.usage.output_tokens) == ("Hello", 2)  # type: ignore[union-attr]
    assert upstream.asked[-1].json["system"] == "short"
    ollama = await client.post("/api/chat", {**CHAT, "stream": False})
    assert (ollama.json["message"]["content"], ollama.json["eval_count"]) == ("Hello", 2)
    refused = await client.post("/v1/completions", {"model": "far", "prompt": "a"})
    assert (refused.status, refused.error["param"]) == (400, "prompt")


async def test_tools_and_thinking_come_through(
    client: AsgiClient, anthropic_sdk: anthropic.AsyncAnthropic, upstream: FakeUpstream
) -> None:
    calls = [START, *THOUGHT, *CALL, message_end("tool_use"), {"type": "message_stop"}]
    upstream.answer = lambda asked, wire: wire.events(calls)
    tools: Any = [{"type": "function", "function": TOOL}]
    answer = await chat(client, tools=tools, tool_choice="required", include_reasoning=True)
    (choice,) = answer.json["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("tool_calls", "hm")
    (called,) = choice["message"]["tool_calls"]
    assert called["function"] == {"name": "f", "arguments": '{"city": "Ulm"}'}
    assert upstream.asked[0].json["tool_choice"] == {"type": "any"}
    message = await anthropic_sdk.messages.create(
        model="far",
        max_tokens=5_000,
        thinking={"type": "adaptive"},
        tools=[{"name": "f", "input_schema": TOOL["parameters"]}],  # type: ignore[typeddict-item]
        messages=CHAT["messages"],
    )
    assert [one.type for one in message.content] == ["thinking", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert upstream.asked[1].json["thinking"] == {"type": "adaptive", "display": "summarized"}


async def test_a_whole_message_is_read_where_it_is_not_streamed(
    client: AsgiClient, upstream: FakeUpstream
) -> None:
    whole = {
        "type": "message",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 2},
    }
    upstream.answer = lambda asked, wire: wire.json(200, whole)
    answer = await chat(client)
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert answer.json["usage"]["completion_tokens"] == 2


LONG = "prompt is too long: 208310 tokens > 200000 maximum"
ERRORS: list[tuple[int, str, str, dict[str, str], int, str]] = [
    (400, "invalid_request_error", "bad", {}, 400, "upstream_refused"),
    (400, "invalid_request_error", LONG, {}, 400, "context_length_exceeded"),
    (413, "request_too_large", "no", {}, 400, "upstream_refused"),
    (401, "authentication_error", f"wrong {SECRET}", {}, 502, "upstream_failed"),
    (404, "not_found_error", "model: org/m", {}, 502, "upstream_failed"),
    (429, "rate_limit_error", "slow", {"retry_after": "7"}, 429, "rate_limit_exceeded"),
    (500, "api_error", "boom", {}, 502, "upstream_failed"),
    (529, "overloaded_error", "full", {"retry_after": "9"}, 503, "upstream_unavailable"),
]


@pytest.mark.parametrize(("status", "kind", "message", "headers", "ours", "code"), ERRORS)
async def test_an_error_keeps_its_meaning(
    client: AsgiClient,
    upstream: FakeUpstream,
    ledger: FakeLedger,
    status: int,
    kind: str,
    message: str,
    headers: dict[str, str],
    ours: int,
    code: str,
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    upstream.answer = lambda asked, wire: wire.json(status, body, **headers)
    answer = await chat(client, stream=True)
    assert (answer.status, answer.error["code"]) == (ours, code)
    if headers:
        assert answer.headers["retry-after"] == headers["retry_after"]
    assert SECRET not in answer.body.decode()
    assert len(upstream.asked) == 1
    (settled,) = ledger.settled
    assert (settled.outcome, settled.cost_micro_usd) == (code, 0)


def overloaded(asked: Asked, wire: Wire) -> None:
    """The error comes in one piece with the text."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}
    frames = [f"data: {json.dumps(one)}\n\n" for one in [START, *text_events("Hel")[:2], error]]
    wire.begin_stream()
    wire.part("".join(frames).encode())
    wire.end_stream(b"")


def cut_late(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    for event in [START, *text_events("Hel")[:2]]:
        wire.event(event)
    wire.cut()


def never_ends(asked: Asked, wire: Wire) -> None:
    wire.events([START, *text_events("Hel")])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (overloaded, "upstream_unavailable"),
        (cut_late, "upstream_failed"),
        (never_ends, "upstream_failed"),
    ],
)
async def test_a_fault_after_the_first_token_ends_the_request_once(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger, fault: Any, code: str
) -> None:
    upstream.answer = fault
    answer = await chat(client, stream=True)
    *begun, last = answer.chunks
    assert (answer.status, last["error"]["code"]) == (200, code)
    assert any(one["choices"][0]["delta"].get("content") == "Hel" for one in begun)
    (settled,) = ledger.settled
    assert (settled.outcome, settled.prompt_tokens, settled.completion_tokens) == (code, 7, 1)


async def test_a_cut_before_the_first_token_is_free_and_a_client_that_leaves_ends_the_work(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger
) -> None:
    upstream.answer = cut_early
    assert (await chat(client)).error["code"] == "upstream_unavailable"
    noticed = threading.Event()

    def continues(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        for event in [START, *text_events("Hel")[:2]]:
            wire.event(event)
        if wire.wait_for_hang_up():
            noticed.set()

    upstream.answer = continues
    exchange = client.open("POST", "/v1/chat/completions", {**CHAT, "stream": True})
    await exchange.until(b"Hel")
    exchange.leave()
    await exchange.finish()
    assert await asyncio.to_thread(noticed.wait, 60)
    free, cancelled = ledger.settled
    assert (free.prompt_tokens, free.completion_tokens) == (0, 0)
    assert (cancelled.outcome, cancelled.prompt_tokens) == ("cancelled", 7)
