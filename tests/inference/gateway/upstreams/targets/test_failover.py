"""Requests that fail over to their next target: before their first token, and each target once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from helexa_site.config import Config
from helexa_site.routing import build_application
from inference.gateway.gateway import Gateway
from inference.protocol.events import Event
from inference.protocol.generation import Submit
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue, MakeClient, not_django
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.inference.gateway.records.recorded import Records
from tests.inference.gateway.upstreams.targets.targeting import (
    CHAT,
    FAR,
    OWN,
    PARTS,
    PATH,
    chat,
    failing,
    refuses,
    text_of,
)
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, chunk


@pytest.mark.parametrize("streams", [True, False])
async def test_a_model_that_no_host_holds_fails_over_to_the_next_target(
    client: AsgiClient,
    offer: Any,
    ledger: FakeLedger,
    caplog: pytest.LogCaptureFixture,
    streams: bool,
) -> None:
    caplog.set_level(logging.INFO)
    offer("own", "box/m")
    answer = await chat(client, stream=streams)
    assert (answer.status, answer.headers["x-helexa-served-by"]) == (200, "upstream:box")
    (settled,) = ledger.settled
    assert (settled.neuron, settled.prompt_tokens, settled.completion_tokens) == (
        "upstream:box",
        7,
        2,
    )
    assert any("fails over from its target own: no_neuron" in one.message for one in caplog.records)
    assert any("tried=own:no_neuron" in one.message for one in caplog.records)


async def test_the_record_has_the_targets_that_were_tried(
    config: Config,
    catalogue: FakeCatalogue,
    directory: FakeDirectory,
    ledger: FakeLedger,
    offer: Any,
    box: FakeUpstream,
) -> None:
    box.answer = refuses(429)
    records = Records()
    gateway = Gateway(
        config,
        catalogue,
        directory=directory,
        make_ledger=lambda _id: ledger,
        records=records,
    )
    offer("own", "box/org/m", "cloud/m")
    assert (await chat(AsgiClient(build_application(gateway, django_app=not_django)))).status == 200
    await gateway.drain(0)
    record = records.only()
    assert record.targets_tried == ("own: no_neuron", "box/org/m: rate_limit_exceeded")
    assert record.settle.neuron == "upstream:cloud"


FIRST_FAILURES: list[Any] = [
    refuses(500),
    refuses(503, retry_after="9"),
    refuses(429),
    refuses(401),
    refuses(404),
    refuses(302, location="http://169.254.169.254/"),
    lambda asked, wire: wire.cut(),
    lambda asked, wire: wire.whole(200, b"<html>", "text/html"),
    lambda asked, wire: wire.json(200, {"error": {"message": "no", "type": "overloaded_error"}}),
]


def accepts_and_cuts(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(chunk({"role": "assistant", "content": ""}))
    wire.cut()


@pytest.mark.parametrize("fails", [*FIRST_FAILURES, accepts_and_cuts])
async def test_a_failure_before_the_first_token_fails_over_and_is_billed_once(
    client: AsgiClient,
    offer: Any,
    box: FakeUpstream,
    cloud: FakeUpstream,
    ledger: FakeLedger,
    fails: Any,
) -> None:
    box.answer = fails
    offer("box/m", "cloud/m", source="upstream:box/m")
    answer = await chat(client, stream=True)
    assert (answer.status, answer.headers["x-helexa-served-by"]) == (200, "upstream:cloud")
    assert FAR in answer.body.decode()
    assert (len(box.asked), len(cloud.asked)) == (1, 1)
    (settled,) = ledger.settled
    assert (settled.neuron, settled.outcome, settled.prompt_tokens) == (
        "upstream:cloud",
        "finished",
        7,
    )


def cuts_late(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(PARTS[0])
    wire.cut()


async def test_after_the_first_token_a_cut_is_an_error_with_what_was_used(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream, ledger: FakeLedger
) -> None:
    box.answer = cuts_late
    offer("box/m", "cloud/m", source="upstream:box/m")
    answer = await chat(client, stream=True)
    assert answer.chunks[-1]["error"]["code"] == "upstream_failed"
    assert not cloud.asked
    (settled,) = ledger.settled
    assert settled.completion_tokens >= 1


@pytest.mark.parametrize("status", [400, 422])
async def test_the_callers_own_mistake_is_not_tried_elsewhere(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream, status: int
) -> None:
    box.answer = refuses(status)
    offer("box/m", "cloud/m", source="upstream:box/m")
    answer = await chat(client)
    assert (answer.status, answer.error["code"]) == (400, "upstream_refused")
    assert not cloud.asked
    assert "x-helexa-served-by" not in answer.headers


async def test_each_target_is_tried_once_and_the_last_error_is_the_clients(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream, ledger: FakeLedger
) -> None:
    box.answer, cloud.answer = refuses(500), refuses(429, retry_after="7")
    offer("own", "box/m", "cloud/m")
    answer = await chat(client)
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert (len(box.asked), len(cloud.asked)) == (1, 1)
    (settled,) = ledger.settled
    assert (settled.prompt_tokens, settled.cost_micro_usd) == (0, 0)
    assert not ledger.held


@pytest.mark.parametrize(
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
    client: AsgiClient,
    neuron: FakeNeuron,
    offer: Any,
    box: FakeUpstream,
    ledger: FakeLedger,
    code: str,
    accepts: bool,
    fails_over: bool,
) -> None:
    neuron.script = failing(code, accepts=accepts)
    offer("own", "box/m")
    answer = await chat(client)
    if fails_over:
        assert answer.headers["x-helexa-served-by"] == "upstream:box"
    else:
        assert answer.error["code"] == code
    assert len(box.asked) == fails_over
    assert len(ledger.settled) == 1


async def test_a_request_fails_over_from_an_upstream_to_own_replicas(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream, ledger: FakeLedger
) -> None:
    box.answer = refuses(503)
    offer("box/m", "own")
    answer = await chat(client)
    assert (text_of(answer), answer.headers["x-helexa-served-by"]) == (OWN, "beast")
    (settled,) = ledger.settled
    assert (settled.neuron, settled.completion_tokens) == ("beast", 5)


async def test_no_target_is_tried_once_the_time_is_over(
    make_client: MakeClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    neuron.status = None
    await neuron.beat()
    offer("own", "box/m", vram_mb=1)
    answer = await chat(make_client(request_timeout_s=1))
    assert (answer.status, answer.error["code"]) == (503, "model_loading")
    assert not box.asked


async def test_a_client_that_leaves_before_the_next_target_ends_it(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream, ledger: FakeLedger
) -> None:
    gone = threading.Event()

    def silent(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event(chunk({"role": "assistant"}))
        if wire.wait_for_hang_up():
            gone.set()

    box.answer = silent
    offer("box/m", "cloud/m", source="upstream:box/m")
    exchange = client.open("POST", PATH, {**CHAT, "stream": True})
    await until(lambda: box.asked)
    exchange.leave()
    await exchange.finish()
    assert await asyncio.to_thread(gone.wait, 60)
    assert not cloud.asked
    (settled,) = ledger.settled
    assert (settled.outcome, settled.completion_tokens) == ("cancelled", 0)


async def test_a_lost_neuron_that_had_not_accepted_fails_over_and_is_cancelled(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream, ledger: FakeLedger
) -> None:
    async def never(submit: Submit) -> AsyncIterator[list[Event]]:
        await asyncio.Event().wait()
        yield []

    neuron.script = never
    offer("own", "box/m when waiting_longer_than 1")
    exchange = client.open("POST", PATH, CHAT)
    await neuron.submitted.get()
    await neuron.die()
    await exchange.finish()
    assert text_of(exchange) == FAR
    assert await neuron.cancelled.get()
    assert [one.neuron for one in ledger.settled] == ["upstream:box"]
