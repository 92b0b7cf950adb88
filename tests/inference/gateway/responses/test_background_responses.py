"""Responses in the background: without their client, watched again, cancelled and deleted, and what
becomes of them when their gateway, database or neuron goes away."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any
from unittest.mock import Mock

import openai
import pytest
import redis
from django.db import OperationalError

from inference.conversations import services
from inference.conversations.models import StoredResponse
from inference.gateway import background_responses, response_store
from inference.gateway.consumers import responses as stored_responses
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.protocol.keys import gateway_alive_key
from inference.wire.responses import request as openai_responses
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import (
    RESPONSES,
    breaks,
    gated,
    responses_body,
    until,
    until_status,
)
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]


async def test_the_sdk_works_in_the_background(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    create, gate = sdk.responses.create, asyncio.Event()
    with pytest.raises(openai.NotFoundError):
        await create(**responses_body(background=True, model="huge"))
    assert await kept.query(StoredResponse.objects.count) == 0
    neuron.script = gated(gate)
    made = await create(**responses_body(background=True))
    assert (made.status, made.output, made.background) == ("queued", [], True)
    await until_status(kept, made.id, "in_progress")
    with pytest.raises(openai.BadRequestError):
        await create(**responses_body(previous_response_id=made.id))
    gate.set()
    await until_status(kept, made.id, "completed")
    done = await sdk.responses.retrieve(made.id)
    assert done.output_text == "Paris" and done.usage is not None
    again = await create(**responses_body(previous_response_id=made.id))
    assert again.status == "completed"
    assert (await sdk.responses.cancel(made.id)).status == "completed"
    with pytest.raises(openai.BadRequestError):
        await sdk.responses.cancel(again.id)


async def test_watched_again(client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads) -> None:
    gate = asyncio.Event()
    neuron.script = gated(gate)
    first = client.open("POST", RESPONSES, responses_body(background=True, stream=True))
    await first.until(b'"delta":"Pa"')
    seen = first.chunks
    names = [event["type"] for event in seen]
    assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
    first.leave()
    await first.finish()
    response_id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    path = f"{RESPONSES}/{response_id}"
    rest_of_it = f"stream=true&starting_after={last}"
    again = client.open("GET", path, query="stream=true")
    after = client.open("GET", path, query=rest_of_it)
    await again.until(b'"delta":"Pa"')
    assert again.chunks == seen
    gate.set()
    rest = (await after.finish()).chunks
    assert [event["sequence_number"] for event in rest] == [*range(last + 1, last + 1 + len(rest))]
    assert (rest[0]["delta"], rest[-1]["type"]) == ("ris", "response.completed")
    assert (await again.finish()).chunks == seen + rest
    (end,) = (await client.get(path, query=rest_of_it)).chunks
    assert (end["type"], end["sequence_number"]) == ("response.completed", last + len(rest))
    assert end["response"]["output"] == rest[-1]["response"]["output"]
    stored = (await client.get(path)).json
    assert stored["output"][0]["content"][0]["text"] == "Paris"
    assert neuron.cancelled.empty()


async def test_cancel_and_delete(client: AsgiClient, neuron: FakeNeuron, gateway: Gateway) -> None:
    neuron.script = endless
    exchange = client.open("POST", RESPONSES, responses_body(background=True, stream=True))
    submit = await neuron.submitted.get()
    await exchange.until(b"on and")
    path = f"{RESPONSES}/{exchange.chunks[0]['response']['id']}"
    for _ in range(2):
        assert (await client.post(f"{path}/cancel")).json["status"] == "cancelled"
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
    seen = (await exchange.finish()).chunks
    assert (seen[-1]["type"], seen[-1]["code"]) == ("error", "cancelled")
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    submit = await neuron.submitted.get()
    deleted = await client.open("DELETE", f"{RESPONSES}/{made}").finish()
    assert deleted.json == {"id": made, "object": "response", "deleted": True}
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
    assert (await client.get(f"{RESPONSES}/{made}")).status == 404
    await until(lambda: not len(gateway.streams))


async def test_a_run_cancelled_before_it_begins_lets_its_watcher_go(gateway: Gateway) -> None:
    gateway.ensure_started()
    runs = background_responses.BackgroundRuns(
        gateway, response_store.ResponseStore(gateway, max_responses=9, max_bytes=9)
    )
    request = openai_responses.parse(json.dumps(responses_body(background=True)).encode())
    encoder = request.stream_encoder(request_id="r", clock=lambda: 1)
    opening = encoder.opening()
    call = gateway.open_call(request_id="r", endpoint="/v1/responses")
    log = runs.start(request, call=call, encoder=encoder, opening=opening)
    assert await log.take(0) == (opening, False)
    runs.cancel("resp_r")
    assert await asyncio.wait_for(log.take(len(log)), 60) == (b"", True)
    assert len(runs) == 0


async def test_what_another_gateway_works_on_is_waited_for_and_what_it_ends_stops_here(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_responses, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(background_responses, "WATCH_INTERVAL_S", 0.02)
    gate = asyncio.Event()
    neuron.script = gated(gate)
    with monkeypatch.context() as patch:
        patch.setattr(background_responses.BackgroundRuns, "find", lambda *_: None)
        made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
        watching = client.open("GET", f"{RESPONSES}/{made}", query="stream=true")
        await until_status(kept, made, "in_progress")
        gate.set()
        seen = (await watching.finish()).chunks
    assert (seen[0]["type"], seen[-1]["type"]) == ("response.created", "response.completed")
    await neuron.submitted.get()
    neuron.script = endless
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    submit = await neuron.submitted.get()
    await until_status(kept, made, "in_progress")
    await kept.query(lambda: services.response_delete(response_id=made, account="anonymous"))
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id


@each_case("case", [(paris, "completed"), (breaks, "failed")], ids=["whole", "broken"])
async def test_the_end_is_kept_once_the_database_is_back(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: Any, kept: DatabaseThreads, case: Any
) -> None:
    neuron.script, status = case
    monkeypatch.setattr(background_responses, "SAVE_AGAIN_AFTER_S", (0.01,))
    away = Mock(side_effect=OperationalError("gone"))
    with monkeypatch.context() as patch:
        patch.setattr(services, "response_progress", away)
        made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
        await until(lambda: away.call_count > 20)
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
    seen = (await exchange.finish()).chunks
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert (seen[-2]["code"], seen[-1]["type"]) == ("shutting_down", "response.failed")
    made = seen[0]["response"]["id"]
    record = await kept.query(lambda: services.response_find(made, account="anonymous"))
    assert record is not None and record.status == "failed"
    assert "shutting down" in record.response["error"]["message"]


async def test_only_a_gateway_that_went_away_has_lost_its_responses(
    client: AsgiClient,
    neuron: FakeNeuron,
    kept: DatabaseThreads,
    gateway: Gateway,
    redis_db: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease runs out while the database is away for 35 s. It was shown as failed, and completed
    later; a poller had given up. What went away has failed, though it only stalled and goes on."""
    monkeypatch.setattr(services, "LEASE_S", -1.0)
    monkeypatch.setattr(background_responses, "WATCH_INTERVAL_S", 60.0)
    for owner in ("lives", "stopped"):
        gate = asyncio.Event()
        neuron.script = gated(gate)
        made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
        path = f"{RESPONSES}/{made}"
        await neuron.submitted.get()
        if owner == "lives":
            async with asyncio.timeout(60):
                while (await client.get(path)).json["status"] != "in_progress":
                    await asyncio.sleep(0.01)
            redis_db.set(gateway_alive_key(owner), b"1")
        await kept.query(partial(StoredResponse.objects.update, gateway_id=owner))
        if owner == "lives":
            assert (await client.get(path)).json["status"] == "in_progress"
            gate.set()
            await until_status(kept, made, "completed")
            assert (await client.get(path)).json["status"] == "completed"
            await kept.query(lambda: StoredResponse.objects.all().delete())
    failed = await client.get(path)
    gate.set()
    await until(lambda: not len(gateway.streams))
    watched = (await client.get(path, query="stream=true")).chunks
    assert watched[-1]["type"] != "response.completed"
    for answer in (failed, await client.get(path), await client.post(f"{path}/cancel")):
        assert (answer.status, answer.json) == (200, failed.json)
        assert answer.json["status"] == "failed"
        assert "went away" in answer.json["error"]["message"]
    row = await kept.query(StoredResponse.objects.get)
    assert (row.status, row.lease_until) == ("failed", None)
