"""Rerank and score through the whole gateway: a real Redis between it and a fake neuron."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest

from inference.protocol.events import Accepted, Embedded, Event, Tokenized, Usage
from inference.protocol.generation import PairsInput, ScoreRequest, Submit, TokenizeRequest
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import FakeNeuron

ASKED = {"model": "tiny", "query": "red?", "documents": ["grass", "blood"]}
PAIRS = PairsInput(firsts=["red?"], seconds=["grass", "blood"])


async def scores(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=9)]
    usage = Usage(prompt_tokens=9, completion_tokens=0)
    vectors = [struct.pack("<f", 0.25), struct.pack("<f", 0.75)]
    yield [Embedded(request_id=submit.request_id, vectors=vectors, usage=usage)]


async def settings(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [
        Tokenized(
            request_id=submit.request_id,
            token_ids=[],
            context_tokens=9,
            settings={"tokenizer_class": "T", "chat_template": "{{ messages }}"},
        )
    ]


@pytest.mark.parametrize(
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
    assert answer.json["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    (submit,) = neuron.frames
    assert isinstance(submit, Submit)
    assert submit.request == ScoreRequest(model="tiny", input=PAIRS)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_score(client: AsgiClient, neuron: FakeNeuron, path: str) -> None:
    neuron.script = scores
    answer = await client.post(
        path, {"model": "tiny", "text_1": "red?", "text_2": ["grass", "blood"]}
    )
    assert [one["score"] for one in answer.json["data"]] == [0.25, 0.75]


async def test_settings_of_the_tokenizer(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = settings
    answer = await client.open("GET", "/tokenizer_info", query="model=tiny").finish()
    assert answer.json == {"tokenizer_class": "T", "chat_template": "{{ messages }}"}
    (submit,) = neuron.frames
    assert isinstance(submit, Submit) and isinstance(submit.request, TokenizeRequest)
    assert submit.request.shows_settings


async def test_the_document_of_the_api(client: AsgiClient, neuron: FakeNeuron) -> None:
    answer = await client.open("GET", "/openapi.json").finish()
    assert "/v1/rerank" in answer.json["paths"]


async def test_refusals(client: AsgiClient, neuron: FakeNeuron) -> None:
    refused = await client.post("/v1/rerank", {**ASKED, "documents": []})
    assert (refused.status, refused.error["param"]) == (400, "documents")
    nowhere = await client.post("/v1/videos", {"model": "tiny"})
    assert (nowhere.status, nowhere.error["code"]) == (404, "unknown_url")
    assert "/v1/rerank" in nowhere.error["message"]
    assert not neuron.frames
