"""Every request that reached the gateway is recorded, however it ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from uuid import UUID

from helexa_site.config import Config
from inference.gateway.gateway import Gateway
from inference.gateway.request.identify import LOGIN, Login
from inference.protocol.events import Event, Traced
from inference.protocol.generation import Submit
from inference.wire.errors import InvalidApiKeyError
from metering.ledger.entries import Outcome
from metering.principal import Principal, Scope
from tests.inference.gateway.asgi_socket import AsgiSocket
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.records.recorded import Recorded, Records
from tests.inference.gateway.responses_support import RESPONSES

CHAT = "/v1/chat/completions"
BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
BEARER = {"authorization": f"Bearer {KEY}"}


async def test_an_answer(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    answer = await client.post(CHAT, BODY, headers=BEARER)
    one = kept.only()
    assert one.settle.request_id == answer.headers["x-request-id"]
    assert UUID(hex=one.settle.request_id).version == 7, "it sorts by time"
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.ANSWERED, 200, "finished")
    assert (one.model_asked, one.settle.model, one.settle.neuron) == ("gpt-4o", "tiny", "beast")
    assert (one.settle.account, one.settle.key) == ("lab", KEY[:13])
    assert one.queue_ms is not None
    assert 0 <= one.queue_ms <= one.settle.duration_ms


async def test_refusals(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    for headers, body, status, code, account in (
        ({}, BODY, 401, "invalid_api_key", ""),
        ({"authorization": f"Bearer {NARROW_KEY}"}, BODY, 403, "insufficient_scope", "lab"),
        (BEARER, {**BODY, "model": "none"}, 404, "model_not_found", "lab"),
        (BEARER, {**BODY, "n": 0}, 400, "invalid_value", "lab"),
    ):
        answer = await client.post(CHAT, body, headers=headers)
        assert answer.status == status, answer.body
        one = kept.ended.pop()
        assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, status, code)
        assert one.settle.request_id == answer.headers["x-request-id"]
        assert one.error_message == answer.error["message"]
        assert one.settle.account == account
        assert one.queue_ms is None
    assert kept.ended == []


async def test_what_a_kept_connection_asks_while_the_gateway_stops(
    recording: tuple[Records, Gateway], records: Recorded, neuron: FakeNeuron
) -> None:
    (_, gateway), (kept, client) = recording, records
    assert (await client.post(CHAT, BODY, headers=BEARER)).status == 200
    await gateway.drain(0)
    for path in (CHAT, "/v1/messages"):
        assert (await client.post(path, BODY, headers=BEARER)).status == 503
        one = kept.ended.pop()
        assert (one.settle.outcome, one.settle.account) == ("shutting_down", "lab")


async def test_refused_handshakes_of_sockets(records: Recorded) -> None:
    kept, client = records
    for key, code, account in (
        ("hx-wrong", "invalid_api_key", ""),
        (NARROW_KEY, "insufficient_scope", "lab"),
    ):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        socket = AsgiSocket(client.application, RESPONSES, headers=headers)
        assert await socket.message() == {"type": "websocket.close"}
        await socket.leave()
        one = kept.ended.pop()
        assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, 403, code)
        assert (one.settle.account, one.settle.endpoint) == (account, f"{RESPONSES} (socket)")
    assert kept.ended == []


async def test_messages_that_no_turn_takes(records: Recorded, config: Config) -> None:
    kept, client = records
    headers = [(b"authorization", BEARER["authorization"].encode())]
    async with AsgiSocket(client.application, RESPONSES, headers=headers) as socket:
        socket.send_json({"input": "x" * config.max_body_bytes})
        assert (await socket.event())["code"] == "request_too_large"
        assert (await socket.message())["type"] == "websocket.close"
    one = kept.only()
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, 413, "request_too_large")
    assert (one.settle.account, one.settle.key) == ("lab", KEY[:13])


async def test_a_login_instead_of_a_key(records: Recorded, neuron: FakeNeuron) -> None:
    """It is recorded with the person as the end user, and goes before any key."""
    kept, client = records
    person = Principal(account="ours", scopes=frozenset({Scope.INFERENCE}))
    login = Login(principal=person, username="ann")
    answer = await client.post(CHAT, BODY, headers=BEARER, extras={LOGIN: login})
    one = kept.ended.pop()
    assert (answer.status, one.settle.account, one.settle.key) == (200, "ours", "")
    assert one.end_user == "ann"
    refused = Login(refusal=InvalidApiKeyError("You are not logged in any more."))
    answer = await client.post(CHAT, BODY, headers=BEARER, extras={LOGIN: refused})
    one = kept.ended.pop()
    assert (answer.status, one.status, one.kind) == (401, 401, Outcome.REFUSED)
    assert one.error_message == "You are not logged in any more." and one.settle.account == ""


async def test_a_client_that_leaves(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    neuron.script = endless
    exchange = client.open("POST", CHAT, {**BODY, "stream": True}, headers=BEARER)
    await exchange.until(b"data: ")
    exchange.leave()
    await exchange.finish()
    async with asyncio.timeout(60):
        while not kept.ended:
            await asyncio.sleep(0.01)
    one = kept.only()
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.CANCELLED, 200, "cancelled")


async def test_a_trusted_key_names_its_end_user(
    records: Recorded, neuron: FakeNeuron, directory: FakeDirectory
) -> None:
    kept, client = records
    named = {**BODY, "user": " ann\n@example.org\u202e"}
    by_proxy = {**BEARER, "x-openwebui-user-email": "bo@example.org"}
    for is_trusted, headers, body, end_user in (
        (False, BEARER, named, ""),
        (False, by_proxy, BODY, ""),
        (True, BEARER, named, "ann@example.org"),
        (True, BEARER, {**BODY, "safety_identifier": "s-1"}, "s-1"),
        (True, by_proxy, named, "bo@example.org"),
        (True, by_proxy, {**BODY, "model": "none"}, "bo@example.org"),
        (True, BEARER, BODY, ""),
    ):
        directory.restrict(KEY, names_end_user=is_trusted)
        await client.post(CHAT, body, headers=headers)
        assert kept.ended.pop().end_user == end_user
    while not neuron.submitted.empty():
        assert "example.org" not in str(neuron.submitted.get_nowait())


async def test_bodies_of_a_captured_key(
    records: Recorded, neuron: FakeNeuron, directory: FakeDirectory
) -> None:
    kept, client = records
    body = {**BODY, "stream": True}
    for until_unix_s, is_captured in ((None, False), (time.time() - 1, False), (1e12, True)):
        directory.restrict(KEY, capture_until_unix_s=until_unix_s)
        answer = await client.post(CHAT, body, headers=BEARER)
        captured = kept.ended.pop().captured
        assert (captured is not None) is is_captured
    assert captured is not None
    assert json.loads(captured.request) == body
    assert bytes(captured.answer) == answer.body
    assert captured.num_answer_bytes == len(answer.body)
    assert (b"authorization", BEARER["authorization"].encode()) in captured.headers
    refusal = await client.post(CHAT, {**BODY, "n": 0}, headers=BEARER)
    captured = kept.ended.pop().captured
    assert captured is not None and bytes(captured.answer) == refusal.body


async def test_the_trace_of_a_captured_request(
    records: Recorded, neuron: FakeNeuron, directory: FakeDirectory
) -> None:
    """It reaches the record, never the client; a neuron that was not asked for one is at fault."""
    kept, client = records

    async def traced(submit: Submit) -> AsyncIterator[list[Event]]:
        *events, last = [one async for batch in paris(submit) for one in batch]
        yield [*events, Traced(request_id=submit.request_id, text="the prompt"), last]

    neuron.script = traced
    assert (await client.post(CHAT, BODY, headers=BEARER)).error["code"] == "neuron_fault"
    assert kept.ended.pop().kind is Outcome.FAILED
    directory.restrict(KEY, capture_until_unix_s=1e12)
    answer = await client.post(CHAT, BODY, headers=BEARER)
    assert answer.status == 200 and b"the prompt" not in answer.body
    captured = kept.ended.pop().captured
    assert captured is not None and captured.trace == "the prompt"


async def test_probes_are_left_out(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    await client.get("/health")
    await client.get("/ping")
    assert kept.ended == []
