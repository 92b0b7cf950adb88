"""Responses in the background whose gateway, database or neuron goes away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from django.db import OperationalError

from inference.conversations import selectors, services
from inference.conversations.models import StoredResponse
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.gateway.responses import background
from inference.gateway.responses import consumer as stored_responses
from inference.protocol.keys import gateway_alive_key
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import responses_body
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, endless, paris
from tests.inference.gateway.responses_support import (
    RESPONSES,
    breaks,
    events,
    gated,
    until_status,
)
from tests.inference.gateway.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]


async def test_what_another_gateway_works_on_is_waited_for(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_responses, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(background.BackgroundRuns, "find", lambda *_: None)
    gate = asyncio.Event()
    neuron.script = gated(gate)
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    watching = client.open("GET", f"{RESPONSES}/{made}", query="stream=true")
    await until_status(kept, made, "in_progress")
    gate.set()
    seen = events(await watching.finish())
    assert (seen[0]["type"], seen[-1]["type"]) == ("response.created", "response.completed")


@pytest.mark.parametrize("end", [services.response_cancel, services.response_delete])
async def test_what_another_gateway_ends_stops_here(
    client: AsgiClient,
    neuron: FakeNeuron,
    monkeypatch: pytest.MonkeyPatch,
    end: Any,
    kept: DatabaseThreads,
) -> None:
    monkeypatch.setattr(background, "WATCH_INTERVAL_S", 0.02)
    neuron.script = endless
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    submit = await neuron.submitted.get()
    await until_status(kept, made, "in_progress")
    await kept.query(lambda: end(response_id=made, account="anonymous"))
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id


async def test_what_a_dead_gateway_left_has_failed(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LEASE_S", -1.0)
    monkeypatch.setattr(background, "WATCH_INTERVAL_S", 60.0)
    neuron.script = endless
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    await until_status(kept, made, "failed")
    await kept.query(lambda: StoredResponse.objects.update(gateway_id="dead"))
    for answer in (
        await client.get(f"{RESPONSES}/{made}"),
        await client.post(f"{RESPONSES}/{made}/cancel"),
    ):
        assert (answer.status, answer.json["status"]) == (200, "failed")
        assert "went away" in answer.json["error"]["message"]


@pytest.mark.parametrize(("script", "status"), [(paris, "completed"), (breaks, "failed")])
async def test_the_end_is_kept_once_the_database_is_back(
    client: AsgiClient,
    neuron: FakeNeuron,
    monkeypatch: pytest.MonkeyPatch,
    kept: DatabaseThreads,
    script: Script,
    status: str,
) -> None:
    monkeypatch.setattr(background, "SAVE_AGAIN_AFTER_S", (0.01,) * (200 if script is paris else 1))
    neuron.script = script
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()
    num_tried = 0
    working = services.response_progress

    def away(**_named: Any) -> Any:
        nonlocal num_tried
        num_tried += 1
        if num_tried == 5:
            loop.call_soon_threadsafe(tried.set)
        raise OperationalError("gone")

    monkeypatch.setattr(services, "response_progress", away)
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    await asyncio.wait_for(tried.wait(), 60)
    monkeypatch.setattr(services, "response_progress", working)
    await until_status(kept, made, status)
    if status == "failed":
        stored = (await client.get(f"{RESPONSES}/{made}")).json
        assert stored["error"] == {"code": "server_error", "message": "The engine crashed."}
        assert stored["output"][0]["status"] == "incomplete"


async def test_a_gateway_that_stops_reports_it_and_ends_the_streams_that_watch(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, kept: DatabaseThreads
) -> None:
    neuron.script = endless
    exchange = client.open("POST", RESPONSES, responses_body(background=True, stream=True))
    await exchange.until(b"on and")
    await gateway.drain(0)
    seen = events(await exchange.finish())
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert (seen[-2]["code"], seen[-1]["type"]) == ("shutting_down", "response.failed")
    made = seen[0]["response"]["id"]
    record = await kept.query(lambda: selectors.response_find(made, account="anonymous"))
    assert record is not None and record.status == "failed"
    assert "shutting down" in record.response["error"]["message"]


async def test_a_gateway_that_lives_has_not_lost_its_responses(
    client: AsgiClient,
    neuron: FakeNeuron,
    kept: DatabaseThreads,
    redis_db: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease runs out while the database is away for 35 s. It was shown as failed, and completed
    later; a poller had given up."""
    monkeypatch.setattr(services, "LEASE_S", -1.0)
    monkeypatch.setattr(background, "WATCH_INTERVAL_S", 60.0)
    gate = asyncio.Event()
    neuron.script = gated(gate)
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    path = f"{RESPONSES}/{made}"

    async def status() -> str:
        return str((await client.get(path)).json["status"])

    async with asyncio.timeout(60):
        while await status() != "in_progress":
            await asyncio.sleep(0.01)
    # So it is seen from another gateway, too.
    await kept.query(lambda: StoredResponse.objects.update(gateway_id="other"))
    redis_db.set(gateway_alive_key("other"), b"1")
    assert await status() == "in_progress"
    gate.set()
    await until_status(kept, made, "completed")
    assert await status() == "completed"


async def test_what_was_reported_as_failed_never_completes(
    client: AsgiClient,
    gateway: Gateway,
    neuron: FakeNeuron,
    kept: DatabaseThreads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its gateway stalled, and continues."""
    monkeypatch.setattr(services, "LEASE_S", -1.0)
    monkeypatch.setattr(background, "WATCH_INTERVAL_S", 60.0)
    gate = asyncio.Event()
    neuron.script = gated(gate)
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    await neuron.submitted.get()
    await kept.query(lambda: StoredResponse.objects.update(gateway_id="stopped"))
    failed = (await client.get(f"{RESPONSES}/{made}")).json
    assert failed["status"] == "failed"
    gate.set()
    await until(lambda: not len(gateway.streams))
    watched = events(await client.get(f"{RESPONSES}/{made}", query="stream=true"))
    assert watched[-1]["type"] != "response.completed"
    assert (await client.get(f"{RESPONSES}/{made}")).json == failed
    row = await kept.query(StoredResponse.objects.get)
    assert (row.status, row.lease_until) == ("failed", None)
