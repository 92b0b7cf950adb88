"""Requests for an adapter go to its base's replica, and name the adapter."""

from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from inference.protocol.load import AdapterSpec
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron

ADAPTER = CatalogueEntry(
    name="tiny-sql", source="path:/adapters/sql", base="tiny", aliases=("tiny:tiny-sql",)
)
CHAT = "/v1/chat/completions"


def body(model: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}]}


async def test_an_adapter_runs_on_its_bases_replica(
    client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    catalogue.listed.append(ADAPTER)
    for name in ("tiny-sql", "tiny:tiny-sql"):
        answer = await client.post(CHAT, body(name))
        assert (answer.status, answer.json["model"]) == (200, name)
        submit = await neuron.submitted.get()
        assert submit.model == "tiny"
        assert submit.adapter == AdapterSpec(name="tiny-sql", source="path:/adapters/sql")
    await client.post(CHAT, body("tiny"))
    assert (await neuron.submitted.get()).adapter is None


async def test_an_adapter_is_listed_with_its_parent(
    client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    catalogue.listed.append(ADAPTER)
    base, base_alias, adapter, alias = (await client.get("/v1/models")).json["data"]
    assert (base_alias["id"], alias["id"]) == ("gpt-4o", "tiny:tiny-sql")
    assert "parent" not in base
    assert (adapter["id"], adapter["parent"]) == ("tiny-sql", "tiny")
    assert (adapter["status"], adapter["locations"][0]["node"]) == ("ready", "beast")
    assert (await client.get("/v1/models/tiny-sql")).json == adapter
