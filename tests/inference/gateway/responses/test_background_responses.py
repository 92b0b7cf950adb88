"""Responses in the background: without their client, watched again, cancelled and deleted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from inference.conversations.models import StoredResponse
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.gateway.responses import background
from inference.gateway.responses import store as response_store
from inference.gateway.responses.background import EventsGoneError, FrameLog
from inference.wire.openai.responses import request as openai_responses
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import responses_body
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, endless, paris
from tests.inference.gateway.responses_support import (
    RESPONSES,
    cut_short,
    events,
    gated,
    until_status,
)
from tests.inference.gateway.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]


async def test_the_sdk_works_in_the_background(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    gate = asyncio.Event()
    neuron.script = gated(gate)
    made = await sdk.responses.create(**responses_body(background=True))
    assert (made.status, made.output, made.background) == ("queued", [], True)
    await until_status(kept, made.id, "in_progress")
    with pytest.raises(openai.BadRequestError):
        await sdk.responses.create(**responses_body(previous_response_id=made.id))
    gate.set()
    await until_status(kept, made.id, "completed")
    done = await sdk.responses.retrieve(made.id)
    assert done.output_text == "Paris" and done.usage is not None
    again = await sdk.responses.create(**responses_body(previous_response_id=made.id))
    assert again.status == "completed"
    assert (await sdk.responses.cancel(made.id)).status == "completed"
    with pytest.raises(openai.BadRequestError):
        await sdk.responses.cancel(again.id)


async def test_a_stream_survives_its_client_and_is_watched_again(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    gate = asyncio.Event()
    neuron.script = gated(gate)
    first = client.open("POST", RESPONSES, responses_body(background=True, stream=True))
    await first.until(b'"delta":"Pa"')
    seen = events(first)
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
    assert events(again) == seen
    gate.set()
    rest = events(await after.finish())
    assert [event["sequence_number"] for event in rest] == [*range(last + 1, last + 1 + len(rest))]
    assert (rest[0]["delta"], rest[-1]["type"]) == ("ris", "response.completed")
    assert events(await again.finish()) == seen + rest
    (end,) = events(await client.get(path, query=rest_of_it))
    assert (end["type"], end["sequence_number"]) == ("response.completed", last + len(rest))
    assert end["response"]["output"] == rest[-1]["response"]["output"]
    stored = (await client.get(path)).json
    assert stored["output"][0]["content"][0]["text"] == "Paris"
    assert neuron.cancelled.empty()


@each_case("background", [False, True])
@each_case("stream", [False, True])
@each_case("script", [cut_short, paris])
async def test_the_sdk_resumes_a_response_that_has_ended(
    sdk: openai.AsyncOpenAI, neuron: FakeNeuron, background: bool, stream: bool, script: Script
) -> None:
    """The SDK's helper asks for the whole stream and drops every event up to ``starting_after``,
    so the closing event has the number that it had in the first stream."""
    neuron.script = script
    made = await sdk.responses.create(**responses_body(background=background, stream=stream))
    first: list[Any] = [event async for event in made] if stream else []
    response_id = first[0].response.id if stream else made.id
    while (await sdk.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
    # As many events as the first stream gave before its last one; without it, as it would have.
    seen = first[-2].sequence_number if stream else 8
    async with sdk.responses.stream(response_id=response_id, starting_after=seen) as resumed:
        events_left = [event async for event in resumed]
    status = "incomplete" if script is cut_short else "completed"
    assert [event.type for event in events_left] == [f"response.{status}"]
    if stream:
        assert events_left[0].sequence_number == first[-1].sequence_number


async def test_events_that_are_gone_are_reported_as_gone(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_KEPT_BYTES", 2000)
    neuron.script = endless
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    path, status = f"{RESPONSES}/{made}", 0
    async with asyncio.timeout(60):
        while status != 400:
            tried = client.open("GET", path, query="stream=true&starting_after=0")
            while not (status := tried.status):
                await asyncio.sleep(0.01)
            tried.leave()
    refused = await tried.finish()
    assert refused.error["param"] == "starting_after"
    await client.post(f"{RESPONSES}/{made}/cancel")


async def test_cancelling_and_deleting_end_it(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    """Who watches is notified."""
    neuron.script = endless
    exchange = client.open("POST", RESPONSES, responses_body(background=True, stream=True))
    submit = await neuron.submitted.get()
    await exchange.until(b"on and")
    path = f"{RESPONSES}/{events(exchange)[0]['response']['id']}"
    for _ in range(2):
        assert (await client.post(f"{path}/cancel")).json["status"] == "cancelled"
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
    seen = events(await exchange.finish())
    assert (seen[-1]["type"], seen[-1]["code"]) == ("error", "cancelled")
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    submit = await neuron.submitted.get()
    deleted = await client.open("DELETE", f"{RESPONSES}/{made}").finish()
    assert deleted.json == {"id": made, "object": "response", "deleted": True}
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == submit.request_id
    assert (await client.get(f"{RESPONSES}/{made}")).status == 404
    await until(lambda: not len(gateway.streams))


async def test_an_unknown_model_is_refused_at_once(
    client: AsgiClient, neuron: FakeNeuron, kept: DatabaseThreads
) -> None:
    refused = await client.post(RESPONSES, responses_body(background=True, model="huge"))
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    assert await kept.query(StoredResponse.objects.count) == 0


async def test_each_run_is_one_line_in_the_log(
    client: AsgiClient,
    neuron: FakeNeuron,
    kept: DatabaseThreads,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="helexa.requests")
    made = (await client.post(RESPONSES, responses_body(background=True))).json["id"]
    await until_status(kept, made, "completed")

    def lines() -> list[str]:
        return [record.message for record in caplog.records if record.name == "helexa.requests"]

    await until(lines)
    (line,) = lines()
    assert line.startswith(made.removeprefix("resp_") + " /v1/responses anonymous/- model=tiny")
    assert " finished prompt=7 cached=2 completion=5 " in line


async def test_a_run_that_is_cancelled_before_it_begins_lets_its_watcher_go(
    gateway: Gateway,
) -> None:
    gateway.ensure_started()
    runs = background.BackgroundRuns(
        gateway, response_store.ResponseStore(gateway, max_responses=9, max_bytes=9)
    )
    request = openai_responses.parse(json.dumps(responses_body(background=True)).encode())
    encoder = request.stream_encoder(request_id="r", clock=lambda: 1)
    opening = encoder.opening()
    call = gateway.open_call(request_id="r", endpoint="/v1/responses")
    run = runs.start(request, call=call, encoder=encoder, opening=opening)
    assert await run.log.take(0) == (opening, False)
    runs.cancel("resp_r")
    assert await asyncio.wait_for(run.log.take(run.log.end), 60) == (b"", True)
    assert len(runs) == 0


def frames(*numbers: int) -> bytes:
    return b"".join(b"data: %d\n\n" % number for number in numbers)


async def test_everything_that_is_there_comes_as_one_and_the_end_is_reported() -> None:
    log = FrameLog()
    log.put(frames(0))
    log.put(b"")
    log.put(frames(1, 2))
    assert await log.take(0) == (frames(0, 1, 2), False)
    waiting = asyncio.create_task(log.take(3))
    await asyncio.sleep(0)
    log.put(frames(3))
    assert await waiting == (frames(3), False)
    log.put(frames(4))
    log.close()
    assert await log.take(4) == (frames(4), True)


async def test_from_any_event_on() -> None:
    log = FrameLog()
    log.put(frames(0, 1, 2, 3))
    assert log.end == 4
    for number in range(4):
        assert await log.take(number) == (frames(*range(number, 4)), False)
    waiting = asyncio.create_task(log.take(6))
    await asyncio.sleep(0)
    log.put(frames(4, 5))
    await asyncio.sleep(0)
    assert not waiting.done(), "none of them is after the fifth"
    log.put(frames(6))
    assert await waiting == (frames(6), False)
    log.close()
    assert await log.take(6) == (frames(6), True)
    assert await log.take(10) == (b"", True)


async def test_who_does_not_read_is_given_up_and_the_work_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "MAX_KEPT_BYTES", 3 * len(frames(0)))
    log = FrameLog()
    for number in range(5):
        log.put(frames(number))
        assert await log.take(number) == (frames(number), False)
    for slow in (0, 1):
        with pytest.raises(EventsGoneError) as gone:
            await log.take(slow)
        assert gone.value.first == 2
    assert await log.take(2) == (frames(2, 3, 4), False)
