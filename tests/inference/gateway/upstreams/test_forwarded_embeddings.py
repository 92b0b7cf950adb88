"""Embeddings that an upstream answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.forwarding import SECRET, cut_early, serve
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

ASKED = {"model": "far", "input": ["a", "b"]}
USAGE = {"prompt_tokens": 5, "total_tokens": 5}


def embeds(asked: Asked, wire: Wire) -> None:
    inputs = asked.json["input"]
    data = [{"index": index, "embedding": [0.5, float(index)]} for index in range(len(inputs))]
    wire.json(200, {"object": "list", "data": data, "usage": USAGE})


@pytest.fixture(autouse=True)
def embedding(upstream: FakeUpstream, far: CatalogueEntry) -> None:
    upstream.answer = embeds


async def test_they_are_forwarded_and_billed(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger
) -> None:
    answer = await client.post("/v1/embeddings", {**ASKED, "dimensions": 2})
    assert [one["embedding"] for one in answer.json["data"]] == [[0.5, 0.0], [0.5, 1.0]]
    assert answer.json["usage"]["prompt_tokens"] == 5
    (asked,) = upstream.asked
    assert (asked.path, asked.headers["authorization"]) == ("/v1/embeddings", f"Bearer {SECRET}")
    assert asked.json == {
        "model": "org/m",
        "input": ["a", "b"],
        "encoding_format": "base64",
        "dimensions": 2,
    }
    (settled,) = ledger.settled
    assert (settled.neuron, settled.cost_micro_usd) == ("upstream:box", 5)
    assert (settled.prompt_tokens, settled.completion_tokens) == (5, 0)
    ollama = await client.post("/api/embed", {"model": "far", "input": "a"})
    assert (ollama.json["embeddings"], ollama.json["prompt_eval_count"]) == ([[1.0, 0.0]], 5)


async def test_ollamas_are_forwarded_and_billed(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    catalogue: FakeCatalogue,
    ledger: FakeLedger,
) -> None:
    serve(catalogue, far, url=upstream.origin, dialect="ollama")
    found = {"embeddings": [[0.5, 1.0]], "prompt_eval_count": 3}
    upstream.answer = lambda asked, wire: wire.json(200, found)
    answer = await client.post("/v1/embeddings", {"model": "far", "input": "a"})
    assert [one["embedding"] for one in answer.json["data"]] == [[0.5, 1.0]]
    (asked,) = upstream.asked
    assert asked.path == "/api/embed"
    assert asked.json == {"model": "org/m", "input": ["a"], "truncate": False}
    (settled,) = ledger.settled
    assert (settled.prompt_tokens, settled.cost_micro_usd) == (3, 3)


async def test_a_cap_holds(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger, directory: FakeDirectory
) -> None:
    directory.budgets = (1,)
    ledger.cap_tokens = 100
    assert (await client.post("/v1/embeddings", ASKED)).status == 200
    refused = await client.post("/v1/embeddings", {"model": "far", "input": "x" * 200})
    assert (refused.status, len(upstream.asked)) == (429, 1)
    assert not ledger.held


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (lambda asked, wire: wire.json(200, {"data": []}), 502, "upstream_failed"),
        (lambda asked, wire: wire.json(429, {"error": {}}), 429, "rate_limit_exceeded"),
        (lambda asked, wire: wire.json(400, {"error": {}}), 400, "upstream_refused"),
        (lambda asked, wire: wire.json(302, {}, location="http://x/"), 502, "upstream_failed"),
        (cut_early, 503, "upstream_unavailable"),
    ],
)
async def test_an_error_keeps_its_meaning_and_is_free(
    client: AsgiClient,
    upstream: FakeUpstream,
    ledger: FakeLedger,
    answer: Any,
    status: int,
    code: str,
) -> None:
    upstream.answer = answer
    refused = await client.post("/v1/embeddings", ASKED)
    assert (refused.status, refused.error["code"]) == (status, code)
    assert len(upstream.asked) == 1
    (settled,) = ledger.settled
    assert (settled.outcome, settled.cost_micro_usd) == (code, 0)


async def test_they_go_to_no_other_dialect_and_never_leave_unasked(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    serve(catalogue, far, leaves_network=True)
    assert (await client.post("/v1/embeddings", ASKED)).status == 403
    serve(catalogue, far, dialect="anthropic")
    refused = await client.post("/v1/embeddings", ASKED)
    assert (refused.status, refused.error["param"]) == (400, "model")
    assert "anthropic" in refused.error["message"]
    catalogue.listed = [replace(far, targets=("box/org/m when ready",))]
    assert (await client.post("/v1/embeddings", ASKED)).status == 200
    assert len(upstream.asked) == 1
