"""What a request pays when it has ended, however it ends, and the records made of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from helexa_site.bootstrap.readiness import SELF_TEST_HEADER
from inference.gateway.gateway import Gateway
from inference.gateway.request.outcome import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Capture
from inference.logs.formatters import TextFormatter
from inference.logs.redaction import Redactor
from inference.protocol.events import (
    Accepted,
    Cancelled,
    Delta,
    Event,
    Failed,
    Failure,
    TokensCounted,
    Usage,
)
from inference.protocol.generation import Submit
from metering.prices import Prices
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import ENTRY, OPERATOR, FakeCatalogue
from tests.inference.gateway.fake_metering import KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.waiting import until

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
BEARER = {"authorization": f"Bearer {KEY}", "user-agent": "OpenAI/Python 3.1"}


async def test_a_finished_request_is_one_entry(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, catalogue: FakeCatalogue
) -> None:
    prices = Prices(input_micro_usd=100, output_micro_usd=200)
    priced = replace(
        ENTRY,
        input_price_micro_usd=100,
        cached_input_price_micro_usd=0,
        output_price_micro_usd=200,
    )
    catalogue.listed = [priced]
    answer = await client.post(CHAT, BODY, headers=BEARER)
    (entry,) = ledger.settled
    assert entry.request_id == answer.headers["x-request-id"]
    assert (entry.account, entry.key, entry.model, entry.neuron) == (
        "lab",
        KEY[:13],
        "tiny",
        "beast",
    )
    assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (7, 2, 5)
    assert (entry.outcome, entry.endpoint, entry.client) == ("finished", CHAT, "openai-python")
    assert entry.time_to_first_token_ms is not None
    assert entry.duration_ms >= entry.time_to_first_token_ms >= 0
    assert entry.prices == prices
    assert not ledger.reserved, "no cap, so nothing to hold"


async def test_what_is_billed_if_the_gateway_dies_now(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    neuron.script = endless
    running = client.open("POST", CHAT, {**BODY, "stream": True}, headers=BEARER)
    await running.until(b"on and")
    (begun,) = ledger.begun
    assert begun.record is not None
    assert (begun.request_id, begun.outcome, begun.neuron) == (
        (await neuron.submitted.get()).request_id,
        "gateway_lost",
        "beast",
    )
    assert (begun.account, begun.record.model_asked, begun.record.kind) == (
        "lab",
        "gpt-4o",
        "failed",
    )
    _, cached, completion, _ = ledger.counted[begun.request_id]
    assert completion > 0 == cached
    running.leave()
    await running.finish()
    await until(lambda: ledger.settled)
    assert ledger.counted[begun.request_id] == tuple(ledger.settled[0].tokens.values())


async def test_the_neuron_gets_who_asks_and_what_is_paid_for(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    ledger.cap_tokens = 2000
    seen: list[Submit] = []

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        seen.append(submit)
        async for events in paris(submit):
            yield events

    neuron.script = script
    assert (await client.post(CHAT, {**BODY, "n": 2}, headers=BEARER)).status == 200
    (submit,) = seen
    assert (submit.account, submit.key, submit.is_anonymous) == ("lab", KEY[:13], False)
    assert submit.endpoint == CHAT
    assert submit.max_prompt_tokens == ledger.reserved[0].prompt_tokens
    assert submit.cap_output_tokens is not None
    assert 2 * submit.cap_output_tokens <= 2000 - submit.max_prompt_tokens


async def test_a_model_that_the_key_may_not_use_is_not_loaded(
    client: AsgiClient, neuron: FakeNeuron, directory: FakeDirectory, catalogue: FakeCatalogue
) -> None:
    neuron.status = None
    await neuron.beat()
    directory.restrict(KEY, models=frozenset({"other"}))
    answer = await client.post(CHAT, BODY, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")
    assert (await client.get("/v1/models/tiny", headers=BEARER)).status == 403
    assert (await client.get("/v1/models", headers=BEARER)).json["data"] == []
    assert catalogue.loads == []


async def test_a_key_of_an_alias_may_use_what_the_alias_points_to(
    client: AsgiClient, neuron: FakeNeuron, directory: FakeDirectory, catalogue: FakeCatalogue
) -> None:
    assert "gpt-4o" in ENTRY.aliases
    directory.restrict(KEY, models=frozenset({"gpt-4o"}))
    assert (await client.post(CHAT, BODY, headers=BEARER)).status == 200
    assert (await client.get("/v1/models/tiny", headers=BEARER)).status == 200
    catalogue.listed = [
        replace(ENTRY, aliases=()),
        replace(ENTRY, name="other", aliases=("gpt-4o",)),
    ]
    assert (await client.get("/v1/models/gpt-4o", headers=BEARER)).json["id"] == "other"
    assert (await client.get("/v1/models/tiny", headers=BEARER)).status == 403


@pytest.mark.parametrize("reports_usage", [True, False])
async def test_who_hangs_up_pays_for_what_was_computed(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    gateway: Gateway,
    reports_usage: bool,
) -> None:
    neuron.script = endless
    neuron.usage_of_cancelled = (
        Usage(prompt_tokens=7, completion_tokens=40) if reports_usage else None
    )
    exchange = client.open("POST", CHAT, {**BODY, "stream": True}, headers=BEARER)
    await exchange.until(b"on and")
    exchange.leave()
    await exchange.finish()
    await until(lambda: ledger.settled)
    (entry,) = ledger.settled
    assert entry.outcome == "cancelled"
    assert (entry.prompt_tokens, entry.completion_tokens) == ((7, 40) if reports_usage else (0, 0))
    await until(lambda: not len(gateway.streams))


async def test_a_neuron_that_never_answers_a_cancel_is_not_waited_for(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.gateway.request.attempt.FINAL_USAGE_TIMEOUT_S", 0.2)
    neuron.script = endless
    neuron.ignores_cancels = True
    exchange = client.open("POST", CHAT, {**BODY, "stream": True}, headers=BEARER)
    await exchange.until(b"on and")
    exchange.leave()
    await exchange.finish()
    await until(lambda: ledger.settled)
    (entry,) = ledger.settled
    assert entry.prompt_tokens == 7
    assert entry.completion_tokens >= 1, "the tokens that arrived are counted"


async def test_a_failure_pays_for_what_was_computed(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    async def breaks(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
        yield [Delta(request_id=submit.request_id, text="a")]
        yield [
            Failed(
                request_id=submit.request_id,
                failure=Failure(code="device_fault", message="gone"),
                usage=Usage(prompt_tokens=7, completion_tokens=1),
            )
        ]

    neuron.script = breaks
    assert (await client.post(CHAT, BODY, headers=BEARER)).status == 503
    (entry,) = ledger.settled
    assert (entry.outcome, entry.prompt_tokens, entry.completion_tokens) == ("device_fault", 7, 1)


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("engine_crashed", logging.WARNING),
        ("out_of_memory", logging.WARNING),
        ("not_known_to_anybody", logging.ERROR),
        ("queue_full", logging.INFO),
        ("context_length_exceeded", logging.INFO),
    ],
)
async def test_failures_of_the_server_are_logged_with_their_cause(
    client: AsgiClient, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture, code: str, level: int
) -> None:
    async def breaks(submit: Submit) -> AsyncIterator[list[Event]]:
        failure = Failure(code=code, message="The engine\nis gone" + "!" * 1000)
        yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
        yield [Failed(request_id=submit.request_id, failure=failure)]

    neuron.script = breaks
    caplog.set_level("INFO", logger="helexa.requests")
    await client.post(CHAT, BODY | {"stream": True}, headers=BEARER)
    (record,) = (record for record in caplog.records if record.name == "helexa.requests")
    line = TextFormatter("gateway", Redactor()).format(record)
    assert record.levelno == level
    assert all(word in line for word in ("model=tiny", "neuron=beast", f" {code} "))
    assert ("cause=The engine\\nis gone!" in line) is (level > logging.INFO)
    assert len(line) < 700


async def test_refusals_are_reported_and_cost_nothing(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="helexa.requests")
    await client.post(CHAT, {"model": "no\nsuch", "messages": BODY["messages"]}, headers=BEARER)
    await client.post(CHAT, parts=[b"{"], headers=BEARER)
    await client.post(CHAT, BODY, headers={"authorization": "Bearer hx-0123456789-" + 32 * "x"})
    await client.get("/v1/nowhere")
    lines = [record.getMessage() for record in caplog.records if record.name == "helexa.requests"]
    codes = ["model_not_found", "invalid_json", "invalid_api_key", "unknown_url"]
    assert len(lines) == len(codes)
    for line, code in zip(lines, codes, strict=True):
        assert f" {code} " in line
        assert "such" not in line and "\n" not in line
    assert ledger.settled == []


async def test_the_self_test_of_serve_is_neither_billed_nor_counted(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    gateway: Gateway,
    directory: FakeDirectory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever the shared and the anonymous account may."""
    caplog.set_level("INFO", logger="helexa.requests")
    directory.budgets = (1,)
    ledger.cap_tokens = 0
    asked = {**OPERATOR, SELF_TEST_HEADER.lower(): "1"}
    assert (await client.post(CHAT, BODY, headers=asked)).status == 200
    assert ledger.begun == [], "nor after a gateway's death"
    assert "status=200" in caplog.text
    assert (ledger.settled, ledger.reserved) == ([], [])
    assert b'status="200"' not in generate_latest(gateway.metrics.registry)
    for headers in (OPERATOR, {**BEARER, SELF_TEST_HEADER.lower(): "1"}):
        assert (await client.post(CHAT, BODY, headers=headers)).status == 200
    assert [entry.account for entry in ledger.settled] == ["shared", "lab"]


