"""Requests that fail over to their next target before their answer begins, each target once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inference.gateway.upstreams.links import MAX_FAILURES
from tests.cases import each_case
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import MakeClient, MakeGateway, client_of
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, silent
from tests.inference.gateway.records.recorded import Records
from tests.inference.gateway.upstreams.forwarding import PATH, text_of
from tests.inference.gateway.upstreams.passing import SPEECH
from tests.inference.gateway.upstreams.targets.targeting import (
    BOX,
    CHAT,
    FAR,
    OWN,
    PARTS,
    SPEAKS,
    TargetsRig,
    answers,
    refuses,
)
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Answer, Asked, Wire, chunk


async def chats(rig: TargetsRig) -> Exchange:
    return await rig.chat(stream=True)


async def speaks(rig: TargetsRig) -> Exchange:
    return await rig.speak()


Ask = Callable[[TargetsRig], Coroutine[Any, Any, Exchange]]
KINDS: list[tuple[Ask, dict[str, Any]]] = [(chats, BOX), (speaks, SPEAKS)]
"""A request that is forwarded, and one that passes through. Both are offered to ``box`` first."""


async def test_a_model_that_no_host_holds_fails_over_to_the_next_target(
    rig: TargetsRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig.offer("own", "box/m")
    for streams in (True, False):
        rig.ledger.settled.clear()
        caplog.clear()
        assert await rig.served_by(stream=streams) == "upstream:box"
        settled = rig.settled
        assert (settled.neuron, settled.prompt_tokens) == ("upstream:box", 7)
        assert settled.completion_tokens == 2
        assert "fails over from its target own: no_neuron" in caplog.text
        assert "tried=own:no_neuron" in caplog.text


async def test_the_record_has_the_targets_that_were_tried(
    rig: TargetsRig, make_gateway: MakeGateway
) -> None:
    rig.box.answer = refuses(429)
    records = Records()
    gateway = make_gateway(records=records)
    rig.offer("own", "box/org/m", "cloud/m")
    assert (await client_of(gateway).post(PATH, CHAT)).status == 200
    await gateway.drain(0)
    record = records.only()
    assert record.targets_tried == ("own: no_neuron", "box/org/m: rate_limit_exceeded")
    assert record.settle.neuron == "upstream:cloud"


def accepts_and_cuts(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(chunk({"role": "assistant", "content": ""}))
    wire.cut()


FIRST_FAILURES: dict[str, Answer] = {
    "500": refuses(500),
    "503": refuses(503, retry_after="9"),
    "429": refuses(429),
    "401": refuses(401),
    "404": refuses(404),
    "302": refuses(302, location="http://169.254.169.254/"),
    "cut": lambda asked, wire: wire.cut(),
    "a page": lambda asked, wire: wire.whole(200, b"<html>", "text/html"),
    "overloaded": lambda asked, wire: wire.json(200, {"error": {"type": "overloaded_error"}}),
}
FAILING = [(*kind, name, fails) for kind in KINDS for name, fails in FIRST_FAILURES.items()]
FAILING.append((chats, BOX, "cut when accepted", accepts_and_cuts))


@each_case(
    ("ask", "kind", "fails"),
    [(ask, kind, fails) for ask, kind, _, fails in FAILING],
    ids=[f"{ask.__name__} {name}" for ask, _, name, _ in FAILING],
)
async def test_a_failure_before_the_answer_begins_fails_over_and_is_billed_once(
    rig: TargetsRig, ask: Ask, kind: dict[str, Any], fails: Answer
) -> None:
    rig.forget()
    rig.box.answer = fails
    rig.offer("box/m", "cloud/n", **kind)
    answer = await ask(rig)
    assert (answer.status, answer.headers["x-helexa-served-by"]) == (200, "upstream:cloud")
    assert (len(rig.box.asked), rig.cloud.asked[0].json["model"]) == (1, "n")
    settled = rig.settled
    assert (settled.neuron, settled.outcome) == ("upstream:cloud", "finished")
    if ask is chats:
        assert FAR in answer.body.decode() and settled.prompt_tokens == 7
    else:
        assert settled.metered.num_units == 6


def cuts_late(asked: Asked, wire: Wire) -> None:
    if asked.path == SPEECH:
        wire.begin_stream("audio/mpeg")
        wire.part(b"half")
    else:
        wire.begin_stream()
        wire.event(PARTS[0])
    wire.cut()


@each_case(("ask", "kind"), KINDS)
async def test_after_its_first_token_or_byte_an_answer_is_cut_and_charged(
    rig: TargetsRig, ask: Ask, kind: dict[str, Any]
) -> None:
    rig.forget()
    rig.box.answer = cuts_late
    rig.offer("box/m", "cloud/m", **kind)
    answer = await ask(rig)
    assert not rig.cloud.asked
    settled = rig.settled
    assert settled.outcome == "upstream_failed"
    if ask is chats:
        assert answer.chunks[-1]["error"]["code"] == "upstream_failed"
        assert settled.completion_tokens >= 1
    else:
        assert (answer.body, answer.ended.is_set()) == (b"half", False)
        assert settled.metered.num_units == 6


@each_case(("ask", "kind"), KINDS)
@each_case("status", [400, 422])
async def test_the_callers_own_mistake_is_not_tried_elsewhere(
    rig: TargetsRig, ask: Ask, kind: dict[str, Any], status: int
) -> None:
    rig.box.answer = refuses(status)
    rig.offer("box/m", "cloud/m", **kind)
    answer = await ask(rig)
    assert (answer.status, answer.error["code"]) == (400, "upstream_refused")
    assert not rig.cloud.asked
    assert "x-helexa-served-by" not in answer.headers


async def test_each_target_is_tried_once_and_the_last_error_is_the_clients(
    rig: TargetsRig, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the targets that were left."""
    caplog.set_level(logging.INFO)
    rig.box.answer, rig.cloud.answer = refuses(500), refuses(429, retry_after="7")
    tried = "own:no_neuron,box/m:upstream_failed"
    for ask, kind, targets, log in (
        (chats, {}, ("own", "box/m", "cloud/m"), f" tried={tried}"),
        (speaks, SPEAKS, ("box/m", "cloud/m"), " tried=box/m:upstream_failed"),
    ):
        rig.forget()
        caplog.clear()
        rig.offer(*targets, **kind)
        answer = await ask(rig)
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert (len(rig.box.asked), len(rig.cloud.asked)) == (1, 1)
        assert (rig.settled.prompt_tokens, rig.settled.cost_micro_usd) == (0, 0)
        assert not rig.ledger.held
        (line,) = (one.message for one in caplog.records if one.name == "helexa.requests")
        assert line.endswith(log)
    caplog.clear()
    rig.offer("box/m", **SPEAKS)
    assert (await rig.speak()).status == 502
    assert not any("tried" in one.message or "fails over" in one.message for one in caplog.records)


