"""One trace for each request, as a collector receives it: from the client's span to the engine's
stages or to an upstream that continues it, with what became of it and without any of its text."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from fleet.upstreams import UpstreamEntry
from inference.gateway.tracing import (
    DECODE,
    ENGINE,
    OPERATION_OF,
    PREFILL,
    PREPARE,
    QUEUE,
    reported_stages,
)
from inference.protocol.events import Event, Finished, StageTimes
from inference.protocol.generation import Submit
from inference.wire.openai.passed import ENDPOINTS
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import QUESTION, chat_body, until
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, paris
from tests.inference.gateway.upstreams.conftest import HELLO
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

CHAT = "/v1/chat/completions"
BODY = chat_body(model="gpt-4o")
CLIENTS_SPAN = "00f067aa0ba902b7"
PATIENCE_S = 60.0
numbers = itertools.count(1)


@dataclass(frozen=True)
class Received:
    """``parent_id`` is empty where it has none."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str
    """The message of its status; empty: it has none."""
    resource: dict[str, Any]

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


class Collector(FakeUpstream):
    """Takes OTLP's traces over HTTP and keeps their spans. ``status`` answers every export; while
    ``answers`` is not set, none is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = self._take
        self.spans: list[Received] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        self.url = f"{self.origin}/v1/traces"

    def __exit__(self, *ended: object) -> None:
        self.answers.set()
        super().__exit__(*ended)

    async def of_trace(self, trace_id: str, num_spans: int) -> list[Received]:
        """Returns a trace's spans by their beginnings, once so many have come: of two that began
        at once, the longer one first."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [span for span in list(self.spans) if span.trace_id == trace_id]
                if len(found) >= num_spans:
                    return sorted(found, key=lambda span: (span.start_ns, -span.end_ns))
                await asyncio.sleep(0.01)

    def _take(self, asked: Asked, wire: Wire) -> None:
        assert self.answers.wait(PATIENCE_S)
        found = ExportTraceServiceRequest.FromString(asked.body) if self.status == 200 else None
        for resource_spans in found.resource_spans if found else []:
            resource = _values(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [_received(span, resource) for span in scope_spans.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        wire.whole(self.status, answer, "application/x-protobuf")


def _received(span: Span, resource: dict[str, Any]) -> Received:
    is_error = span.status.code == Status.STATUS_CODE_ERROR
    return Received(
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        error=span.status.message if is_error else "",
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    # The hosts of this machine are asked directly, as by all of helexa.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with Collector() as started:
        yield started


@pytest.fixture
def traced(make_client: MakeClient, collector: Collector) -> AsgiClient:
    return make_client(traces_url=collector.url, allow_anonymous=False)


def new_trace(*, flags: str = "01") -> tuple[str, dict[str, str]]:
    """A trace's id, and the headers of a client whose request belongs to it."""
    trace_id = f"{next(numbers):032x}"
    traceparent = f"00-{trace_id}-{CLIENTS_SPAN}-{flags}"
    return trace_id, {"authorization": f"Bearer {KEY}", "traceparent": traceparent}


def named(spans: list[Received], name: str) -> Received:
    (found,) = (span for span in spans if span.name == name)
    return found


async def in_stages(submit: Submit) -> AsyncIterator[list[Event]]:
    """Answers like a neuron on another host, whose clock is no matter."""
    async for events in paris(submit):
        if isinstance(events[-1], Finished) and submit.traceparent:
            stages = times(60.0, 10.0, queue_ms=5.0, prefill_ms=20.0, decode_ms=25.0)
            await asyncio.sleep(0.08)
            events.insert(-1, msgspec.structs.replace(stages, request_id=submit.request_id))
        yield events


async def test_a_chat_is_one_trace_and_none_of_its_text(
    traced: AsgiClient, collector: Collector, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture
) -> None:
    neuron.script = in_stages
    trace_id, headers = new_trace()
    with caplog.at_level("INFO", logger="helexa.requests"):
        answer = await traced.post(CHAT, {**BODY, "stream": True}, headers=headers)
    spans = await collector.of_trace(trace_id, 7)
    names = {span.span_id: span.name for span in spans} | {CLIENTS_SPAN: "client"}
    assert {span.name: names[span.parent_id] for span in spans} == {
        "chat tiny": "client",
        "placement": "chat tiny",
        "neuron beast": "chat tiny",
        "neuron prepare": "neuron beast",
        "engine queue": "neuron beast",
        "engine prefill": "neuron beast",
        "engine decode": "neuron beast",
    }
    assert [round(span.duration_ms, 3) for span in spans[3:]] == [10.0, 5.0, 20.0, 25.0]
    request, attempt = spans[0], named(spans, "neuron beast")
    for before, after in itertools.pairwise(spans[3:]):
        assert abs(before.end_ns - after.start_ns) <= 1
    assert request.start_ns <= attempt.start_ns < spans[3].start_ns
    assert spans[-1].end_ns < attempt.end_ns <= request.end_ns
    assert (request.kind, attempt.kind, request.error) == ("SERVER", "CLIENT", "")
    place = {"helexa.target": "beast", "helexa.was_cold": False}
    assert named(spans, "placement").attributes == place
    submit = neuron.submitted.get_nowait()
    assert submit.traceparent == f"00-{trace_id}-{attempt.span_id}-01"
    first_token_ms = request.attributes.pop("helexa.time_to_first_token_ms")
    assert first_token_ms <= request.duration_ms + 1
    assert request.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "helexa",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "helexa.account": "lab",
        "helexa.key": KEY[:13],
        "helexa.outcome": "answered",
        "helexa.request_id": answer.headers["x-request-id"],
        "helexa.target": "beast",
        "http.response.status_code": 200,
        "http.route": CHAT,
    }
    assert request.resource["service.name"] == "helexa"
    (line,) = (one for one in caplog.records if one.name == "helexa.requests")
    assert line.__dict__["request"]["trace_id"] == trace_id
    sent = b"".join(asked.body for asked in collector.asked)
    assert all(text.encode() not in sent for text in (QUESTION, "Pari", KEY))


async def test_refusals_and_who_does_not_sample(
    client: AsgiClient, traced: AsgiClient, collector: Collector, neuron: FakeNeuron
) -> None:
    trace_id, headers = new_trace(flags="00")
    for sender, asked in ((client, new_trace()[1]), (traced, headers)):
        assert (await sender.post(CHAT, BODY, headers=asked)).status == 200
        assert (await neuron.submitted.get()).traceparent == ""
    _, others = new_trace()
    await traced.post(CHAT, BODY, headers=others | {"traceparent": "00-nonsense-01"})
    await until(lambda: any(span.name == "chat tiny" for span in collector.spans))
    (request,) = (span for span in collector.spans if span.name == "chat tiny")
    assert (request.trace_id != trace_id, request.parent_id) == (True, "")
    # Refusals have a span with their code.
    secret = "sk-sent-as-a-model-by-mistake-0123456789"
    neuron.script = breaking("context_length_exceeded")
    for key, change, code, num_spans in (
        ("no-key", {}, "invalid_api_key", 1),
        (KEY, {"n": 0}, "invalid_value", 1),
        (KEY, {"model": secret}, "model_not_found", 1),
        (KEY, {}, "context_length_exceeded", 3),
    ):
        trace_id, headers = new_trace()
        headers["authorization"] = f"Bearer {key}"
        answer = await traced.post(CHAT, {**BODY, **change}, headers=headers)
        request, *_ = spans = await collector.of_trace(trace_id, num_spans)
        assert (request.error, request.attributes["error.type"]) == (code, code)
        assert request.attributes["helexa.outcome"] == "refused"
        assert request.attributes["http.response.status_code"] == answer.status >= 400
        assert request.parent_id == CLIENTS_SPAN
    assert named(spans, "neuron beast").error == "context_length_exceeded"
    assert not [asked for asked in collector.asked if secret.encode() in asked.body]


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
async def test_a_collector_in_trouble_delays_nobody(
    make_client: MakeClient,
    collector: Collector,
    neuron: FakeNeuron,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    if trouble == "refuses":
        collector.status = 400
    else:
        collector.answers.clear()
    client = make_client(traces_url=collector.url)
    for _ in range(4):
        assert (await client.post(CHAT, BODY, headers=new_trace()[1])).status == 200
    await until(lambda: collector.asked)
    await until(lambda: reports(caplog))
    (failed,) = reports(caplog)
    assert collector.url in failed and "not exported" in failed
    assert not [one for one in caplog.records if one.name.startswith("opentelemetry")]


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.endswith("gateway.tracing")]


def times(total_ms: float, prepare_ms: float, **others: float | None) -> StageTimes:
    return StageTimes(request_id="r", total_ms=total_ms, prepare_ms=prepare_ms, **others)


def test_what_the_neuron_did_not_take_was_two_equal_ways() -> None:
    whole = times(6000.0, 1000.0, queue_ms=2000.0, prefill_ms=1000.0, decode_ms=2000.0)
    bounds = [101.0, 102.0, 104.0, 105.0, 107.0]
    stages = [*zip((PREPARE, QUEUE, PREFILL, DECODE), bounds, bounds[1:], strict=False)]
    assert [*reported_stages(whole, sent_s=100.0, ended_s=108.0)] == stages
    for found, names in (
        (times(1000.0, 1000.0), [PREPARE]),
        (times(2000.0, 1000.0, queue_ms=1000.0), [PREPARE, QUEUE]),
        (times(2000.0, 1000.0), [PREPARE, ENGINE]),
        (times(1.0, 1e9, queue_ms=1e9), [PREPARE, QUEUE]),  # none leaves the attempt
        (times(1e12, 0.0), [PREPARE, ENGINE]),
    ):
        stages = [*reported_stages(found, sent_s=1.0, ended_s=3.0)]
        assert [name for name, _, _ in stages] == names
        assert 1.0 <= stages[0][1] <= stages[0][2] == stages[-1][1] or len(names) == 1
        assert stages[-1][1] <= stages[-1][2] <= 3.0


async def test_an_upstream_continues_the_trace(
    traced: AsgiClient, collector: Collector, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    """The request continues after a target that failed, whose span stays."""
    neuron.script = breaking("queue_full")
    trace_id, headers = new_trace()
    with FakeUpstream() as box:
        box.answer = lambda asked, wire: wire.stream(HELLO)
        entry = UpstreamEntry(name="box", url=box.url)
        targets = ("own", "box/org/m")
        catalogue.listed = [replace(ENTRY, targets=targets, target_upstreams=(entry,))]
        answer = await traced.post(CHAT, BODY, headers=headers)
    assert answer.status == 200, answer.body
    spans = await collector.of_trace(trace_id, 5)
    names = ["chat tiny", "placement", "neuron beast", "placement", "chat org/m"]
    assert [span.name for span in spans] == names
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
    operations = {OPERATION_OF[one.path] for one in ENDPOINTS}
    assert len(operations) == len(ENDPOINTS) and "chat" not in operations
