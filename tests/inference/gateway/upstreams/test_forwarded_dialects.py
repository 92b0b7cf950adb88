"""Every dialect's requests and answers over one endpoint."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.upstreams.forwarding import CHAT, HELLO, RED_PIXELS, chat
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, chunk, usage

CALLS = [
    chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ' "Ulm"}'}}]}),
    chunk({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "g"}}]}),
    chunk(finish="tool_calls"),
    usage(9, 8),
]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


@pytest.mark.usefixtures("far", "neuron")
async def test_every_dialect_gets_the_same_answer(
    client: AsgiClient,
    sdk: openai.AsyncOpenAI,
    anthropic_sdk: anthropic.AsyncAnthropic,
    upstream: FakeUpstream,
) -> None:
    response = await sdk.responses.create(model="far", input="hi", store=False)
    assert response.output_text == "Hello"
    assert response.usage is not None
    assert response.usage.input_tokens == 7
    turns: Any = CHAT["messages"]
    message = await anthropic_sdk.messages.create(model="far", max_tokens=9, messages=turns)
    assert (message.content[0].text, message.usage.output_tokens) == ("Hello", 2)  # type: ignore[union-attr]
    async with anthropic_sdk.messages.stream(
        model="far", max_tokens=9, system="short", messages=turns
    ) as stream:
        assert await stream.get_final_text() == "Hello"
    assert upstream.asked[-1].json["messages"][0] == {"role": "system", "content": "short"}
    ollama = await client.post("/api/chat", {**CHAT, "stream": False})
    assert ollama.json["message"]["content"] == "Hello"
    assert ollama.json["eval_count"] == 2
    loaded = await client.post("/api/generate", {"model": "far"})
    assert loaded.status == 200
    assert {asked.path for asked in upstream.asked} == {"/v1/chat/completions"}


@pytest.mark.usefixtures("far")
async def test_text_completions_are_forwarded(client: AsgiClient, upstream: FakeUpstream) -> None:
    def completes(asked: Asked, wire: Wire) -> None:
        choices = [{"index": i, "text": f"{i}!", "finish_reason": "length"} for i in range(2)]
        wire.stream([{"choices": [one]} for one in choices] + [usage(4, 2)])

    upstream.answer = completes
    answer = await client.post("/v1/completions", {"model": "far", "prompt": ["a", "b"]})
    assert [choice["text"] for choice in answer.json["choices"]] == ["0!", "1!"]
    assert upstream.asked[0].path == "/v1/completions"
    assert upstream.asked[0].json["prompt"] == ["a", "b"]


@pytest.mark.usefixtures("far", "neuron")
async def test_tools_reasoning_schemas_and_images(
    client: AsgiClient, anthropic_sdk: anthropic.AsyncAnthropic, upstream: FakeUpstream
) -> None:
    upstream.answer = lambda asked, wire: wire.stream([chunk({"reasoning_content": "hm"}), *CALLS])
    tools: Any = [{"type": "function", "function": TOOL}]
    answer = await chat(client, tools=tools, tool_choice="required", include_reasoning=True)
    message = answer.json["choices"][0]["message"]
    assert message["reasoning_content"] == "hm"
    calls = [(one["id"], one["function"]) for one in message["tool_calls"]]
    assert calls == [
        ("c1", {"name": "f", "arguments": '{"city": "Ulm"}'}),
        ("c2", {"name": "g", "arguments": "{}"}),
    ]
    assert upstream.asked[0].json["tool_choice"] == "required"
    assert upstream.asked[0].json["tools"][0]["function"] == TOOL
    called = await anthropic_sdk.messages.create(
        model="far",
        max_tokens=99,
        tools=[{"name": "f", "input_schema": TOOL["parameters"]}],  # type: ignore[typeddict-item]
        messages=[
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "c0", "name": "f", "input": {"city": "Ulm"}}
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c0", "content": "rain"}],
            },
        ],
    )
    assert (called.stop_reason, called.content[-1].type) == ("tool_use", "tool_use")
    sent = upstream.asked[1].json["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"city":"Ulm"}'}
    assert (sent[2]["role"], sent[2]["tool_call_id"]) == ("tool", "c0")

    upstream.answer = lambda asked, wire: wire.stream(HELLO)
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    await chat(client, response_format=form)
    sent_form = upstream.asked[-1].json["response_format"]
    assert sent_form["json_schema"]["schema"] == {"type": "object"}
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": RED_PIXELS}},
        {"type": "image_url", "image_url": {"url": RED_PIXELS, "detail": "low"}},
    ]
    await chat(client, messages=[{"role": "user", "content": parts}])
    assert upstream.asked[-1].json["messages"][0]["content"] == parts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"guided_regex": "a+"}, "guided_regex"),
    ],
)
@pytest.mark.usefixtures("far")
async def test_what_is_not_translated_is_refused_by_name(
    client: AsgiClient, upstream: FakeUpstream, fields: dict[str, Any], param: str
) -> None:
    answer = await chat(client, **fields)
    assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
    assert answer.error["param"] == param
    assert not upstream.asked


@pytest.mark.usefixtures("far")
async def test_other_requests_are_refused(client: AsgiClient) -> None:
    ranked = await client.post("/v1/rerank", {"model": "far", "query": "a", "documents": ["b"]})
    tokens = await client.post("/tokenize", {"model": "far", "prompt": "a"})
    assert (ranked.status, tokens.status) == (400, 400)
    assert "served by an upstream" in ranked.error["message"]


@pytest.mark.usefixtures("far")
async def test_the_model_is_listed_as_ready(client: AsgiClient) -> None:
    (card,) = (await client.get("/v1/models")).json["data"]
    assert (card["id"], card["status"]) == ("far", "ready")
    assert [one["name"] for one in (await client.get("/api/tags")).json["models"]] == ["far"]
    assert (await client.get("/api/ps")).status == 200
    assert (await client.post("/api/show", {"model": "far"})).status == 200
    anthropics = await client.get("/v1/models/far", headers={"anthropic-version": "2023-06-01"})
    assert anthropics.json["id"] == "far"
    assert (await client.get("/health")).status == 200
