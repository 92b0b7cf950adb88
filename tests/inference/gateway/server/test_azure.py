"""Azure OpenAI's client, and its paths with any deployment."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from inference.gateway.server.paths import api_path_of_azure, deployment_of, with_model
from inference.protocol.events import Accepted, Embedded, Event, Usage
from inference.protocol.generation import Submit
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron

TURNS: Any = [{"role": "user", "content": "Hi"}]
VERSION = "2024-10-21"


@pytest_asyncio.fixture
async def azure(server_url: str) -> AsyncIterator[openai.AsyncAzureOpenAI]:
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=server_url, api_key="x", api_version=VERSION, max_retries=0
    ) as client:
        yield client


async def test_chats(azure: openai.AsyncAzureOpenAI, neuron: FakeNeuron) -> None:
    answer = await azure.chat.completions.create(model="tiny", messages=TURNS)
    assert answer.choices[0].message.content
    stream = await azure.chat.completions.create(model="tiny", messages=TURNS, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces) == answer.choices[0].message.content


async def test_the_rest_of_its_calls(azure: openai.AsyncAzureOpenAI, neuron: FakeNeuron) -> None:
    completion = await azure.completions.create(model="tiny", prompt="Hi")
    assert completion.choices[0].text
    assert [model.id async for model in azure.models.list()] == ["tiny", "gpt-4o"]
    with pytest.raises(openai.NotFoundError) as missing:
        await azure.chat.completions.create(model="no-such", messages=TURNS)
    assert missing.value.code == "model_not_found"


async def test_embeds(azure: openai.AsyncAzureOpenAI, neuron: FakeNeuron) -> None:
    vector = struct.pack("<2f", 0.5, -0.5)

    async def embeds(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        usage = Usage(prompt_tokens=3, completion_tokens=0)
        yield [Embedded(request_id=submit.request_id, vectors=[vector], usage=usage)]

    neuron.script = embeds
    answer = await azure.embeddings.create(model="tiny", input="Hi", encoding_format="base64")
    assert base64.b64decode(str(answer.data[0].embedding)) == vector


async def test_its_newer_paths(server_url: str, neuron: FakeNeuron) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{server_url}/openai/v1/", api_key="x", max_retries=0
    ) as client:
        answer = await client.chat.completions.create(model="tiny", messages=TURNS)
        assert answer.choices[0].message.content


async def test_the_deployment_is_the_model(client: AsgiClient, neuron: FakeNeuron) -> None:
    path = "/openai/deployments/tiny/chat/completions"
    for named in ({}, {"model": "another"}):
        answer = await client.post(path, {"messages": TURNS, **named})
        assert (answer.status, answer.json["model"]) == (200, "tiny")
    unread = await client.post(path, [1])
    assert unread.status == 400
    unknown = await client.post("/openai/deployments/tiny/images/generations", {})
    assert (unknown.status, unknown.error["code"]) == (404, "unknown_url")


async def test_the_key_comes_in_its_own_header(make_client: MakeClient, neuron: FakeNeuron) -> None:
    client = make_client(api_key="shared-secret")
    path = "/openai/deployments/tiny/chat/completions"
    for key, status in (("", 401), ("wrong", 401), ("shared-secret", 200)):
        answer = await client.post(path, {"messages": TURNS}, headers={"api-key": key})
        assert answer.status == status


@each_case(
    ("path", "api_path", "model"),
    [
        ("/openai/deployments/tiny/completions", "/v1/completions", "tiny"),
        ("/openai/deployments/org/name/embeddings/", "/v1/embeddings", "org/name"),
        ("/openai/v1/responses", "/v1/responses", None),
        ("/openai/files", "/v1/files", None),
        ("/openai", "/v1", None),
        ("/openai2/files", None, None),
        ("/v1/models", None, None),
    ],
)
def test_paths(path: str, api_path: str | None, model: str | None) -> None:
    assert (api_path_of_azure(path), deployment_of(path)) == (api_path, model)


def test_only_the_model_is_changed() -> None:
    body = b'{"seed":123456789012345678901234567890,"x":1.10,"model":"a"}'
    assert with_model(body, "b") == body.replace(b'"a"', b'"b"')
    for other in (b"", b"[1]", b"{", b"\xff"):
        assert with_model(other, "b") == other
