"""What a request pays when it has ended, however it ends, and the records made of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from helexa_site.bootstrap.readiness import SELF_TEST_HEADER
from inference.gateway.request.outcome import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Capture
from inference.logs.formatters import TextFormatter
from inference.logs.redaction import Redactor
from inference.protocol.events import (
    Cancelled,
    Delta,
    Event,
    Failed,
    Failure,
    TokensCounted,
    Usage,
)
from metering.prices import Prices
from tests.cases import each_case
from tests.inference.gateway.conftest import BEARER, CHAT, ENTRY, OPERATOR, SHORT_CHAT, Rig
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.fake_neuron import ACCEPTED, FakeNeuron, breaking, endless, saying
from tests.inference.gateway.waiting import until


async def test_a_finished_request_is_one_entry(rig: Rig, neuron: FakeNeuron) -> None:
    prices = {"input_price_micro_usd": 100, "output_price_micro_usd": 200}
    rig.catalogue.listed = [replace(ENTRY, cached_input_price_micro_usd=0, **prices)]
    answer = await rig.ask()
    entry = rig.settled
    assert entry.request_id == answer.headers["x-request-id"]
    assert (entry.account, entry.key) == ("lab", KEY[:13])
    assert (entry.model, entry.neuron) == ("tiny", "beast")
    assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (7, 2, 5)
    assert (entry.outcome, entry.endpoint, entry.client) == ("finished", CHAT, "openai-python")
    assert entry.time_to_first_token_ms is not None
    assert entry.duration_ms >= entry.time_to_first_token_ms >= 0
    assert entry.prices == Prices(input_micro_usd=100, output_micro_usd=200)
    assert not rig.ledger.reserved, "no cap, so nothing to hold"


async def test_what_is_billed_if_the_gateway_dies_now(rig: Rig, neuron: FakeNeuron) -> None:
    neuron.script = endless
    running = rig.open(stream=True)
    await running.until(b"on and")
    (begun,) = rig.ledger.begun
    assert begun.record is not None
    assert begun.request_id == (await neuron.submitted.get()).request_id
    assert (begun.outcome, begun.neuron, begun.account) == ("gateway_lost", "beast", "lab")
    assert (begun.record.model_asked, begun.record.kind) == ("gpt-4o", "failed")
    _, cached, completion, _ = rig.ledger.counted[begun.request_id]
    assert completion > 0 == cached
    running.leave()
    await running.finish()
    await until(lambda: rig.ledger.settled)
    assert rig.ledger.counted[begun.request_id] == tuple(rig.settled.tokens.values())


async def test_the_neuron_gets_who_asks_and_what_is_paid_for(rig: Rig, neuron: FakeNeuron) -> None:
    rig.cap(2000)
    assert (await rig.ask(n=2)).status == 200
    submit = neuron.submitted.get_nowait()
    assert (submit.account, submit.key, submit.is_anonymous) == ("lab", KEY[:13], False)
    assert submit.endpoint == CHAT
    assert submit.max_prompt_tokens == rig.ledger.reserved[0].prompt_tokens
    assert submit.cap_output_tokens is not None
    assert 2 * submit.cap_output_tokens <= 2000 - submit.max_prompt_tokens


async def test_a_model_that_the_key_may_not_use_is_not_loaded(rig: Rig, neuron: FakeNeuron) -> None:
    neuron.status = None
    await neuron.beat()
    rig.directory.restrict(KEY, models=frozenset({"other"}))
    answer = await rig.ask()
    assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")
    assert (await rig.client.get("/v1/models/tiny", headers=BEARER)).status == 403
    assert (await rig.client.get("/v1/models", headers=BEARER)).json["data"] == []
    assert rig.catalogue.loads == []


async def test_a_key_of_an_alias_may_use_what_the_alias_points_to(
    rig: Rig, neuron: FakeNeuron
) -> None:
    assert "gpt-4o" in ENTRY.aliases
    rig.directory.restrict(KEY, models=frozenset({"gpt-4o"}))
    assert (await rig.ask()).status == 200
    assert (await rig.client.get("/v1/models/tiny", headers=BEARER)).status == 200
    rig.catalogue.listed = [
        replace(ENTRY, aliases=()),
        replace(ENTRY, name="other", aliases=("gpt-4o",)),
    ]
    assert (await rig.client.get("/v1/models/gpt-4o", headers=BEARER)).json["id"] == "other"
    assert (await rig.client.get("/v1/models/tiny", headers=BEARER)).status == 403


@pytest.mark.parametrize(
    ("usage", "paid"),
    [(Usage(prompt_tokens=7, completion_tokens=40), (7, 40)), (None, (0, 0))],
)
async def test_who_hangs_up_pays_for_what_was_computed(
    rig: Rig, neuron: FakeNeuron, usage: Usage | None, paid: tuple[int, int]
) -> None:
    neuron.usage_of_cancelled = usage
    await hang_up(rig, neuron)
    entry = rig.settled
    assert entry.outcome == "cancelled"
    assert (entry.prompt_tokens, entry.completion_tokens) == paid
    await until(lambda: not len(rig.gateway.streams))


async def hang_up(rig: Rig, neuron: FakeNeuron) -> None:
    """In the middle of an answer; what it costs is settled."""
    neuron.script = endless
    exchange = rig.open(stream=True)
    await exchange.until(b"on and")
    exchange.leave()
    await exchange.finish()
    await until(lambda: rig.ledger.settled)


async def test_a_neuron_that_never_answers_a_cancel_is_not_waited_for(
    rig: Rig, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.gateway.request.attempt.FINAL_USAGE_TIMEOUT_S", 0.2)
    neuron.ignores_cancels = True
    await hang_up(rig, neuron)
    assert rig.settled.prompt_tokens == 7
    assert rig.settled.completion_tokens >= 1, "the tokens that arrived are counted"


DELTA = Delta(request_id="", text="a")
CANCELLED = Cancelled(request_id="", usage=Usage(prompt_tokens=7, completion_tokens=0))
FAULT = Failed(
    request_id="",
    failure=Failure(code="device_fault", message="gone"),
    usage=Usage(prompt_tokens=7, completion_tokens=1),
)


@each_case(
    ("last", "paid"),
    [(FAULT, ("device_fault", 7, 1)), (CANCELLED, ("cancelled", 7, 0))],
    ids=["a failure", "a cancel from elsewhere"],
)
async def test_what_breaks_off_is_paid_for_as_far_as_it_was_computed(
    rig: Rig, neuron: FakeNeuron, last: Event, paid: tuple[str, int, int]
) -> None:
    rig.ledger.settled.clear()
    neuron.script = saying([ACCEPTED], [DELTA] if last is FAULT else [], [last])
    assert (await rig.ask()).status == 503
    entry = rig.settled
    assert (entry.outcome, entry.prompt_tokens, entry.completion_tokens) == paid


async def test_a_neuron_that_dies_ends_its_reports(rig: Rig, neuron: FakeNeuron) -> None:
    """No client waits for more: the reported usage is charged at once."""
    neuron.script = endless
    exchange = rig.open(stream=True)
    await exchange.until(b"on and")
    await neuron.die()
    await exchange.finish()
    await until(lambda: rig.ledger.settled)
    assert (rig.settled.outcome, rig.settled.prompt_tokens) == ("neuron_lost", 7)
    assert rig.settled.completion_tokens >= 1


@each_case(
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
    rig: Rig, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture, code: str, level: int
) -> None:
    neuron.script = breaking(code, accepts=True, message="The engine\nis gone" + "!" * 1000)
    caplog.set_level("INFO", logger="helexa.requests")
    await rig.ask(stream=True)
    (record,) = (record for record in caplog.records if record.name == "helexa.requests")
    line = TextFormatter("gateway", Redactor()).format(record)
    assert record.levelno == level
    assert all(word in line for word in ("model=tiny", "neuron=beast", f" {code} "))
    assert ("cause=The engine\\nis gone!" in line) is (level > logging.INFO)
    assert len(line) < 700


async def test_refusals_are_reported_and_cost_nothing(
    rig: Rig, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="helexa.requests")
    await rig.client.post(
        CHAT, {"model": "no\nsuch", "messages": SHORT_CHAT["messages"]}, headers=BEARER
    )
    await rig.client.post(CHAT, parts=[b"{"], headers=BEARER)
    await rig.client.post(
        CHAT, SHORT_CHAT, headers={"authorization": "Bearer hx-0123456789-" + 32 * "x"}
    )
    await rig.client.get("/v1/nowhere")
    lines = [record.getMessage() for record in caplog.records if record.name == "helexa.requests"]
    codes = ["model_not_found", "invalid_json", "invalid_api_key", "unknown_url"]
    assert len(lines) == len(codes)
    for line, code in zip(lines, codes, strict=True):
        assert f" {code} " in line
        assert "such" not in line and "\n" not in line
    assert rig.ledger.settled == []


async def test_the_self_test_of_serve_is_neither_billed_nor_counted(
    rig: Rig, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the shared and the anonymous account may."""
    caplog.set_level("INFO", logger="helexa.requests")
    rig.directory.budgets = (1,)
    rig.ledger.cap_tokens = 0
    asked = {**OPERATOR, SELF_TEST_HEADER.lower(): "1"}
    assert (await rig.client.post(CHAT, SHORT_CHAT, headers=asked)).status == 200
    assert rig.ledger.begun == [], "nor after a gateway's death"
    assert "status=200" in caplog.text
    assert (rig.ledger.settled, rig.ledger.reserved) == ([], [])
    assert b'status="200"' not in generate_latest(rig.gateway.metrics.registry)
    for headers in (OPERATOR, {**BEARER, SELF_TEST_HEADER.lower(): "1"}):
        assert (await rig.client.post(CHAT, SHORT_CHAT, headers=headers)).status == 200
    assert [entry.account for entry in rig.ledger.settled] == ["shared", "lab"]


async def test_counting_tokens_is_free(rig: Rig, neuron: FakeNeuron) -> None:
    rig.cap()
    neuron.script = saying([TokensCounted(request_id="", prompt_tokens=11)])
    answer = await rig.client.post("/v1/messages/count_tokens", SHORT_CHAT, headers=BEARER)
    assert (answer.status, answer.json["input_tokens"]) == (200, 11)
    assert not rig.ledger.settled and not rig.ledger.reserved


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
