"""Requests that fail over to their next target before their answer begins, each target once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.cases import each_case
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import MakeClient, MakeGateway, client_of
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, silent
from tests.inference.gateway.records.conftest import Records
from tests.inference.gateway.upstreams.forwarding import PATH, text_of
from tests.inference.gateway.upstreams.passing import SPEECH
from tests.inference.gateway.upstreams.targets.conftest import (
    BOX,
    CHAT,
    FAR,
    PARTS,
    SPEAKS,
    TargetsRig,
    refuses,
)
from tests.servers.fake_upstream import Answer, Asked, Wire, chunk

Ask = Callable[[TargetsRig], Coroutine[Any, Any, Exchange]]


async def chats(rig: TargetsRig) -> Exchange:
    return await rig.chat(stream=True)


async def speaks(rig: TargetsRig) -> Exchange:
    return await rig.speak()


KINDS: list[tuple[Ask, dict[str, Any]]] = [(chats, BOX), (speaks, SPEAKS)]
"""A request that is forwarded, and one that passes through. Both are offered to ``box`` first."""


async def test_the_record_has_the_targets_tried(rig: TargetsRig, make_gateway: MakeGateway) -> None:
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
    "429": refuses(429),
    "cut": lambda asked, wire: wire.cut(),
    "a page": lambda asked, wire: wire.whole(200, b"<html>", "text/html"),
    "overloaded": lambda asked, wire: wire.json(200, {"error": {"type": "overloaded_error"}}),
    "cut when accepted": accepts_and_cuts,
}


@each_case(("ask", "kind"), KINDS)
@each_case("fails", FIRST_FAILURES.values(), ids=FIRST_FAILURES)
async def test_a_failure_before_the_answer_begins_fails_over_and_is_billed_once(
    rig: TargetsRig, ask: Ask, kind: dict[str, Any], fails: Answer
) -> None:
    if ask is speaks and fails is accepts_and_cuts:
        return
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
async def test_an_answer_that_began_is_cut(rig: TargetsRig, ask: Ask, kind: dict[str, Any]) -> None:
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
async def test_a_callers_mistake_and_an_answer_that_began_are_not_tried_elsewhere(
    rig: TargetsRig, neuron: FakeNeuron, ask: Ask, kind: dict[str, Any]
) -> None:
    rig.offer("box/m", "cloud/m", **kind)
    for status in (400, 422):
        rig.box.answer = refuses(status)
        answer = await ask(rig)
        assert (answer.status, answer.error["code"]) == (400, "upstream_refused")
        assert "x-helexa-served-by" not in answer.headers
    neuron.script = breaking("engine_crashed", accepts=True)
    rig.offer("own", "cloud/m")
    assert (await rig.chat()).error["code"] == "engine_crashed"
    assert not rig.cloud.asked


async def test_each_is_tried_once(rig: TargetsRig, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the targets that were left."""
    rig.box.answer, rig.cloud.answer = refuses(500), refuses(429, retry_after="7")
    tried = "own:no_neuron,box/m:upstream_failed"
    for ask, kind, targets, log in (
        (chats, {}, ("own", "box/m", "cloud/m"), f" tried={tried}"),
        (speaks, SPEAKS, ("box/m", "cloud/m"), " tried=box/m:upstream_failed"),
    ):
        rig.forget()
        caplog.clear()
        rig.offer(*targets, **kind)
        with caplog.at_level("INFO", logger="helexa.requests"):
            answer = await ask(rig)
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert (len(rig.box.asked), len(rig.cloud.asked)) == (1, 1)
        assert (rig.settled.prompt_tokens, rig.settled.cost_micro_usd) == (0, 0)
        assert not rig.ledger.held
        (line,) = (one.message for one in caplog.records if one.name == "helexa.requests")
        assert line.endswith(log)


async def test_the_time_is_over(
    rig: TargetsRig, make_client: MakeClient, neuron: FakeNeuron
) -> None:
    neuron.status = None
    await neuron.beat()
    rig.offer("own", "box/m", vram_mb=1)
    answer = await make_client(request_timeout_s=1).post(PATH, CHAT)
    assert (answer.status, answer.error["code"]) == (503, "model_loading")
    assert not rig.box.asked


async def test_a_lost_neuron_fails_over(rig: TargetsRig, neuron: FakeNeuron) -> None:
    neuron.script = silent
    rig.offer("own", "box/m when waiting_longer_than 1")
    exchange = rig.open_chat()
    await neuron.submitted.get()
    await neuron.die()
    await exchange.finish()
    assert text_of(exchange) == FAR
    assert await neuron.cancelled.get()
    assert rig.settled.neuron == "upstream:box"
