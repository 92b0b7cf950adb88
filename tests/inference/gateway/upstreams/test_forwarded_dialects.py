"""Every client's dialect over upstreams of each: what is asked of them, and what comes back. Each
field and each answer of a dialect is translated in ``tests/inference/wire/upstream``."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import anthropic
import openai
import pytest

from tests.inference.gateway.upstreams.forwarding import (
    CHAT,
    RED_PIXELS,
    UpstreamRig,
    cut_early,
    text_of,
)
from tests.inference.gateway.upstreams.spoken import SPOKEN_BY, Spoken
from tests.servers.fake_upstream import Asked, Wire, chunk, usage

TURNS: Any = CHAT["messages"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "f", "parameters": SCHEMA}


@pytest.fixture(params=SPOKEN_BY)
def spoken(rig: UpstreamRig, request: pytest.FixtureRequest) -> Spoken:
    """The upstream speaks that dialect."""
    dialect: Spoken = SPOKEN_BY[request.param]
    dialect.serve(rig, max_context_tokens=4_096)
    return dialect


@pytest.mark.usefixtures("neuron")
async def test_every_client_gets_the_same_answer(
    rig: UpstreamRig,
    spoken: Spoken,
    sdk: openai.AsyncOpenAI,
    anthropic_sdk: anthropic.AsyncAnthropic,
) -> None:
    answer = await rig.chat(max_tokens=9, stop=["x"], user="ann")
    assert text_of(answer) == "Hello"
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert answer.json["usage"]["prompt_tokens"] == 7
    (asked,) = rig.upstream.asked
    assert (asked.path, asked.json) == (spoken.path, spoken.asked)
    assert spoken.key.items() <= asked.headers.items()
    assert ("authorization" in asked.headers) == ("authorization" in spoken.key)
    settled = rig.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (7, 2)
    assert settled.cached_tokens == spoken.num_cached
    assert (settled.neuron, settled.cost_micro_usd) == ("upstream:box", 7 + 2 * 2)
    response = await sdk.responses.create(model="far", input="hi", store=False)
    assert response.output_text == "Hello"
    assert response.usage is not None and response.usage.input_tokens == 7
    async with anthropic_sdk.messages.stream(
        model="far", max_tokens=9, system="short", messages=TURNS
    ) as stream:
        assert await stream.get_final_text() == "Hello"
    assert "short" in json.dumps(rig.upstream.asked[-1].json)
    ollama = await rig.client.post("/api/chat", {**CHAT, "stream": False})
    assert (ollama.json["message"]["content"], ollama.json["eval_count"]) == ("Hello", 2)
    assert (await rig.client.post("/api/generate", {"model": "far"})).status == 200
    assert {asked.path for asked in rig.upstream.asked} == {spoken.path}


async def test_an_answer_may_be_whole_cut_or_left(rig: UpstreamRig, spoken: Spoken) -> None:
    """A cut before the first token is free, and a client that leaves ends the upstream's work."""
    noticed = threading.Event()

    def continues(asked: Asked, wire: Wire) -> None:
        spoken.begin(wire)
        if wire.wait_for_hang_up():
            noticed.set()

    rig.answer(200, spoken.whole)
    answer = await rig.chat()
    assert text_of(answer) == "Hello"
    assert answer.json["usage"]["prompt_tokens"] == 7
    rig.upstream.answer = cut_early
    assert (await rig.chat()).error["code"] == "upstream_unavailable"
    rig.upstream.answer = continues
    exchange = rig.open_chat(stream=True)
    await exchange.until(b"Hel")
    exchange.leave()
    await exchange.finish()
    assert await asyncio.to_thread(noticed.wait, 60)
    assert [(one.outcome, one.completion_tokens) for one in rig.ledger.settled] == [
        ("finished", 2),
        ("upstream_unavailable", 0),
        ("cancelled", 1),
    ]


CALLS = [
    chunk({"reasoning_content": "hm"}),
    chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Ulm"}'}}]}),
    chunk(finish="tool_calls"),
    usage(9, 8),
]


@pytest.mark.usefixtures("neuron")
async def test_tools_reasoning_schemas_and_images(
    rig: UpstreamRig, anthropic_sdk: anthropic.AsyncAnthropic
) -> None:
    rig.upstream.answer = lambda asked, wire: wire.stream(CALLS)
    image = {"type": "image_url", "image_url": {"url": RED_PIXELS, "detail": "low"}}
    turns = [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]
    tools: Any = [{"type": "function", "function": TOOL}]
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    fields: dict[str, Any] = {"messages": turns, "tools": tools, "tool_choice": "required"}
    answer = await rig.chat(**fields, response_format=schema, include_reasoning=True)
    message = answer.json["choices"][0]["message"]
    assert message["reasoning_content"] == "hm"
    (call,) = message["tool_calls"]
    assert (call["id"], call["function"]["arguments"]) == ("c1", '{"city": "Ulm"}')
    sent = rig.upstream.asked[0].json
    assert {name: sent[name] for name in ("messages", "tool_choice")} == {
        "messages": turns,
        "tool_choice": "required",
    }
    assert sent["tools"][0]["function"] == TOOL
    assert sent["response_format"]["json_schema"]["schema"] == SCHEMA
    use = {"type": "tool_use", "id": "c0", "name": "f", "input": {"city": "Ulm"}}
    result = {"type": "tool_result", "tool_use_id": "c0", "content": "rain"}
    called = await anthropic_sdk.messages.create(
        model="far",
        max_tokens=99,
        tools=[{"name": "f", "input_schema": SCHEMA}],  # type: ignore[typeddict-item]
        messages=[
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [use]},  # type: ignore[list-item]
            {"role": "user", "content": [result]},  # type: ignore[list-item]
        ],
    )
    assert (called.stop_reason, called.content[-1].type) == ("tool_use", "tool_use")
    sent = rig.upstream.asked[1].json["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"city":"Ulm"}'}
    assert (sent[2]["role"], sent[2]["tool_call_id"]) == ("tool", "c0")


async def test_text_completions_are_forwarded(rig: UpstreamRig) -> None:
    choices = [{"index": i, "text": f"{i}!", "finish_reason": "length"} for i in range(2)]
    answered = [{"choices": [one]} for one in choices] + [usage(4, 2)]
    rig.upstream.answer = lambda asked, wire: wire.stream(answered)
    body: dict[str, Any] = {"model": "far", "prompt": ["a", "b"]}
    answer = await rig.client.post("/v1/completions", body)
    assert [choice["text"] for choice in answer.json["choices"]] == ["0!", "1!"]
    assert rig.upstream.asked[0].path == "/v1/completions"
    assert rig.upstream.asked[0].json["prompt"] == ["a", "b"]
    body["prompt"] = "a"
    SPOKEN_BY["ollama"].serve(rig)
    text = [{"response": "Once"}, {"response": "", "done": True, "done_reason": "length"}]
    rig.upstream.answer = lambda asked, wire: wire.lines(text)
    (choice,) = (await rig.client.post("/v1/completions", body)).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Once", "length")
    asked = rig.upstream.asked[-1]
    assert (asked.path, asked.json["raw"]) == ("/api/generate", True)
    SPOKEN_BY["anthropic"].serve(rig)
    refused = await rig.client.post("/v1/completions", body)
    assert (refused.status, refused.error["param"]) == (400, "prompt")
