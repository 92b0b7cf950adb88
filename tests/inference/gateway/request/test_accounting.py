"""What a request pays when it has ended, however it ends, the records made of it, and whose fault a
standstill is said to be."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from helexa_site.bootstrap.readiness import SELF_TEST_HEADER
from inference.gateway.request.answer_check import AnswerCheck, AnswerFaultError
from inference.gateway.request.event_stream import (
    STANDSTILL_INTERVAL_S,
    RequestStream,
    RequestStreams,
    events_lost,
    neuron_lost,
    request_lost,
)
from inference.gateway.request.outcome import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Capture
from inference.logs import TextFormatter
from inference.protocol.events import (
    Accepted,
    Cancelled,
    Delta,
    Failed,
    Failure,
    Tokenized,
    ToolCallStarted,
    Usage,
)
from inference.protocol.generation import TextInput, TokenizeRequest
from inference.protocol.keys import GATEWAY_ALIVE_EXPIRY_S
from inference.redaction import Redactor
from inference.redis_link import redis_unavailable
from inference.wire.errors import ApiError
from metering.money import Prices
from tests.cases import each_case
from tests.inference.gateway.bodies import counts, open_stream, until
from tests.inference.gateway.conftest import BEARER, CHAT, ENTRY, OPERATOR, SHORT_CHAT, Rig
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, endless, paris

USED = Usage(prompt_tokens=7, completion_tokens=40)


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
    await rig.client.post(CHAT, {**SHORT_CHAT, "model": "none"}, headers=BEARER)
    rig.cap(2000)
    neuron.script = counts
    await rig.client.post("/v1/messages/count_tokens", SHORT_CHAT, headers=BEARER)
    assert (len(rig.ledger.settled), rig.ledger.reserved) == (1, []), "neither costs anything"
    neuron.script = paris
    assert (await rig.ask(n=2)).status == 200
    submit = [neuron.submitted.get_nowait() for _ in range(3)][-1]
    assert (submit.account, submit.key, submit.is_anonymous) == ("lab", KEY[:13], False)
    assert submit.endpoint == CHAT
    assert submit.max_prompt_tokens == rig.ledger.reserved[0].prompt_tokens
    assert submit.cap_output_tokens is not None
    assert 2 * submit.cap_output_tokens <= 2000 - 12 - submit.max_prompt_tokens


async def test_a_key_uses_its_models_alone(rig: Rig, neuron: FakeNeuron) -> None:
    assert "gpt-4o" in ENTRY.aliases
    rig.directory.restrict(KEY, models=frozenset({"gpt-4o"}))
    assert (await rig.ask()).status == 200
    assert (await rig.client.get("/v1/models/tiny", headers=BEARER)).status == 200
    moved = replace(ENTRY, name="other", aliases=("gpt-4o",))
    rig.catalogue.listed = [replace(ENTRY, aliases=()), moved]
    assert (await rig.client.get("/v1/models/gpt-4o", headers=BEARER)).json["id"] == "other"
    assert (await rig.client.get("/v1/models/tiny", headers=BEARER)).status == 403
    rig.catalogue.listed = [ENTRY]
    rig.directory.restrict(KEY, models=frozenset({"another"}))
    neuron.status = None
    await neuron.beat()
    answer = await rig.ask()
    assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")
    assert (await rig.client.get("/v1/models", headers=BEARER)).json["data"] == []
    assert rig.catalogue.loads == []


@each_case(
    "case",
    [
        ("leaves", USED, "cancelled", (7, 40)),
        ("leaves", None, "cancelled", (0, 0)),
        ("is not answered", None, "cancelled", None),
        ("neuron dies", None, "neuron_lost", None),
        ("fails", USED, "device_fault", (7, 40)),
        ("is cancelled elsewhere", USED, "cancelled", (7, 40)),
    ],
    ids=str,
)
async def test_what_breaks_off_is_paid_for_as_far_as_it_is_known(
    rig: Rig, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    """Where nobody reports what was used, it is the tokens that arrived. No client waits then. A
    gateway that dies meanwhile has left word of what is to be billed."""
    ends, usage, outcome, paid = case
    for entries in (rig.ledger.settled, rig.ledger.begun, neuron.sequence_numbers):
        entries.clear()
    monkeypatch.setattr("inference.gateway.request.attempt.FINAL_USAGE_TIMEOUT_S", 0.2)
    neuron.epoch += "+"
    await neuron.beat()
    neuron.usage_of_cancelled, neuron.ignores_cancels = usage, ends == "is not answered"
    neuron.script = endless
    exchange = rig.open(stream=True)
    await exchange.until(b"on and")
    submit = await neuron.submitted.get()
    (begun,) = rig.ledger.begun
    assert begun.record is not None
    assert (begun.record.model_asked, begun.record.kind) == ("gpt-4o", "failed")
    assert (begun.outcome, begun.neuron, begun.account) == ("gateway_lost", "beast", "lab")
    _, cached, completion, _ = rig.ledger.counted[begun.request_id]()
    assert completion > 0 == cached
    named = {"request_id": submit.request_id, "usage": usage}
    if ends == "neuron dies":
        await neuron.die()
    elif ends == "fails":
        failure = Failure(code="device_fault", message="gone")
        await neuron.send(submit.gateway_id, [Failed(failure=failure, **named)])
    elif ends == "is cancelled elsewhere":
        await neuron.send(submit.gateway_id, [Cancelled(**named)])
    else:
        exchange.leave()
    await exchange.finish()
    await until(lambda: rig.ledger.settled)
    entry = rig.settled
    assert (entry.outcome, entry.request_id) == (outcome, begun.request_id)
    if paid is None:
        assert entry.prompt_tokens == 7 and entry.completion_tokens >= 1
    else:
        assert (entry.prompt_tokens, entry.completion_tokens) == paid
    assert rig.ledger.counted[begun.request_id]() == tuple(entry.tokens.values())
    await until(lambda: not len(rig.gateway.streams))


async def test_failures_of_the_server_are_logged_with_their_cause(
    rig: Rig, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="helexa.requests")
    for code, level in (
        ("engine_crashed", "WARNING"),
        ("unknown", "ERROR"),
        ("queue_full", "INFO"),
    ):
        neuron.script = breaking(code, accepts=True, message="The engine\nis gone" + "!" * 1000)
        await rig.ask(stream=True)
        (record,) = (one for one in caplog.records if one.name == "helexa.requests")
        line = TextFormatter("gateway", Redactor()).format(record)
        assert all(word in line for word in ("model=tiny", "neuron=beast", f" {code} "))
        assert ("cause=The engine\\nis gone!" in line) is (level != "INFO")
        assert (record.levelname, len(line) < 700) == (level, True)
        caplog.clear()


async def test_the_self_test_of_serve_is_neither_billed_nor_counted(
    rig: Rig, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture
) -> None:
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


@each_case(
    ("num_tokens", "error", "completion", "reasoning"),
    [(3, events_lost(), 3, 3), (3, None, 8, 6), (0, events_lost(), 0, 0)],
    ids=["an error that the client was told", "a client that hung up", "an error before a token"],
)
async def test_what_is_billed_of_an_attempt_whose_client_is_told_its_end_first(
    num_tokens: int, error: ApiError | None, completion: int, reasoning: int
) -> None:
    """Tokens after an error are not billed, and a prompt without a token costs nothing."""
    stream = open_stream(RequestStreams(), "r", "beast")
    stream.put(Accepted(request_id="r", prompt_tokens=7))
    if num_tokens:
        stream.put(Delta(request_id="r", text="x", num_tokens=num_tokens))
    if error is None:
        stream.end()
    else:
        stream.fail(error)
    stream.put(Delta(request_id="r", text="x", num_tokens=5))
    used = Usage(prompt_tokens=7, cached_tokens=4, completion_tokens=8, reasoning_tokens=6)
    stream.put(Cancelled(request_id="r", usage=used))
    assert stream.usage_counter.is_settled
    prompt, cached = (7, 4) if completion else (0, 0)
    assert stream.usage_counter.usage == Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
    )


async def test_standstills_and_captured_bodies() -> None:
    now_s = 1000.0
    streams = RequestStreams(clock=lambda: now_s)

    async def message_of(stream: RequestStream, error: ApiError) -> str:
        stream.fail(error)
        with pytest.raises(ApiError) as raised:
            await stream.next_events()
        return raised.value.message

    errors = (request_lost("beast"), events_lost(), redis_unavailable(), neuron_lost("beast"))
    opened = [open_stream(streams, f"r{number}", "beast") for number in range(len(errors))]
    now_s += STANDSTILL_INTERVAL_S + GATEWAY_ALIVE_EXPIRY_S - 1
    await streams.check_standstill()
    assert not any(stream.stood_still_s for stream in opened), "its key has not lapsed"
    now_s += 12
    await streams.check_standstill()
    words = [await message_of(one, error) for one, error in zip(opened, errors, strict=True)]
    assert all("This gateway stood still for 12 s" in one for one in words[:3])
    assert words[3] == neuron_lost("beast").message, "its neuron did go away"
    later = open_stream(streams, "later", "beast")
    assert await message_of(later, request_lost("beast")) == request_lost("beast").message
    # Of captured bodies the beginning is kept or their sizes.
    capture = Capture()
    capture.ask(b"q" * (MAX_REQUEST_BYTES + 3))
    for part in (b"a" * (MAX_ANSWER_BYTES - 1), b"bcd", b"e"):
        capture.send(part)
    assert capture.request == b"q" * MAX_REQUEST_BYTES
    assert capture.answer == b"a" * (MAX_ANSWER_BYTES - 1) + b"b"
    assert capture.num_bytes == MAX_REQUEST_BYTES + MAX_ANSWER_BYTES
    capture.drop()
    assert capture.num_bytes == 0
    assert capture.num_request_bytes == MAX_REQUEST_BYTES + 3
    assert capture.num_answer_bytes == MAX_ANSWER_BYTES + 3


async def test_impossible_answers_of_a_neuron() -> None:
    """All of a message's fields are in ``tests/hostile``."""
    for numbers in ((1,), (0, 0), (0, 2)):
        stream = open_stream(RequestStreams(), "r", "beast")
        with pytest.raises(AnswerFaultError, match="out of order"):
            for index in numbers:
                call = ToolCallStarted(request_id="r", call_id="c", name="f", call_index=index)
                stream.put(call)
    request = TokenizeRequest(model="tiny", input=TextInput(texts=["Hi"]))
    for context_tokens, is_possible in ((0, True), (2**31 - 1, True), (-1, False), (2**31, False)):
        tokenized = Tokenized(request_id="r", token_ids=[1], context_tokens=context_tokens)
        with nullcontext() if is_possible else pytest.raises(AnswerFaultError, match="context"):
            AnswerCheck(request, USED).check(tokenized)
