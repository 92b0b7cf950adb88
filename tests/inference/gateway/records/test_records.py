"""Every request that reached the gateway is recorded, however it ended."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from uuid import UUID

from helexa_site.config import Config
from inference.gateway.request.identify import LOGIN, Login
from inference.protocol.events import Event, Traced
from inference.protocol.generation import Submit
from inference.wire.errors import InvalidApiKeyError
from metering.ledger.entries import Outcome
from metering.principal import Principal, Scope
from tests.inference.gateway.asgi_socket import AsgiSocket
from tests.inference.gateway.conftest import BEARER, CHAT, SHORT_CHAT
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.records.recorded import RecordingRig
from tests.inference.gateway.responses_support import RESPONSES
from tests.inference.gateway.waiting import until


async def test_an_answer(rig: RecordingRig, neuron: FakeNeuron) -> None:
    answer = await rig.ask()
    one = rig.record()
    assert one.settle.request_id == answer.headers["x-request-id"]
    assert UUID(hex=one.settle.request_id).version == 7, "it sorts by time"
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.ANSWERED, 200, "finished")
    assert (one.model_asked, one.settle.model, one.settle.neuron) == ("gpt-4o", "tiny", "beast")
    assert (one.settle.account, one.settle.key) == ("lab", KEY[:13])
    assert one.queue_ms is not None
    assert 0 <= one.queue_ms <= one.settle.duration_ms


async def test_refusals(rig: RecordingRig, neuron: FakeNeuron) -> None:
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    for headers, more, status, code, account in (
        ({}, {}, 401, "invalid_api_key", ""),
        (narrow, {}, 403, "insufficient_scope", "lab"),
        (BEARER, {"model": "none"}, 404, "model_not_found", "lab"),
        (BEARER, {"n": 0}, 400, "invalid_value", "lab"),
    ):
        answer = await rig.client.post(CHAT, {**SHORT_CHAT, **more}, headers=headers)
        assert answer.status == status, answer.body
        one = rig.refused(status, code, account=account)
        assert one.settle.request_id == answer.headers["x-request-id"]
        assert one.error_message == answer.error["message"]
        assert one.queue_ms is None


async def test_what_a_kept_connection_asks_while_the_gateway_stops(
    rig: RecordingRig, neuron: FakeNeuron
) -> None:
    assert (await rig.ask()).status == 200
    await rig.gateway.drain(0)
    rig.records.ended.clear()
    for path in (CHAT, "/v1/messages"):
        assert (await rig.client.post(path, SHORT_CHAT, headers=BEARER)).status == 503
        one = rig.record()
        assert (one.settle.outcome, one.settle.account) == ("shutting_down", "lab")


async def test_refused_handshakes_of_sockets(rig: RecordingRig) -> None:
    for key, code, account in (
        ("hx-wrong", "invalid_api_key", ""),
        (NARROW_KEY, "insufficient_scope", "lab"),
    ):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        socket = AsgiSocket(rig.client.application, RESPONSES, headers=headers)
        assert await socket.message() == {"type": "websocket.close"}
        await socket.leave()
        one = rig.refused(403, code, account=account)
        assert one.settle.endpoint == f"{RESPONSES} (socket)"


async def test_messages_that_no_turn_takes(rig: RecordingRig, config: Config) -> None:
    headers = [(b"authorization", BEARER["authorization"].encode())]
    async with AsgiSocket(rig.client.application, RESPONSES, headers=headers) as socket:
        socket.send_json({"input": "x" * config.max_body_bytes})
        assert (await socket.event())["code"] == "request_too_large"
        assert (await socket.message())["type"] == "websocket.close"
    rig.refused(413, "request_too_large")


async def test_a_login_instead_of_a_key(rig: RecordingRig, neuron: FakeNeuron) -> None:
    """It is recorded with the person as the end user, and goes before any key."""
    person = Principal(account="ours", scopes=frozenset({Scope.INFERENCE}))
    login = Login(principal=person, username="ann")
    extras = {LOGIN: login}
    answer = await rig.client.post(CHAT, SHORT_CHAT, headers=BEARER, extras=extras)
    one = rig.record()
    assert (answer.status, one.settle.account, one.settle.key) == (200, "ours", "")
    assert one.end_user == "ann"
    extras = {LOGIN: Login(refusal=InvalidApiKeyError("You are not logged in any more."))}
    answer = await rig.client.post(CHAT, SHORT_CHAT, headers=BEARER, extras=extras)
    assert answer.status == 401
    one = rig.refused(401, "invalid_api_key", account="")
    assert one.error_message == "You are not logged in any more."


async def test_a_client_that_leaves(rig: RecordingRig, neuron: FakeNeuron) -> None:
    neuron.script = endless
    exchange = rig.open(stream=True)
    await exchange.until(b"data: ")
    exchange.leave()
    await exchange.finish()
    await until(lambda: rig.records.ended)
    one = rig.record()
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.CANCELLED, 200, "cancelled")


async def test_a_trusted_key_names_its_end_user(rig: RecordingRig, neuron: FakeNeuron) -> None:
    named = {"user": " ann\n@example.org\u202e"}
    by_proxy = {**BEARER, "x-openwebui-user-email": "bo@example.org"}
    for is_trusted, headers, more, end_user in (
        (False, BEARER, named, ""),
        (False, by_proxy, {}, ""),
        (True, BEARER, named, "ann@example.org"),
        (True, BEARER, {"safety_identifier": "s-1"}, "s-1"),
        (True, by_proxy, named, "bo@example.org"),
        (True, by_proxy, {"model": "none"}, "bo@example.org"),
        (True, BEARER, {}, ""),
    ):
        rig.directory.restrict(KEY, names_end_user=is_trusted)
        await rig.client.post(CHAT, {**SHORT_CHAT, **more}, headers=headers)
        assert rig.record().end_user == end_user
    while not neuron.submitted.empty():
        assert "example.org" not in str(neuron.submitted.get_nowait())


async def test_bodies_of_a_captured_key(rig: RecordingRig, neuron: FakeNeuron) -> None:
    for until_unix_s, is_captured in ((None, False), (time.time() - 1, False), (1e12, True)):
        rig.directory.restrict(KEY, capture_until_unix_s=until_unix_s)
        answer = await rig.ask(stream=True)
        captured = rig.record().captured
        assert (captured is not None) is is_captured
    assert captured is not None
    assert json.loads(captured.request) == {**SHORT_CHAT, "stream": True}
    assert bytes(captured.answer) == answer.body
    assert captured.num_answer_bytes == len(answer.body)
    assert (b"authorization", BEARER["authorization"].encode()) in captured.headers
    refusal = await rig.ask(n=0)
    captured = rig.record().captured
    assert captured is not None and bytes(captured.answer) == refusal.body


async def test_the_trace_of_a_captured_request(rig: RecordingRig, neuron: FakeNeuron) -> None:
    """It reaches the record, never the client; a neuron that was not asked for one is at fault."""

    async def traced(submit: Submit) -> AsyncIterator[list[Event]]:
        *events, last = [one async for batch in paris(submit) for one in batch]
        yield [*events, Traced(request_id=submit.request_id, text="the prompt"), last]

    neuron.script = traced
    assert (await rig.ask()).error["code"] == "neuron_fault"
    assert rig.record().kind is Outcome.FAILED
    rig.directory.restrict(KEY, capture_until_unix_s=1e12)
    answer = await rig.ask()
    assert answer.status == 200 and b"the prompt" not in answer.body
    captured = rig.record().captured
    assert captured is not None and captured.trace == "the prompt"


async def test_probes_are_left_out(rig: RecordingRig, neuron: FakeNeuron) -> None:
    await rig.client.get("/health")
    await rig.client.get("/ping")
    assert rig.records.ended == []
