"""Requests without an answer in text, through the whole gateway: vectors, scores and tokens."""

from __future__ import annotations

import base64
import dataclasses
import struct
from collections.abc import AsyncIterator
from typing import Any

from inference.protocol.events import Event, Tokenized
from inference.protocol.generation import (
    ChatInput,
    EmbeddingRequest,
    PairsInput,
    ScoreRequest,
    Submit,
    TextInput,
    TokenizeRequest,
    TokensInput,
)
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import embeddings_body, tokenizes
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, embeds, failing

EMBEDDINGS = "/v1/embeddings"
VECTOR = struct.pack("<3f", 0.6, -0.8, 0.0)
ASKED = {"model": "tiny", "query": "red?", "documents": ["grass", "blood"]}
TURNS = [{"role": "user", "content": "Hi"}]
PAIRS = PairsInput(firsts=["red?"], seconds=["grass", "blood"])
scores = embeds(struct.pack("<f", 0.25), struct.pack("<f", 0.75))


async def settings(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [
        Tokenized(
            request_id=submit.request_id,
            token_ids=[],
            context_tokens=9,
            settings={"tokenizer_class": "T", "chat_template": "{{ messages }}"},
        )
    ]


def asked(neuron: FakeNeuron) -> Any:
    submit = neuron.frames[-1]
    assert isinstance(submit, Submit)
    return submit.request


async def test_embeddings_and_tokens(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = embeds(VECTOR, VECTOR)
    answer = await client.post(EMBEDDINGS, embeddings_body())
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    second = {"object": "embedding", "index": 1, "embedding": [0.6, -0.8, 0.0]}
    assert answer.json["data"][1] == second
    texts = TextInput(texts=["one", "two"])
    assert asked(neuron) == EmbeddingRequest(model="tiny", input=texts)
    body = embeddings_body(model="gpt-4o", encoding_format="base64")
    answer = await client.post(f"{EMBEDDINGS}/", body)
    assert answer.json["model"] == "gpt-4o"
    assert base64.b64decode(answer.json["data"][0]["embedding"]) == VECTOR
    neuron.script = failing
    answer = await client.post(EMBEDDINGS, embeddings_body())
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["param"] == "messages", "the neuron's"
    # Tokens of texts and chats.
    neuron.script = tokenizes
    answer = await client.post("/tokenize", {"model": "tiny", "prompt": "Hi!"})
    counted = {"count": 2, "max_model_len": 100, "tokens": [5, 6], "token_strs": ["Hi", "!"]}
    assert answer.json == counted
    assert asked(neuron).adds_special_tokens
    back = await client.post("/detokenize", {"model": "tiny", "tokens": [5, 6]})
    assert back.json == {"prompt": "Hi!"}
    assert asked(neuron).input == TokensInput(prompts=[[5, 6]])
    body = {"model": "tiny", "messages": TURNS, "add_generation_prompt": False}
    assert (await client.post("/tokenize", body)).status == 200
    assert isinstance(asked(neuron).input, ChatInput)
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


@each_case(
    ("path", "version", "returns_documents"),
    [("/v1/rerank", "1", True), ("/rerank", "1", True), ("/v2/rerank", "2", False)],
)
async def test_rerank(
    client: AsgiClient, neuron: FakeNeuron, path: str, version: str, returns_documents: bool
) -> None:
    neuron.script = scores
    answer = await client.post(path, ASKED)
    assert answer.status == 200
    assert [result["index"] for result in answer.json["results"]] == [1, 0]
    assert ("document" in answer.json["results"][0]) is returns_documents
    assert answer.json["meta"]["api_version"] == {"version": version}
    assert answer.json["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert asked(neuron) == ScoreRequest(model="tiny", input=PAIRS)
    body = {"model": "tiny", "text_1": "red?", "text_2": ["grass", "blood"]}
    answer = await client.post(path.replace("rerank", "score").replace("v2", "v1"), body)
    assert [one["score"] for one in answer.json["data"]] == [0.25, 0.75]


async def test_the_only_model_needs_no_name(
    client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    """The only one that is loaded, of several; or the only one that is offered."""
    neuron.script = tokenizes
    catalogue.listed = [ENTRY, dataclasses.replace(ENTRY, name="second", aliases=())]
    for path, fields in (("/tokenize", {"prompt": "Hi!"}), ("/detokenize", {"tokens": [5, 6]})):
        assert (await client.post(path, fields)).status == 200
        assert asked(neuron).model == "tiny"
    assert (await client.get("/tokenizer_info")).status == 200
    catalogue.listed = [dataclasses.replace(ENTRY, name=name, aliases=()) for name in "ab"]
    refused = await client.post("/tokenize", {"prompt": "Hi!"})
    assert (refused.status, refused.error["param"]) == (400, "model")
