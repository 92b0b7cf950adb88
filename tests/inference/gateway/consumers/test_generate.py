"""Answers, vectors, scores and tokens through the whole gateway: a real Redis between it and a fake
neuron."""

from __future__ import annotations

import asyncio
import base64
import struct
from dataclasses import replace
from typing import Any

import anthropic
import pytest

from inference.gateway.consumers import generate as generation
from inference.gateway.gateway import Gateway
from inference.gateway.request import place
from inference.protocol.events import Tokenized
from inference.protocol.generation import (
    EmbeddingRequest,
    Submit,
    TextInput,
    TokenCountRequest,
    TokenizeRequest,
    TokensInput,
)
from inference.protocol.heartbeat import ReplicaStatus
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import (
    breaks,
    calls_a_tool,
    chat_body,
    counts,
    embeddings_body,
    tokenizes,
    until,
)
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, embeds, endless, failing, saying, silent

CHAT = "/v1/chat/completions"


async def test_whole_and_streamed(client: AsgiClient, neuron: FakeNeuron, gateway: Gateway) -> None:
    answer = await client.post(CHAT, chat_body(temperature=0, model="gpt-4o"))
    choice = answer.json["choices"][0]
    assert choice["message"]["content"] == "The capital is Paris."
    assert (choice["finish_reason"], answer.json["model"]) == ("stop", "gpt-4o")
    assert answer.json["id"] == f"chatcmpl-{answer.headers['x-request-id']}"
    assert ((await neuron.submitted.get()).model, asked(neuron).sampling.temperature) == ("tiny", 0)
    answer = await client.post("/v1/completions", {"model": "tiny", "prompt": [1, 2, 3]})
    assert answer.json["choices"][0]["text"] == "The capital is Paris."
    assert asked(neuron).input == TokensInput(prompts=[[1, 2, 3]])
    gateway.config = replace(gateway.config, always_stream_usage=True)
    *chunks, usage, done = (await client.post(CHAT, chat_body(stream=True))).chunks
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 5, "[DONE]")
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert ("".join(texts), len(chunks)) == ("The capital is Paris.", 6)


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