@each_case(
    ("code", "accepts", "fails_over"),
    [
        ("queue_full", False, True),
        ("queue_timeout", True, True),
        ("vision_unsupported", False, True),
        ("engine_crashed", True, False),
        ("context_length_exceeded", False, False),
    ],
)
async def test_what_an_engine_has_not_begun_fails_over(
    rig: TargetsRig, neuron: FakeNeuron, code: str, accepts: bool, fails_over: bool
) -> None:
    rig.forget()
    neuron.script = breaking(code, accepts=accepts)
    rig.offer("own", "box/m")
    answer = await rig.chat()
    if fails_over:
        assert answer.headers["x-helexa-served-by"] == "upstream:box"
    else:
        assert answer.error["code"] == code
    assert len(rig.box.asked) == fails_over
    assert len(rig.ledger.settled) == 1


async def test_a_request_fails_over_from_an_upstream_to_own_replicas(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    rig.box.answer = refuses(503)
    rig.offer("box/m", "own")
    answer = await rig.chat()
    assert (text_of(answer), answer.headers["x-helexa-served-by"]) == (OWN, "beast")
    assert (rig.settled.neuron, rig.settled.completion_tokens) == ("beast", 5)


async def test_no_target_is_tried_once_the_time_is_over(
    rig: TargetsRig, make_client: MakeClient, neuron: FakeNeuron
) -> None:
    neuron.status = None
    await neuron.beat()
    rig.offer("own", "box/m", vram_mb=1)
    answer = await make_client(request_timeout_s=1).post(PATH, CHAT)
    assert (answer.status, answer.error["code"]) == (503, "model_loading")
    assert not rig.box.asked


async def test_a_client_that_leaves_before_the_next_target_ends_it(rig: TargetsRig) -> None:
    gone = threading.Event()

    def waits(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event(chunk({"role": "assistant"}))
        if wire.wait_for_hang_up():
            gone.set()

    rig.box.answer = waits
    rig.offer("box/m", "cloud/m", **BOX)
    exchange = rig.open_chat(stream=True)
    await until(lambda: rig.box.asked)
    exchange.leave()
    await exchange.finish()
    assert await asyncio.to_thread(gone.wait, 60)
    assert not rig.cloud.asked
    assert (rig.settled.outcome, rig.settled.completion_tokens) == ("cancelled", 0)


async def test_a_lost_neuron_that_had_not_accepted_fails_over_and_is_cancelled(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    neuron.script = silent
    rig.offer("own", "box/m when waiting_longer_than 1")
    exchange = rig.open_chat()
    await neuron.submitted.get()
    await neuron.die()
    await exchange.finish()
    assert text_of(exchange) == FAR
    assert await neuron.cancelled.get()
    assert rig.settled.neuron == "upstream:box"


@each_case(("ask", "kind"), KINDS)
async def test_a_sick_upstream_is_left_out_and_tried_again(
    rig: TargetsRig, monkeypatch: pytest.MonkeyPatch, ask: Ask, kind: dict[str, Any]
) -> None:
    monkeypatch.setattr("inference.gateway.upstreams.links.PROBE_AFTER_S", 0.02)
    rig.forget()
    rig.box.answer = refuses(503)
    rig.offer("box/m when ready", "cloud/m", **kind)
    for _ in range(MAX_FAILURES + 3):
        assert (await ask(rig)).headers["x-helexa-served-by"] == "upstream:cloud"
    assert sum(asked.method == "POST" for asked in rig.box.asked) == MAX_FAILURES
    rig.box.answer = answers
    await until(lambda: not rig.gateway.upstreams.left_out())
    assert (await ask(rig)).headers["x-helexa-served-by"] == "upstream:box"
