"""Traces of requests that upstreams answer: each attempt is a span that the upstream continues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import Task
from fleet.upstreams.entry import UpstreamEntry
from inference.gateway.tracing.spans import OPERATION_OF
from inference.wire.openai.passed.request import ENDPOINTS
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking
from tests.inference.gateway.tracing.traced import BODY, CHAT, new_trace
from tests.inference.gateway.upstreams.forwarding import HELLO
from tests.servers.collector import Collector
from tests.servers.fake_upstream import FakeUpstream


@pytest.fixture
def box() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        fake.answer = lambda asked, wire: wire.stream(HELLO)
        yield fake


@pytest.fixture
def entry(box: FakeUpstream) -> UpstreamEntry:
    return UpstreamEntry(name="box", url=box.url)


async def test_an_upstream_continues_the_trace(
    traced: AsgiClient,
    collector: Collector,
    neuron: FakeNeuron,
    catalogue: FakeCatalogue,
    box: FakeUpstream,
    entry: UpstreamEntry,
) -> None:
    """The request continues after a target that failed, whose span stays."""
    targets = ("own", "box/org/m")
    catalogue.listed = [replace(ENTRY, targets=targets, target_upstreams=(entry,))]
    neuron.script = breaking("queue_full")
    trace_id, headers = new_trace()
    answer = await traced.post(CHAT, BODY, headers=headers)
    assert answer.status == 200, answer.body
    spans = await collector.of_trace(trace_id, 5)
    assert [span.name for span in spans] == [
        *("chat tiny", "placement", "neuron beast", "placement", "chat org/m"),
    ]
    request, _, failed, _, attempt = spans
    assert (request.error, failed.error, attempt.error) == ("", "queue_full", "")
    assert attempt.kind == "CLIENT"
    assert attempt.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "org/m",
        "helexa.attempt": 2,
        "helexa.target": "upstream:box",
        "server.address": "127.0.0.1",
    }
    (asked,) = box.asked
    assert asked.headers["traceparent"] == f"00-{trace_id}-{attempt.span_id}-01"


async def test_a_request_that_is_passed_through_is_named_by_its_operation(
    traced: AsgiClient,
    collector: Collector,
    catalogue: FakeCatalogue,
    box: FakeUpstream,
    entry: UpstreamEntry,
) -> None:
    box.answer = lambda asked, wire: wire.json(200, {"data": []})
    cases: list[tuple[str, Task, str]] = [
        ("/v1/audio/speech", "speech", "speech"),
        ("/v1/images/generations", "images", "image_generation"),
        ("/v1/moderations", "moderation", "moderation"),
    ]
    for path, task, operation in cases:
        far = {"name": "far", "source": "upstream:box/org/m"}
        catalogue.listed = [CatalogueEntry(**far, task=task, upstream=entry)]
        trace_id, headers = new_trace()
        body = {"model": "far", "input": "Hello!", "prompt": "a hat"}
        answer = await traced.post(path, body, headers=headers)
        assert answer.status == 200, answer.body
        spans = await collector.of_trace(trace_id, 3)
        names = [f"{operation} far", "placement", f"{operation} org/m"]
        assert [span.name for span in spans] == names
        for span in (spans[0], spans[2]):
            assert span.attributes["gen_ai.operation.name"] == operation


def test_every_endpoint_that_passes_through_has_an_operation() -> None:
    operations = {OPERATION_OF[one.path] for one in ENDPOINTS}
    assert len(operations) == len(ENDPOINTS)
    assert "chat" not in operations
