"""The list of models, as everybody reads it and as Anthropic's clients do, with adapters in it; of
a model that several replicas hold, the properties that hold for each of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import MeasuredLoad
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.gateway.consumers.models import model_card
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import AdapterSpec
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from inference.wire.models import ModelCard, openai_model
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import Rig
from tests.inference.gateway.fake_neuron import FakeNeuron

ENTRY = CatalogueEntry(name="tiny", source="path:/models/tiny")
PRICED = ("input", "cached_input", "output")
BEGUN = LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=3, unit="tensors")
WALRUS = LoadFailure(code="unknown_architecture", message="no such thing as a walrus")
PLACE = {"node": "a", "status": "loading", "vram_estimate_mb": None}
PROGRESS = {"stage": "weights", "done": 1, "total": 3, "unit": "tensors", "eta_s": 20.0}


def shown(card: ModelCard) -> dict[str, Any]:
    return openai_model(card, card.id)


def neuron(name: str, digest: str = "", **changes: Any) -> NeuronView:
    held = {"neuron": name, "model": "tiny", "job_id": "job", "status": ReplicaStatus.READY}
    replica = ReplicaView(**{**held, "status_age_s": 1.0, "spec_digest": digest} | changes)
    return NeuronView(name=name, epoch="e", version="0", devices=(), replicas=(replica,))


LOAD = MeasuredLoad(
    neuron="beast",
    device_kind="cpu",
    load_bytes=1,
    process_bytes=1,
    kv_token_bytes=1,
    memory_correction_bytes=0,
    prefill_speed=None,
    context_tokens=None,
    capabilities=None,
)
LONG = replace(LOAD, context_tokens=1024, capabilities=("chat", "tool_call"))
SHORT = replace(LOAD, context_tokens=512, capabilities=("chat",))


@each_case(
    ("loads", "settings", "context", "tool_call"),
    [
        ((), {}, None, None),
        ((), {"max_context_tokens": 64}, 64, None),
        ((LOAD,), {}, None, None),
        ((LONG,), {}, 1024, True),
        ((LONG, SHORT), {}, 512, False),
        ((SHORT,), {"max_context_tokens": 64}, 64, False),
    ],
)
def test_what_is_known_of_a_model_that_is_not_loaded(
    loads: tuple[MeasuredLoad, ...], settings: Any, context: int | None, tool_call: bool | None
) -> None:
    entry = replace(ENTRY, measured_loads=loads, **settings)
    fields = shown(model_card(entry, FleetSnapshot(neurons=())))
    limit = fields["limit"]
    assert (limit and limit["context"], fields["tool_call"]) == (context, tool_call)
    assert (fields["status"], fields["loaded"]) == ("unloaded", False)


@each_case(
    ("digests", "status"),
    [(["old", "older"], "outdated"), (["old", ENTRY.spec_digest()], "ready"), ([""], "ready")],
)
def test_a_model_is_outdated_where_all_that_is_ready_is(digests: list[str], status: str) -> None:
    names = "abc"[: len(digests)]
    fleet = FleetSnapshot(neurons=tuple(map(neuron, names, digests)))
    card = model_card(ENTRY, fleet)
    assert (card.status, [place.node for place in card.locations]) == (status, list(names))
    entry = replace(ENTRY, temperature=0.25, repetition_window=64)
    assert model_card(entry, fleet).prices is None
    priced = {f"{kind}_price_micro_usd": n for n, kind in enumerate(PRICED, 1)}
    card = model_card(replace(entry, **priced), fleet)
    assert card.prices == (1, 2, 3)
    assert shown(card)["sampling_defaults"] == {"temperature": 0.25, "repetition_window": 64}


def state(status: ReplicaStatus, **changes: Any) -> FleetSnapshot:
    return FleetSnapshot(neurons=(neuron("a", status=status, **changes),))


@each_case(
    ("snapshot", "fields"),
    [
        (
            state(ReplicaStatus.LOADING),
            {"status": "loading", "loaded": False, "locations": [PLACE]},
        ),
        (state(ReplicaStatus.LOADING, progress=BEGUN, status_age_s=10.0), {"progress": PROGRESS}),
        (
            state(ReplicaStatus.FAILED, failure=WALRUS),
            {"status": "failed", "status_reason": f"a: {WALRUS.message}", "feasible_on": ()},
        ),
        (
            FleetSnapshot(neurons=(), absent=(neuron("a"),)),
            {"status": "recovering", "status_reason": "a has just fallen silent"},
        ),
    ],
    ids=["before it is ready", "how far a load is", "it cannot be loaded", "its neuron blinks"],
)
def test_a_model_that_is_not_served(snapshot: FleetSnapshot, fields: dict[str, Any]) -> None:
    card = model_card(ENTRY, snapshot)
    own = shown(card)
    assert card.capabilities is None, "nothing is known before it is ready"
    assert {name: own[name] for name in fields} == fields


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
    anthropics = {"anthropic-version": "2023-06-01"}
    page = (await client.get("/v1/models", headers=anthropics, query="limit=1")).json
    assert [one["display_name"] for one in page["data"]] == ["tiny"] and page["has_more"]
    assert (await client.get("/v1/models/gpt-4o", headers=anthropics)).json["id"] == "tiny"
    for headers, kind in (({}, "model_not_found"), (anthropics, None)):
        missing = await client.get("/v1/models/org/huge", headers=headers)
        assert (missing.status, missing.error.get("code")) == (404, kind)
    neuron.status = None
    await neuron.beat()
    async with asyncio.timeout(60):
        while model["loaded"]:
            model, _ = (await client.get("/v1/models")).json["data"]
            await asyncio.sleep(0.02)
    assert (model["capabilities"], model["tool_call"], model["loaded"]) == (None, None, False)
    assert (model["status"], model["limit"]) == ("unloaded", None)
    assert model["feasible_on"] == ["beast"]


async def test_an_adapter_runs_on_its_bases_replica(rig: Rig, neuron: FakeNeuron) -> None:
    source, named = "path:/adapters/sql", ("tiny:tiny-sql",)
    rig.catalogue.listed.append(
        CatalogueEntry(name="tiny-sql", source=source, base="tiny", aliases=named)
    )
    spec = AdapterSpec(name="tiny-sql", source=source)
    for name, adapter in (("tiny-sql", spec), ("tiny:tiny-sql", spec), ("tiny", None)):
        answer = await rig.ask(model=name)
        assert (answer.status, answer.json["model"]) == (200, name)
        submit = await neuron.submitted.get()
        assert (submit.model, submit.adapter) == ("tiny", adapter)
    base, _, adapted, alias = (await rig.client.get("/v1/models")).json["data"]
    assert ("parent" in base, alias["id"]) == (False, "tiny:tiny-sql")
    assert (adapted["id"], adapted["parent"]) == ("tiny-sql", "tiny")
    assert (adapted["status"], adapted["locations"][0]["node"]) == ("ready", "beast")
