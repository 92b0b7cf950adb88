"""The list of models, as everybody reads it and as Anthropic's clients do, with adapters in it."""

from __future__ import annotations

import asyncio

import anthropic
import pytest

from fleet.catalogue import CatalogueEntry
from inference.protocol.load import AdapterSpec
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import Rig
from tests.inference.gateway.fake_neuron import FakeNeuron


async def test_what_is_reported_of_a_model(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.capabilities = ["chat", "tool_call"]
    await neuron.beat()
    model, alias = (await client.get("/v1/models")).json["data"]
    assert alias == model | {"id": "gpt-4o", "alias_of": "tiny", "aliases": []}
    assert (model["id"], model["status"], model["loaded"]) == ("tiny", "ready", True)
    assert [place["node"] for place in model["locations"]] == model["feasible_on"] == ["beast"]
    assert model["capabilities"] == ["text", "chat", "tool_call"]
    assert (model["tool_call"], model["reasoning"]) == (True, False)
    for name in ("tiny", "gpt-4o"):
        assert (await client.get(f"/v1/models/{name}")).json == model
    missing = await client.get("/v1/models/org/huge")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    neuron.status = None
    await neuron.beat()
    async with asyncio.timeout(60):
        while model["loaded"]:
            model, _ = (await client.get("/v1/models")).json["data"]
            await asyncio.sleep(0.02)
    assert (model["capabilities"], model["tool_call"], model["loaded"]) == (None, None, False)
    assert (model["status"], model["limit"]) == ("unloaded", None)
    assert model["feasible_on"] == ["beast"]


async def test_the_sdk_lists_models_in_pages(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
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


@each_case("query", ["limit=0", "limit=1001", "limit=x", "limit=00001", "after_id=huge"])
async def test_pages_that_are_not_there(client: AsgiClient, neuron: FakeNeuron, query: str) -> None:
    answer = await client.get("/v1/models", query=query, headers={"anthropic-version": "x"})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.json["type"] == "error"


ADAPTER = CatalogueEntry(
    name="tiny-sql", source="path:/adapters/sql", base="tiny", aliases=("tiny:tiny-sql",)
)


async def test_an_adapter_runs_on_its_bases_replica(rig: Rig, neuron: FakeNeuron) -> None:
    rig.catalogue.listed.append(ADAPTER)
    for name in ("tiny-sql", "tiny:tiny-sql"):
        answer = await rig.ask(model=name)
        assert (answer.status, answer.json["model"]) == (200, name)
        submit = await neuron.submitted.get()
        assert submit.model == "tiny"
        assert submit.adapter == AdapterSpec(name="tiny-sql", source="path:/adapters/sql")
    await rig.ask(model="tiny")
    assert (await neuron.submitted.get()).adapter is None


async def test_an_adapter_is_listed_with_its_parent(rig: Rig, neuron: FakeNeuron) -> None:
    rig.catalogue.listed.append(ADAPTER)
    base, base_alias, adapter, alias = (await rig.client.get("/v1/models")).json["data"]
    assert (base_alias["id"], alias["id"]) == ("gpt-4o", "tiny:tiny-sql")
    assert "parent" not in base
    assert (adapter["id"], adapter["parent"]) == ("tiny-sql", "tiny")
    assert (adapter["status"], adapter["locations"][0]["node"]) == ("ready", "beast")
    assert (await rig.client.get("/v1/models/tiny-sql")).json == adapter
