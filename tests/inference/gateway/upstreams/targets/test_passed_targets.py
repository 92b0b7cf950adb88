"""Requests that pass through to one of several targets: chosen and failed over as those of text."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from inference.gateway.upstreams.links import MAX_FAILURES
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.passing import SPEECH, SPOKEN
from tests.inference.gateway.upstreams.targets.targeting import refuses
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

ONLY: dict[str, Any] = {"source": "upstream:box/m", "task": "speech"}


def speaks(asked: Asked, wire: Wire) -> None:
    wire.whole(200, b"sound", "audio/mpeg")


@pytest.fixture(autouse=True)
def _they_speak(box: FakeUpstream, cloud: FakeUpstream) -> None:
    box.answer = cloud.answer = speaks


async def speak(client: AsgiClient) -> Exchange:
    return await client.post(SPEECH, {**SPOKEN, "model": "tiny"})


@pytest.mark.parametrize(
    "fails",
    [refuses(500), refuses(429), refuses(404), lambda asked, wire: wire.cut()],
)
async def test_a_failure_before_the_first_byte_fails_over_and_is_billed_once(
    client: AsgiClient,
    offer: Any,
    box: FakeUpstream,
    cloud: FakeUpstream,
    ledger: FakeLedger,
    fails: Any,
) -> None:
    box.answer = fails
    offer("box/m", "cloud/n", **ONLY)
    answer = await speak(client)
    assert (answer.status, answer.headers["x-helexa-served-by"]) == (200, "upstream:cloud")
    assert (len(box.asked), cloud.asked[0].json["model"]) == (1, "n")
    (settled,) = ledger.settled
    assert (settled.neuron, settled.metered.num_units) == ("upstream:cloud", 6)


async def test_after_the_first_byte_nothing_fails_over(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream
) -> None:
    def breaks(asked: Asked, wire: Wire) -> None:
        wire.begin_stream("audio/mpeg")
        wire.part(b"half")
        wire.cut()

    box.answer = breaks
    offer("box/m", "cloud/m", **ONLY)
    assert (await speak(client)).body == b"half"
    assert not cloud.asked


async def test_the_callers_own_mistake_is_not_tried_elsewhere(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream
) -> None:
    box.answer = refuses(400)
    offer("box/m", "cloud/m", **ONLY)
    answer = await speak(client)
    assert (answer.status, answer.error["code"]) == (400, "upstream_refused")
    assert not cloud.asked


async def test_where_all_fail_the_last_error_is_the_clients_and_only_the_others_were_left(
    client: AsgiClient,
    offer: Any,
    box: FakeUpstream,
    cloud: FakeUpstream,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    box.answer, cloud.answer = refuses(500), refuses(429, retry_after="7")
    offer("box/m", "cloud/m", **ONLY)
    answer = await speak(client)
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    (line,) = (one.message for one in caplog.records if one.name == "helexa.requests")
    assert line.endswith(" tried=box/m:upstream_failed")
    caplog.clear()
    offer("box/m", **ONLY)
    assert (await speak(client)).status == 502
    assert not any("tried" in one.message or "fails over" in one.message for one in caplog.records)


async def test_requests_that_must_stay_reach_no_target_outside(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream
) -> None:
    offer("cloud/m", "box/m", may_leave_network=False, **ONLY)
    assert (await speak(client)).headers["x-helexa-served-by"] == "upstream:box"
    box.answer = refuses(503)
    assert (await speak(client)).error["code"] == "upstream_unavailable"
    offer("cloud/m", may_leave_network=False, **{**ONLY, "source": "upstream:cloud/m"})
    assert (await speak(client)).error["code"] == "network_not_allowed"
    assert not cloud.asked


async def test_a_sick_target_is_passed_over(
    client: AsgiClient, offer: Any, box: FakeUpstream
) -> None:
    box.answer = refuses(503)
    offer("box/m when ready", "cloud/m", **ONLY)
    for _ in range(MAX_FAILURES + 2):
        assert (await speak(client)).headers["x-helexa-served-by"] == "upstream:cloud"
    assert len(box.asked) == MAX_FAILURES


async def test_one_that_waits_for_a_place_spills_over_and_may_come_back(
    client: AsgiClient,
    offer: Any,
    box: FakeUpstream,
    cloud: FakeUpstream,
    directory: FakeDirectory,
    ledger: FakeLedger,
) -> None:
    """A target that it left because another was due is no target that failed."""
    directory.budgets = (1,)
    goes_on = threading.Event()

    def waits(asked: Asked, wire: Wire) -> None:
        assert goes_on.wait(60)
        speaks(asked, wire)

    def refuses_and_frees(asked: Asked, wire: Wire) -> None:
        goes_on.set()
        wire.json(503, {"error": {"message": "full"}})

    box.answer, cloud.answer = waits, refuses_and_frees
    entry = offer("box/m", "cloud/m when waiting_longer_than 1", **ONLY)
    narrow = tuple(_narrow(one) for one in entry.target_upstreams)
    offer("box/m", "cloud/m when waiting_longer_than 1", **ONLY, target_upstreams=narrow)
    first = client.open("POST", SPEECH, {**SPOKEN, "model": "tiny"})
    await until(lambda: box.asked)
    second = await speak(client)
    assert (second.status, second.headers["x-helexa-served-by"]) == (200, "upstream:box")
    await first.finish()
    assert (len(box.asked), len(cloud.asked)) == (2, 1)
    assert not ledger.held


def _narrow(upstream: Any) -> Any:
    return replace(upstream, concurrency=1)
