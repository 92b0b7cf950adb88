"""Every client's dialect over upstreams of each: what is asked of them, and what comes back."""

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
    HELLO,
    RED_PIXELS,
    UpstreamRig,
    cut_early,
    text_of,
)
from tests.inference.gateway.upstreams.spoken import SPOKEN_BY, Spoken
from tests.servers.fake_upstream import Asked, Wire, block, chunk, message_end, usage

TURNS: Any = CHAT["messages"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "f", "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": TOOL}]
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
LOOK = [
    {"type": "text", "text": "look"},
    {"type": "image_url", "image_url": {"url": RED_PIXELS}},
]


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
    answer = await rig.chat(max_tokens=9, stop=["x"])
    assert text_of(answer) == "Hello"
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
    message = await anthropic_sdk.messages.create(model="far", max_tokens=9, messages=TURNS)
    assert (message.content[0].text, message.usage.output_tokens) == ("Hello", 2)  # type: ignore[union-attr]
    async with anthropic_sdk.messages.stream(
        model="far", max_tokens=9, system="short", messages=TURNS
    ) as stream:
        assert await stream.get_final_text() == "Hello"
    assert "short" in json.dumps(rig.upstream.asked[-1].json)
    ollama = await rig.client.post("/api/chat", {**CHAT, "stream": False})
    assert (ollama.json["message"]["content"], ollama.json["eval_count"]) == ("Hello", 2)
    assert (await rig.client.post("/api/generate", {"model": "far"})).status == 200
    assert {asked.path for asked in rig.upstream.asked} == {spoken.path}


async def test_an_answer_that_is_not_streamed_is_read_whole(
    rig: UpstreamRig, spoken: Spoken
) -> None:
    rig.answer(200, spoken.whole)
    answer = await rig.chat()
    assert text_of(answer) == "Hello"
    assert (answer.json["usage"]["prompt_tokens"], rig.settled.completion_tokens) == (7, 2)


CALLS = [
    chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ' "Ulm"}'}}]}),
    chunk({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "g"}}]}),
    chunk(finish="tool_calls"),
    usage(9, 8),
]


