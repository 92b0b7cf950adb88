"""The list of models as Anthropic's clients read it, and as everybody else does."""

from __future__ import annotations

import asyncio

import anthropic
import pytest

from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron


async def test_the_sdk_lists_models_in_pages(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    neuron.capabilities = ["chat", "tool_call", "reasoning"]
    await neuron.beat()
    listed = [model async for model in anthropic_sdk.models.list(limit=1)]
    assert [model.id for model in listed] == ["tiny", "gpt-4o"]
    assert listed[1].display_name == "gpt-4o (tiny)"
    capabilities = listed[0].capabilities
    assert capabilities and capabilities.thinking.supported
    assert not capabilities.structured_outputs.supported
    assert (await anthropic_sdk.models.retrieve("gpt-4o")).id == "tiny"
    with pytest.raises(anthropic.NotFoundError):
        await anthropic_sdk.models.retrieve("huge")


@each_case(
    ("query", "ids", "has_more"),
    [
        ("", ["tiny", "gpt-4o"], False),
        ("limit=1", ["tiny"], True),
        ("limit=1&after_id=tiny", ["gpt-4o"], False),
        ("after_id=gpt-4o", [], False),
        ("before_id=gpt-4o", ["tiny"], False),
        ("limit=1000&beta=true", ["tiny", "gpt-4o"], False),
    ],
)
async def test_pages_of_models(
    client: AsgiClient, neuron: FakeNeuron, query: str, ids: list[str], has_more: bool
) -> None:
    answer = await client.get("/v1/models", query=query, headers={"anthropic-version": "x"})
    assert [model["id"] for model in answer.json["data"]] == ids
    assert answer.json["has_more"] is has_more
    assert answer.json["first_id"] == (ids[0] if ids else None)


@each_case("query", ["limit=0", "limit=1001", "limit=x", "after_id=huge"])
async def test_pages_that_are_not_there(client: AsgiClient, neuron: FakeNeuron, query: str) -> None:
    answer = await client.get("/v1/models", query=query, headers={"anthropic-version": "x"})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.json["type"] == "error"


async def test_what_is_reported_of_a_model(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.capabilities = ["chat", "tool_call"]
    await neuron.beat()
    model, alias = (await client.get("/v1/models")).json["data"]
    assert model["id"] == "tiny"
    assert alias == model | {"id": "gpt-4o", "alias_of": "tiny", "aliases": []}
    assert model["capabilities"] == ["text", "chat", "tool_call"]
    assert (model["tool_call"], model["reasoning"]) == (True, False)
    neuron.status = None
    await neuron.beat()
    async with asyncio.timeout(60):
        while model["loaded"]:
            model, _ = (await client.get("/v1/models")).json["data"]
            await asyncio.sleep(0.02)
    assert (model["capabilities"], model["tool_call"], model["loaded"]) == (None, None, False)
