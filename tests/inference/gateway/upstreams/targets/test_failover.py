"""Requests that fail over to their next target before their answer begins, each target once; their
reservations, and what they are charged."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from metering.ledger.entries import Reserve
from metering.money import Prices
from tests.cases import each_case
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import MakeClient, MakeGateway, client_of
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, counting, silent
from tests.inference.gateway.records.conftest import Records
from tests.inference.gateway.upstreams.forwarding import PATH, text_of
from tests.inference.gateway.upstreams.passing import SPEECH
from tests.inference.gateway.upstreams.targets.conftest import (
    BOX,
    CHAT,
    FAR,
    OWN,
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
    # What passes through has the price of its target.
    rig.directory.budgets = (1,)
    rig.cloud.answer = lambda asked, wire: wire.whole(200, b"sound", "audio/mpeg")
    rig.box.answer = refuses(500)
    targets = ("box/m unit_price 2", "cloud/m request_price 1 unit_price 5")
    rig.offer(*targets, **SPEAKS, unit_price_micro_usd=9)
    assert (await rig.speak()).status == 200
    assert [one.metered.micro_usd for one in rig.ledger.reserved] == [1 + 6 * 5]
    assert rig.ledger.settled[-1].cost_micro_usd == 1 + 6 * 5
    rig.box.answer = rig.cloud.answer
    assert (await rig.speak()).status == 200
    assert rig.ledger.settled[-1].cost_micro_usd == 6 * 2


async def test_time_is_over(rig: TargetsRig, make_client: MakeClient, neuron: FakeNeuron) -> None:
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


PRICED = {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 2_000_000}
CLOUD = "cloud/m input_price 10 output_price 1"
CHEAP = "box/m input_price 3 cached_input_price 1 output_price 20.5"


async def test_caps_hold_for_all_targets(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.directory.budgets = (1,)
    long = {"messages": [{"role": "user", "content": "x" * 4_000}], "max_tokens": 50}
    rig.ledger.cap_tokens = 3_500
    rig.offer("own")
    neuron.script = counting(1_000)
    assert (await rig.chat(**long)).status == 200, "near what the text takes"
    rig.ledger.settled.clear()
    rig.offer("own", "box/m")
    refused = await rig.chat(**long)
    assert refused.status == 429
    assert not rig.box.asked
    rig.ledger.cap_tokens = 6_000
    assert text_of(await rig.chat(**long)) == OWN
    assert rig.ledger.reserved[-1].prompt_tokens >= 4_000
    assert rig.ledger.narrowed[-1].prompt_tokens == 1_000, "once the engine has it"
    neuron.script = breaking("queue_full")
    most: list[int] = []
    reserve = rig.ledger.reserve

    async def watched(wanted: Any) -> Any:
        granted = await reserve(wanted)
        most.append(sum(rig.ledger.held.values()))
        return granted

    rig.ledger.reserve = watched  # type: ignore[method-assign]
    rig.ledger.settled.clear()
    assert text_of(await rig.chat(**long)) == FAR
    assert len(most) == 2
    assert most[0] >= most[1], "the second takes the first one's place"
    assert len({one.request_id for one in rig.ledger.reserved[-2:]}) == 1
    assert not rig.ledger.held
    settled = rig.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (7, 2)


def most(reserved: Reserve) -> int:
    """The reservation for 100 prompt and 10 answer tokens, in micro-USD."""
    return reserved.prices.most_micro_usd(prompt_tokens=100, completion_tokens=10)


async def test_each_target_has_its_price(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.directory.budgets = (1,)
    rig.offer("own", CHEAP, CLOUD, **PRICED)
    assert text_of(await rig.chat()) == OWN
    assert most(rig.ledger.reserved[-1]) == max(120, 300 + 205, 1000 + 10)
    affordable = rig.ledger.reserved[-1].prices.affordable_output_tokens
    assert affordable(micro_usd=1_000, prompt_tokens=60) == (1_000 - 60 * 3) * 2 // 41
    assert rig.ledger.narrowed[-1].prices == Prices(
        input_micro_usd=1_000_000, cached_input_micro_usd=1_000_000, output_micro_usd=2_000_000
    )
    own = rig.ledger.settled[-1]
    assert own.cost_micro_usd == own.prompt_tokens + own.completion_tokens * 2
    neuron.script = breaking("queue_full")
    assert await rig.served_by() == "upstream:box"
    assert most(rig.ledger.reserved[-1]) == 1_010, "cloud may still serve it"
    assert (rig.ledger.settled[-1].neuron, rig.ledger.settled[-1].cost_micro_usd) == (
        "upstream:box",
        7 * 3 + 2 * 20 + 1,
    )
    rig.box.answer = refuses(500)
    assert await rig.served_by() == "upstream:cloud"
    assert [most(one) for one in rig.ledger.reserved[-3:]] == [1_010] * 3
    assert rig.ledger.settled[-1].cost_micro_usd == 7 * 10 + 2 * 1
    rig.offer("own", CHEAP, CLOUD, may_leave_network=False, **PRICED)
    await rig.chat()
    assert most(rig.ledger.reserved[-1]) == 505, "cloud may not serve it"
    rig.box.answer = rig.cloud.answer
    rig.offer(CHEAP, **BOX)
    assert text_of(await rig.chat()) == FAR
    assert rig.ledger.settled[-1].cost_micro_usd == 62
    shown = (await rig.client.get("/v1/models/tiny")).json
    assert shown["cost"] == {"input": 3.0, "cache_read": 1.0, "output": 20.5}
    assert not rig.ledger.held


async def test_prices_of_upstreams(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.directory.budgets = (1,)
    neuron.script = breaking("queue_timeout", accepts=True)
    rig.offer("own", CLOUD, **PRICED)
    assert text_of(await rig.chat()) == FAR
    assert not rig.ledger.narrowed
    assert len(rig.ledger.reserved) == 2
    # An upstreams own prices hold where it has named them.
    targets = ("box/m upstream_prices", "cloud/m")
    named = Prices(input_micro_usd=4_000_000, output_micro_usd=5_000_000)
    changes: dict[str, Any] = {**BOX, **PRICED}
    rig.offer(*targets, **changes, upstream_prices={"box/m": named})
    assert await rig.served_by() == "upstream:box"
    assert rig.ledger.settled[-1].cost_micro_usd == 7 * 4 + 2 * 5
    rig.offer(*targets, **changes)
    assert await rig.served_by() == "upstream:cloud"
    assert rig.ledger.settled[-1].cost_micro_usd == 7 + 2 * 2
    rig.offer(targets[0], **changes)
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (502, "upstream_failed")
    assert len(rig.box.asked) == 1