async def test_counting_tokens_is_free(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    neuron.script = counted
    answer = await client.post("/v1/messages/count_tokens", BODY, headers=BEARER)
    assert (answer.status, answer.json["input_tokens"]) == (200, 11)
    assert not ledger.settled and not ledger.reserved


async def counted(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [TokensCounted(request_id=submit.request_id, prompt_tokens=11)]


async def test_a_cancel_from_elsewhere_settles(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    async def dropped(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
        yield [
            Cancelled(
                request_id=submit.request_id, usage=Usage(prompt_tokens=7, completion_tokens=0)
            )
        ]

    neuron.script = dropped
    assert (await client.post(CHAT, BODY, headers=BEARER)).status == 503
    (entry,) = ledger.settled
    assert (entry.outcome, entry.prompt_tokens) == ("cancelled", 7)


async def test_a_neuron_that_dies_ends_its_reports(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    """No client waits for more: the reported usage is charged at once."""
    neuron.script = endless
    exchange = client.open("POST", CHAT, {**BODY, "stream": True}, headers=BEARER)
    await exchange.until(b"on and")
    await neuron.die()
    await exchange.finish()
    await until(lambda: ledger.settled)
    (entry,) = ledger.settled
    assert (entry.outcome, entry.prompt_tokens) == ("neuron_lost", 7)
    assert entry.completion_tokens >= 1


def test_only_the_beginning_is_kept() -> None:
    capture = Capture()
    capture.ask(b"q" * (MAX_REQUEST_BYTES + 3))
    for part in (b"a" * (MAX_ANSWER_BYTES - 1), b"bcd", b"e"):
        capture.send(part)
    assert capture.request == b"q" * MAX_REQUEST_BYTES
    assert capture.num_request_bytes == MAX_REQUEST_BYTES + 3
    assert capture.answer == b"a" * (MAX_ANSWER_BYTES - 1) + b"b"
    assert capture.num_answer_bytes == MAX_ANSWER_BYTES + 3
    assert capture.num_bytes == MAX_REQUEST_BYTES + MAX_ANSWER_BYTES


def test_what_finds_no_room_keeps_its_sizes() -> None:
    capture = Capture()
    capture.ask(b"question")
    capture.send(b"answer")
    capture.drop()
    assert capture.num_bytes == 0
    assert (capture.num_request_bytes, capture.num_answer_bytes) == (8, 6)