@pytest.mark.usefixtures("neuron")
async def test_tools_reasoning_schemas_and_images_at_openais(
    rig: UpstreamRig, anthropic_sdk: anthropic.AsyncAnthropic
) -> None:
    thought = chunk({"reasoning_content": "hm"})
    rig.upstream.answer = lambda asked, wire: wire.stream([thought, *CALLS])
    answer = await rig.chat(tools=TOOLS, tool_choice="required", include_reasoning=True)
    message = answer.json["choices"][0]["message"]
    assert message["reasoning_content"] == "hm"
    calls = [(one["id"], one["function"]) for one in message["tool_calls"]]
    assert calls == [
        ("c1", {"name": "f", "arguments": '{"city": "Ulm"}'}),
        ("c2", {"name": "g", "arguments": "{}"}),
    ]
    assert rig.upstream.asked[0].json["tool_choice"] == "required"
    assert rig.upstream.asked[0].json["tools"][0]["function"] == TOOL
    use = {"type": "tool_use", "id": "c0", "name": "f", "input": {"city": "Ulm"}}
    result = {"type": "tool_result", "tool_use_id": "c0", "content": "rain"}
    turns: Any = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    tools: Any = [{"name": "f", "input_schema": SCHEMA}]
    called = await anthropic_sdk.messages.create(
        model="far", max_tokens=99, tools=tools, messages=turns
    )
    assert (called.stop_reason, called.content[-1].type) == ("tool_use", "tool_use")
    sent = rig.upstream.asked[1].json["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"city":"Ulm"}'}
    assert (sent[2]["role"], sent[2]["tool_call_id"]) == ("tool", "c0")
    rig.upstream.answer = lambda asked, wire: wire.stream(HELLO)
    low = {"type": "image_url", "image_url": {"url": RED_PIXELS, "detail": "low"}}
    await rig.chat(messages=[{"role": "user", "content": [*LOOK, low]}], response_format=FORM)
    sent = rig.upstream.asked[-1].json
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent["messages"][0]["content"] == [*LOOK, low]


@pytest.mark.usefixtures("neuron")
async def test_tools_and_thinking_at_anthropics(
    rig: UpstreamRig, anthropic_sdk: anthropic.AsyncAnthropic
) -> None:
    thought = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "c2ln"},
    )
    call = block(
        1,
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"city":'},
        {"type": "input_json_delta", "partial_json": ' "Ulm"}'},
    )
    spoken = SPOKEN_BY["anthropic"]
    spoken.serve(rig)
    calls = [spoken.frames[0], *thought, *call, message_end("tool_use"), {"type": "message_stop"}]
    rig.upstream.answer = lambda asked, wire: wire.events(calls)
    answer = await rig.chat(tools=TOOLS, tool_choice="required", include_reasoning=True)
    (choice,) = answer.json["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("tool_calls", "hm")
    (called,) = choice["message"]["tool_calls"]
    assert called["function"] == {"name": "f", "arguments": '{"city": "Ulm"}'}
    assert rig.upstream.asked[0].json["tool_choice"] == {"type": "any"}
    tools: Any = [{"name": "f", "input_schema": SCHEMA}]
    message = await anthropic_sdk.messages.create(
        model="far", max_tokens=5_000, thinking={"type": "adaptive"}, tools=tools, messages=TURNS
    )
    assert [one.type for one in message.content] == ["thinking", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert rig.upstream.asked[1].json["thinking"] == {"type": "adaptive", "display": "summarized"}


async def test_tools_thinking_images_and_schemas_at_ollamas(rig: UpstreamRig) -> None:
    spoken = SPOKEN_BY["ollama"]
    spoken.serve(rig)
    call = {"function": {"name": "f", "arguments": {"city": "Ulm"}}}
    thought = {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False}
    called = {"message": {"role": "assistant", "content": "", "tool_calls": [call]}, "done": False}
    rig.upstream.answer = lambda asked, wire: wire.lines([thought, called, spoken.frames[-1]])
    answer = await rig.chat(tools=TOOLS, include_reasoning=True)
    (choice,) = answer.json["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("tool_calls", "hm")
    (made,) = choice["message"]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"city": "Ulm"}
    assert rig.upstream.asked[0].json["tools"] == TOOLS
    spoken.serve(rig)
    await rig.chat(messages=[{"role": "user", "content": LOOK}], response_format=FORM)
    sent = rig.upstream.asked[-1].json
    pixels = RED_PIXELS.partition(",")[2]
    assert sent["messages"] == [{"role": "user", "content": "look", "images": [pixels]}]
    assert sent["format"] == {"type": "object"}
    refused = await rig.chat(tools=TOOLS, tool_choice="required")
    assert (refused.status, refused.error["param"]) == (400, "tool_choice")


async def test_text_completions_are_forwarded(rig: UpstreamRig) -> None:
    def completes(asked: Asked, wire: Wire) -> None:
        choices = [{"index": i, "text": f"{i}!", "finish_reason": "length"} for i in range(2)]
        wire.stream([{"choices": [one]} for one in choices] + [usage(4, 2)])

    rig.upstream.answer = completes
    answer = await rig.client.post("/v1/completions", {"model": "far", "prompt": ["a", "b"]})
    assert [choice["text"] for choice in answer.json["choices"]] == ["0!", "1!"]
    assert rig.upstream.asked[0].path == "/v1/completions"
    assert rig.upstream.asked[0].json["prompt"] == ["a", "b"]
    body = {"model": "far", "prompt": "a"}
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


async def test_a_cut_before_the_first_token_is_free_and_a_client_that_leaves_ends_the_work(
    rig: UpstreamRig, spoken: Spoken
) -> None:
    rig.upstream.answer = cut_early
    assert (await rig.chat()).error["code"] == "upstream_unavailable"
    noticed = threading.Event()

    def continues(asked: Asked, wire: Wire) -> None:
        spoken.begin(wire)
        if wire.wait_for_hang_up():
            noticed.set()

    rig.upstream.answer = continues
    exchange = rig.open_chat(stream=True)
    await exchange.until(b"Hel")
    exchange.leave()
    await exchange.finish()
    assert await asyncio.to_thread(noticed.wait, 60)
    free, cancelled = rig.ledger.settled
    assert (free.prompt_tokens, free.completion_tokens) == (0, 0)
    assert (cancelled.outcome, cancelled.completion_tokens) == ("cancelled", 1)
