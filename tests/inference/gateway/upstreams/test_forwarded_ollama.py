"""An upstream of Ollama's dialect: every dialect's requests over it, its errors and bills."""

from __future__ import annotations

import json
from dataclasses import replace
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
    RED_PIXELS,
    SECRET,
    chat,
    cut_early,
    serve,
)
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire


def line(content: str = "", *, thinking: str = "", **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    return {"model": "m", "message": message, "done": False, **fields}


DONE = line(done=True, done_reason="stop", prompt_eval_count=7, eval_count=2)
HELLO = [line("Hel"), line("lo"), DONE]
CALLED = {"function": {"name": "f", "arguments": {"city": "Ulm"}}}
CALL = {"message": {"role": "assistant", "content": "", "tool_calls": [CALLED]}, "done": False}
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


@pytest.fixture(autouse=True)
def mac(upstream: FakeUpstream, catalogue: FakeCatalogue, far: CatalogueEntry) -> None:
    serve(catalogue, replace(far, max_context_tokens=4_096), url=upstream.origin, dialect="ollama")
    upstream.answer = lambda asked, wire: wire.lines(HELLO)


@pytest.mark.usefixtures("neuron")
async def test_every_dialect_gets_the_same_answer(
    client: AsgiClient,
    sdk: openai.AsyncOpenAI,
    anthropic_sdk: anthropic.AsyncAnthropic,
    upstream: FakeUpstream,
    ledger: FakeLedger,
) -> None:
    answer = await chat(client, max_tokens=9, stop=["x"])
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    (asked,) = upstream.asked
    assert (asked.path, asked.headers["authorization"]) == ("/api/chat", f"Bearer {SECRET}")
    assert asked.json == {
        "model": "org/m",
        "stream": True,
        "truncate": False,
        "shift": False,
        "messages": [{"role": "user", "content": "hi"}],
        "options": {"stop": ["x"], "num_predict": 9, "num_ctx": 4_096},
    }
    (settled,) = ledger.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (7, 2)
    assert (settled.neuron, settled.cost_micro_usd) == ("upstream:box", 7 + 2 * 2)
    response = await sdk.responses.create(model="far", input="hi", store=False)
    assert response.output_text == "Hello"
    turns: Any = CHAT["messages"]
    async with anthropic_sdk.messages.stream(model="far", max_tokens=9, messages=turns) as stream:
        assert await stream.get_final_text() == "Hello"
    ollama = await client.post("/api/chat", {**CHAT, "stream": False})
    assert (ollama.json["message"]["content"], ollama.json["eval_count"]) == ("Hello", 2)
    text = [{"response": "Once"}, {"response": "", "done": True, "done_reason": "length"}]
    upstream.answer = lambda asked, wire: wire.lines(text)
    completed = await client.post("/v1/completions", {"model": "far", "prompt": "a"})
    assert completed.json["choices"][0]["text"] == "Once"
    assert completed.json["choices"][0]["finish_reason"] == "length"
    assert (upstream.asked[-1].path, upstream.asked[-1].json["raw"]) == ("/api/generate", True)


async def test_tools_thinking_images_and_schemas_come_through(
    client: AsgiClient, upstream: FakeUpstream
) -> None:
    upstream.answer = lambda asked, wire: wire.lines([line(thinking="hm"), CALL, DONE])
    tools: Any = [{"type": "function", "function": TOOL}]
    answer = await chat(client, tools=tools, include_reasoning=True)
    (choice,) = answer.json["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("tool_calls", "hm")
    (called,) = choice["message"]["tool_calls"]
    assert json.loads(called["function"]["arguments"]) == {"city": "Ulm"}
    assert upstream.asked[0].json["tools"] == tools
    upstream.answer = lambda asked, wire: wire.lines(HELLO)
    image = {"type": "image_url", "image_url": {"url": RED_PIXELS}}
    parts = [{"type": "text", "text": "look"}, image]
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    await chat(client, messages=[{"role": "user", "content": parts}], response_format=form)
    sent = upstream.asked[-1].json
    assert sent["messages"] == [
        {"role": "user", "content": "look", "images": [RED_PIXELS.partition(",")[2]]}
    ]
    assert sent["format"] == {"type": "object"}
    refused = await chat(client, tools=tools, tool_choice="required")
    assert (refused.status, refused.error["param"]) == (400, "tool_choice")


@pytest.mark.parametrize(
    ("status", "message", "ours", "code"),
    [
        (400, "the input length exceeds the context length", 400, "context_length_exceeded"),
        (400, '"m" does not support thinking', 400, "upstream_refused"),
        (404, "model 'm' not found", 502, "upstream_failed"),
        (500, f"boom {SECRET}", 502, "upstream_failed"),
        (503, "server busy, please try again", 503, "upstream_unavailable"),
    ],
)
async def test_an_error_keeps_its_meaning(
    client: AsgiClient,
    upstream: FakeUpstream,
    ledger: FakeLedger,
    status: int,
    message: str,
    ours: int,
    code: str,
) -> None:
    upstream.answer = lambda asked, wire: wire.json(status, {"error": message})
    answer = await chat(client, stream=True)
    assert (answer.status, answer.error["code"]) == (ours, code)
    assert SECRET not in answer.body.decode()
    (settled,) = ledger.settled
    assert (settled.outcome, settled.cost_micro_usd) == (code, 0)


def error_in_stream(asked: Asked, wire: Wire) -> None:
    wire.lines([line("Hel"), {"error": "boom"}])


def cut_late(asked: Asked, wire: Wire) -> None:
    wire.begin_stream("application/x-ndjson")
    wire.part(json.dumps(line("Hel")).encode() + b"\n")
    wire.cut()


def never_ends(asked: Asked, wire: Wire) -> None:
    wire.lines([line("Hel")])


def not_json(asked: Asked, wire: Wire) -> None:
    wire.begin_stream("application/x-ndjson")
    wire.part(json.dumps(line("Hel")).encode() + b"\n{not json\n")


@pytest.mark.parametrize("fault", [error_in_stream, cut_late, never_ends, not_json])
async def test_a_fault_after_the_first_token_ends_the_request_once(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger, fault: Any
) -> None:
    upstream.answer = fault
    answer = await chat(client, stream=True)
    *begun, last = answer.chunks
    assert (answer.status, last["error"]["code"]) == (200, "upstream_failed")
    assert any(one["choices"][0]["delta"].get("content") == "Hel" for one in begun)
    (settled,) = ledger.settled
    assert (settled.outcome, settled.completion_tokens) == ("upstream_failed", 1)


async def test_a_fault_before_the_first_token_is_free_and_a_whole_answer_is_read(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger
) -> None:
    upstream.answer = cut_early
    assert (await chat(client)).error["code"] == "upstream_unavailable"
    upstream.answer = lambda asked, wire: wire.json(200, {**DONE, **line("Hello", done=True)})
    answer = await chat(client)
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert [settled.prompt_tokens for settled in ledger.settled] == [0, 7]