async def test_leaving_and_the_deadline(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    neuron.script = endless
    for path, streams in ((CHAT, True), ("/v1/messages", False)):
        exchange = client.open("POST", path, chat_body(stream=streams, max_tokens=50))
        submit = await neuron.submitted.get()
        if streams:
            await exchange.until(b"on and")
            (stream,) = gateway.streams
            assert stream._deadline is None
        exchange.leave()
        await exchange.finish()
        assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
        await until(lambda: not len(gateway.streams))  # the neuron's end arrived
        assert streams or exchange.body == b""
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


async def test_anthropics_sdk(anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron) -> None:
    create, body = anthropic_sdk.messages.create, chat_body(max_tokens=50)
    neuron.script = calls_a_tool
    tool: Any = {"name": "get_weather", "input_schema": {"type": "object"}}
    message = await create(**body, tools=[tool], thinking={"type": "adaptive"})
    thought, call = message.content
    assert isinstance(thought, anthropic.types.ThinkingBlock) and thought.signature
    assert isinstance(call, anthropic.types.ToolUseBlock) and call.input == {"city": "Paris"}
    assert message._request_id and message.id == f"msg_{message._request_id}"
    neuron.script = counts
    turns: Any = body["messages"]
    counted = await anthropic_sdk.messages.count_tokens(model="gpt-4o", messages=turns)
    assert (counted.input_tokens, type(asked(neuron))) == (42, TokenCountRequest)
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await create(**body | {"model": "huge"})
    assert unknown.value.type == "not_found_error"
    assert unknown.value.error_code == "model_not_found" and unknown.value.request_id
    neuron.script = failing
    for streams in (False, True):
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* 8192"):
            await create(**body, stream=streams)
    neuron.script = breaks
    with pytest.raises(anthropic.APIStatusError, match="The engine crashed") as broken:
        _ = [event async for event in await create(**body, stream=True)]
    assert broken.value.type == "overloaded_error"


EMBEDDINGS = "/v1/embeddings"
VECTOR = struct.pack("<3f", 0.6, -0.8, 0.0)
ASKED = {"model": "tiny", "query": "red?", "documents": ["grass", "blood"]}
TURNS = [{"role": "user", "content": "Hi"}]
scores = embeds(struct.pack("<f", 0.25), struct.pack("<f", 0.75))


settings = saying(
    [
        Tokenized(
            request_id="",
            token_ids=[],
            context_tokens=9,
            settings={"tokenizer_class": "T", "chat_template": "{{ messages }}"},
        )
    ]
)


def asked(neuron: FakeNeuron) -> Any:
    submit = neuron.frames[-1]
    assert isinstance(submit, Submit)
    return submit.request


async def test_embeddings_and_tokens(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = embeds(VECTOR, VECTOR)
    answer = await client.post(EMBEDDINGS, embeddings_body())
    assert answer.json["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    second = {"object": "embedding", "index": 1, "embedding": [0.6, -0.8, 0.0]}
    assert (answer.headers["content-type"], answer.json["data"][1]) == ("application/json", second)
    texts = TextInput(texts=["one", "two"])
    assert asked(neuron) == EmbeddingRequest(model="tiny", input=texts)
    body = embeddings_body(model="gpt-4o", encoding_format="base64")
    answer = await client.post(f"{EMBEDDINGS}/", body)
    assert answer.json["model"] == "gpt-4o"
    assert base64.b64decode(answer.json["data"][0]["embedding"]) == VECTOR
    neuron.script = failing
    answer = await client.post(EMBEDDINGS, embeddings_body())
    assert (answer.status, answer.error["param"]) == (400, "messages"), "the neuron's"
    neuron.script = scores
    reranked = (await client.post("/v1/rerank", ASKED)).json["results"]
    assert [(one["index"], one["relevance_score"]) for one in reranked] == [(1, 0.75), (0, 0.25)]
    scored = {"model": "tiny", "text_1": "red?", "text_2": ["grass", "blood"]}
    scored = (await client.post("/v1/score", scored)).json
    assert [one["score"] for one in scored["data"]] == [0.25, 0.75]
    # Tokens of texts and chats.
    neuron.script = tokenizes
    answer = await client.post("/tokenize", {"model": "tiny", "prompt": "Hi!"})
    counted = {"count": 2, "max_model_len": 100, "tokens": [5, 6], "token_strs": ["Hi", "!"]}
    assert (answer.json, asked(neuron).adds_special_tokens) == (counted, True)
    back = await client.post("/detokenize", {"model": "tiny", "tokens": [5, 6]})
    assert back.json == {"prompt": "Hi!"}
    assert asked(neuron).input == TokensInput(prompts=[[5, 6]])
    body = {"model": "tiny", "messages": TURNS, "add_generation_prompt": False}
    assert (await client.post("/tokenize", body)).status == 200
    assert not asked(neuron).adds_special_tokens
    assert not asked(neuron).input.adds_generation_prompt
    neuron.script = settings
    answer = await client.get("/tokenizer_info", query="model=tiny")
    assert answer.json == {"tokenizer_class": "T", "chat_template": "{{ messages }}"}
    assert isinstance(asked(neuron), TokenizeRequest) and asked(neuron).shows_settings


@each_case(
    ("path", "body", "status", "param"),
    [
        (EMBEDDINGS, embeddings_body(input=""), 400, "input"),
        (EMBEDDINGS, embeddings_body(model="unknown"), 404, "model"),
        ("/v1/rerank", {**ASKED, "documents": []}, 400, "documents"),
        ("/tokenize", {"model": "tiny"}, 400, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "Hi", "messages": TURNS}, 400, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "Hi", "tools": []}, 400, "tools"),
        ("/tokenize", {"model": "tiny", "prompt": "Hi", "stream": True}, 400, "stream"),
        ("/detokenize", {"model": "tiny", "tokens": []}, 400, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [-1]}, 400, "tokens[0]"),
    ],
)
async def test_refusals_of_ours(
    client: AsgiClient, neuron: FakeNeuron, path: str, body: Any, status: int, param: str
) -> None:
    answer = await client.post(path, body)
    assert (answer.status, answer.error["param"]) == (status, param)
    assert not neuron.frames


async def test_no_name(client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue) -> None:
    neuron.script = tokenizes
    catalogue.listed = [ENTRY, replace(ENTRY, name="second", aliases=())]
    for path, fields in (("/tokenize", {"prompt": "Hi!"}), ("/detokenize", {"tokens": [5, 6]})):
        assert (await client.post(path, fields)).status == 200
        assert asked(neuron).model == "tiny"
    assert (await client.get("/tokenizer_info")).status == 200
    catalogue.listed = [replace(ENTRY, name=name, aliases=()) for name in "ab"]
    refused = await client.post("/tokenize", {"prompt": "Hi!"})
    assert (refused.status, refused.error["param"]) == (400, "model")
