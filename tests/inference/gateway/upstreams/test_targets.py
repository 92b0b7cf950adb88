"""Which target serves a request: own replicas or an upstream, in the operator's order, outside only
where a request may leave. Those that are full, loading or failing spill over to the next before the
answer begins, each is tried once, and the caller pays for the one that served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import GenerationRequest, Submit
from tests.cases import each_case
from tests.inference.gateway.bodies import until
from tests.inference.gateway.conftest import BEARER, MakeGateway, client_of
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, counting, paris, silent
from tests.inference.gateway.upstreams.conftest import (
    BOX,
    CHAT_TINY,
    FAR,
    OWN,
    PARTS,
    PATH,
    RED_PIXELS,
    SPEAKS,
    SPEECH,
    TargetsRig,
    answers,
    refuses,
    text_of,
)
from tests.servers.fake_upstream import Answer, Asked, Wire, chunk

KINDS = [BOX, SPEAKS]
"""A request that is forwarded, and one that passes through. Both are offered to ``box`` first."""


@pytest.fixture
def rig(targets: TargetsRig) -> TargetsRig:
    return targets


async def test_own_replicas_and_who_served(rig: TargetsRig, neuron: FakeNeuron) -> None:
    defaults = {"repetition_window": 256, "min_p": 0.1, "temperature": 0.5}
    rig.target("own", "box/m", **defaults)
    assert text_of(await rig.chat()) == OWN
    submitted = neuron.submitted.get_nowait().request
    assert isinstance(submitted, GenerationRequest)
    assert {name: getattr(submitted.sampling, name) for name in defaults} == defaults
    assert await rig.served_by() == await rig.served_by(stream=True) == "beast"
    rig.target("box/m", "own", **defaults)
    assert await rig.served_by() == "upstream:box"
    (asked,) = rig.box.asked
    sent = asked.json
    assert (sent["model"], sent["temperature"], sent["min_p"]) == ("m", 0.5, 0.1)
    assert "repetition_window" not in sent
    for path, body in (("/v1/messages", {**CHAT_TINY, "max_tokens": 5}), ("/api/chat", CHAT_TINY)):
        answer = await rig.client.post(path, body)
        assert answer.headers["x-helexa-served-by"] == "upstream:box"
    for targets, server in (
        (["box/m when queue_longer_than 2"], "beast"),  # two wait
        (["box/m when queue_longer_than 1"], "upstream:box"),
        (["box/m when queue_longer_than 1", "cloud/m when queue_longer_than 0"], "upstream:box"),
    ):
        rig.target("own", *targets)
        assert await rig.served_by() == server, targets
    # Own replicas when ready.
    rig.target("own when ready", "box/m")
    assert await rig.served_by() == "beast"
    neuron.status = None
    await neuron.beat()
    async with asyncio.timeout(60):  # the gateway reads heartbeats a few times a second
        while (await rig.client.get("/v1/models/tiny")).json["status"] != "unloaded":
            await asyncio.sleep(0.02)
    assert await rig.served_by() == "upstream:box"
    assert not rig.catalogue.loads
    rig.target("own when ready")
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (503, "no_target_ready")


async def test_what_a_target_takes(rig: TargetsRig, neuron: FakeNeuron) -> None:
    adapter = CatalogueEntry(name="tuned", source="path:/a", base="tiny")
    rig.catalogue.listed = [rig.target("box/m", "own"), adapter]
    assert text_of(await rig.chat(model="tuned")) == OWN, "an adapter is beside its base alone"
    assert text_of(await rig.chat(guided_regex="a+")) == OWN
    neuron.script = breaking("queue_full")
    busy = await rig.chat(guided_regex="a+")
    assert (busy.status, busy.error["code"]) == (503, "queue_full")
    count = "/v1/messages/count_tokens"
    for path, body in (("/v1/embeddings", {"model": "tiny", "input": "a"}), (count, CHAT_TINY)):
        assert (await rig.client.post(path, body)).status == 503
    assert not rig.box.asked
    image = {"type": "image_url", "image_url": {"url": RED_PIXELS}}
    parts = [{"type": "text", "text": "look"}, image]
    rig.target("own", "box/m")
    frames = len(neuron.frames)
    assert text_of(await rig.chat(messages=[{"role": "user", "content": parts}])) == FAR
    assert len(neuron.frames) == frames
    (asked,) = rig.box.asked
    assert asked.json["messages"][0]["content"] == parts
    rig.target("box/m", "cloud/m", **BOX)
    refused = await rig.chat(guided_regex="a+")
    assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
    rig.target("box/m", "own")
    neuron.script = paris
    headers = {"via": asked.headers["via"]}
    assert text_of(await rig.client.post(PATH, CHAT_TINY, headers=headers)) == OWN, "it came back"
    assert rig.box.asked == [asked]


async def test_requests_that_must_stay(rig: TargetsRig, neuron: FakeNeuron) -> None:
    neuron.script = breaking("queue_full")
    rig.target("cloud/m", "own", may_leave_network=False)
    assert (await rig.chat()).error["code"] == "queue_full"
    rig.target("cloud/m", "own")
    rig.directory.restrict(KEY, may_leave_network=False)
    answer = await rig.client.post(PATH, CHAT_TINY, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (503, "queue_full")
    only: dict[str, Any] = {"source": "upstream:cloud/m"}
    for path, targets in (
        *((path, ["cloud/m"]) for path in (PATH, "/v1/messages", "/api/chat", "/v1/embeddings")),
        (PATH, ["cloud/m when ready", "cloud/m"]),
    ):
        rig.target(*targets, **only)
        more = {"/v1/messages": {"max_tokens": 5}, "/v1/embeddings": {"input": "a"}}
        body = {**CHAT_TINY, **more.get(path, {})}
        if path == "/v1/embeddings":
            del body["messages"]
        assert (await rig.client.post(path, body, headers=BEARER)).status == 403
    assert not rig.cloud.asked
    assert text_of(await rig.chat()) == FAR
    rig.cloud.asked.clear()
    rig.target("cloud/m", "box/m", may_leave_network=False, **SPEAKS)
    assert (await rig.speak()).headers["x-helexa-served-by"] == "upstream:box"
    rig.box.answer = refuses(503)
    assert (await rig.speak()).error["code"] == "upstream_unavailable"
    rig.target("cloud/m", may_leave_network=False, **SPEAKS | only)
    assert (await rig.speak()).error["code"] == "network_not_allowed"
    assert not rig.cloud.asked


async def test_an_engine_gives_a_request_back(rig: TargetsRig, neuron: FakeNeuron) -> None:
    async def submitted(**fields: Any) -> float | None:
        assert text_of(await rig.chat(**fields)) == OWN
        return neuron.submitted.get_nowait().max_queue_wait_s

    assert await submitted() is None
    rig.target("own when ready", "box/m")
    assert await submitted() is None, "the model's own limit holds"
    rig.target("own", "box/m when waiting_longer_than 1")
    assert 0.0 <= (await submitted() or -1.0) <= 1.0
    assert await submitted(n=2) is None, "one choice may have begun"

    async def waits(submit: Submit) -> AsyncIterator[list[Event]]:
        if submit.max_queue_wait_s is None:
            async for events in counting(1)(submit):
                yield events
            return
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        await asyncio.sleep(submit.max_queue_wait_s)
        failure = Failure(code="queue_timeout", message="waited")
        yield [Failed(request_id=submit.request_id, failure=failure)]

    neuron.script = waits
    assert text_of(await rig.chat()) == FAR
    rig.box.answer = refuses(500)
    assert await rig.served_by() == "beast", "it has it again, for as long as it may"
    assert len(rig.box.asked) == 2
    # A neuron is lost.
    neuron.script, rig.box.answer = silent, answers
    exchange = rig.open_chat()
    await neuron.submitted.get()
    await neuron.die()
    await exchange.finish()
    assert text_of(exchange) == FAR
    assert await neuron.cancelled.get()
    assert rig.ledger.settled[-1].neuron == "upstream:box"


async def test_one_that_waits_for_a_place_spills_over_and_may_come_back(rig: TargetsRig) -> None:
    rig.directory.budgets = (1,)
    goes_on = threading.Event()

    def waits(asked: Asked, wire: Wire) -> None:
        assert goes_on.wait(60)
        answers(asked, wire)

    def refuses_and_frees(asked: Asked, wire: Wire) -> None:
        goes_on.set()
        refuses(503)(asked, wire)

    rig.box.answer = waits
    only = {**SPEAKS, "target_upstreams": rig.upstreams(concurrency=1)}
    rig.target("box/m", **only)
    first = rig.open_speech()
    await until(lambda: rig.box.asked)
    for passing in (
        ["box/m when ready", "cloud/m"],
        ["box/m", "cloud/m when waiting_longer_than 1"],
        ["box/m weight 2", "cloud/m weight 2"],
    ):
        rig.target(*passing, **only)
        assert (await rig.speak()).headers["x-helexa-served-by"] == "upstream:cloud", passing
    rig.cloud.answer = refuses_and_frees
    rig.target("box/m", "cloud/m when waiting_longer_than 1", **only)
    second = await rig.speak()
    assert (second.status, second.headers["x-helexa-served-by"]) == (200, "upstream:box")
    await first.finish()
    assert (len(rig.box.asked), len(rig.cloud.asked)) == (2, 4)
    assert not rig.ledger.held


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


@each_case("kind", KINDS, ids=["forwarded", "passed"])
@each_case("fails", FIRST_FAILURES.values(), ids=FIRST_FAILURES)
async def test_a_failure_before_the_answer_begins_fails_over_and_is_billed_once(
    rig: TargetsRig, kind: dict[str, Any], fails: Answer
) -> None:
    if kind is SPEAKS and fails is accepts_and_cuts:
        return
    rig.forget()
    rig.box.answer = fails
    rig.target("box/m", "cloud/n", **kind)
    answer = await rig.ask_for(kind)
    assert (answer.status, answer.headers["x-helexa-served-by"]) == (200, "upstream:cloud")
    assert (len(rig.box.asked), rig.cloud.asked[0].json["model"]) == (1, "n")
    settled = rig.settled
    assert (settled.neuron, settled.outcome) == ("upstream:cloud", "finished")
    if kind is BOX:
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


@each_case("kind", KINDS, ids=["forwarded", "passed"])
async def test_an_answer_that_began_is_cut_and_a_mistake_is_the_callers(
    rig: TargetsRig, neuron: FakeNeuron, kind: dict[str, Any]
) -> None:
    rig.forget()
    rig.box.answer = cuts_late
    rig.target("box/m", "cloud/m", **kind)
    answer = await rig.ask_for(kind)
    settled = rig.settled
    assert settled.outcome == "upstream_failed"
    if kind is BOX:
        assert answer.chunks[-1]["error"]["code"] == "upstream_failed"
        assert settled.completion_tokens >= 1
    else:
        assert (answer.body, answer.ended.is_set()) == (b"half", False)
        assert settled.metered.num_units == 6
    for status in (400, 422):
        rig.box.answer = refuses(status)
        answer = await rig.ask_for(kind)
        assert (answer.status, answer.error["code"]) == (400, "upstream_refused")
        assert "x-helexa-served-by" not in answer.headers
    neuron.script = breaking("engine_crashed", accepts=True)
    rig.target("own", "cloud/m")
    assert (await rig.chat()).error["code"] == "engine_crashed"
    assert not rig.cloud.asked


async def test_each_is_tried_once(
    rig: TargetsRig, make_gateway: MakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    rig.box.answer, rig.cloud.answer = refuses(500), refuses(429, retry_after="7")
    for kind in KINDS:
        rig.forget()
        caplog.clear()
        rig.target("box/m", "cloud/m", **kind)
        with caplog.at_level("INFO", logger="helexa.requests"):
            answer = await rig.ask_for(kind)
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert (len(rig.box.asked), len(rig.cloud.asked)) == (1, 1)
        assert (rig.settled.prompt_tokens, rig.settled.cost_micro_usd) == (0, 0)
        assert not rig.ledger.held
        (line,) = (one.message for one in caplog.records if one.name == "helexa.requests")
        assert line.endswith(" tried=box/m:upstream_failed")
    # What passes through has the price of its target.
    rig.directory.budgets = (1,)
    rig.cloud.answer = answers
    targets = ("box/m unit_price 2", "cloud/m request_price 1 unit_price 5")
    rig.target(*targets, **SPEAKS, unit_price_micro_usd=9)
    for answer, cost in ((refuses(500), 1 + 6 * 5), (answers, 6 * 2)):
        rig.box.answer = answer
        assert (await rig.speak()).status == 200
        assert rig.ledger.settled[-1].cost_micro_usd == cost
    assert rig.ledger.reserved[0].metered.micro_usd == 1 + 6 * 5
    # The record has the targets tried.
    gateway, rig.box.answer = make_gateway(), refuses(429)
    rig.ledger.recorded.clear()
    rig.target("own", "box/org/m", "cloud/m")
    assert (await client_of(gateway).post(PATH, CHAT_TINY)).status == 200
    await gateway.drain(0)
    (record,) = rig.ledger.recorded
    assert record.targets_tried == ("own: no_neuron", "box/org/m: rate_limit_exceeded")
    assert record.settle.neuron == "upstream:cloud"
