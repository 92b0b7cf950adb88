"""Every request that reached the gateway is recorded, however it ended, and also where no endpoint
answers it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from django.conf import settings
from django.core.asgi import get_asgi_application

from helexa_site.config import Config
from helexa_site.routing import build_application
from inference.gateway.gateway import Gateway
from inference.gateway.request.identify import LOGIN, REQUEST_ID, Login
from inference.gateway.request.outcome import RequestOutcome
from inference.gateway.server.unhandled import UnhandledRequests
from inference.protocol.events import Event, Traced
from inference.protocol.generation import Submit
from inference.request_ids import new_request_id
from inference.wire.errors import InvalidApiKeyError, RequestTooLargeError
from metering.api_keys import KeyRecord, digest_of, digest_secret
from metering.errors import RevokedKeyError
from metering.key_directory import DatabaseKeyStore
from metering.ledger.entries import Outcome
from metering.principal import Principal, Scope
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient, AsgiSocket
from tests.inference.gateway.bodies import RESPONSES, until
from tests.inference.gateway.conftest import BEARER, CHAT, SHORT_CHAT, MakeGateway, Rig, parts_of
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, OTHERS_KEY, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, paris

REVOKED = {"authorization": f"Bearer {OTHERS_KEY}"}
LARGE = {"content-length": "100001"}
PREFLIGHT = {"origin": "https://chat.example.org", "access-control-request-method": "POST"}
LOCAL = PREFLIGHT | {"origin": "http://localhost:3000"}
PATCHED = LOCAL | {"access-control-request-method": "PATCH"}
AUTHORIZED = [(b"authorization", BEARER["authorization"].encode())]


async def test_refusals_and_answers(rig: RecordingRig, neuron: FakeNeuron) -> None:
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
        assert (one.error_message, one.queue_ms) == (answer.error["message"], None)
    answer = await rig.ask()
    one = rig.record()
    assert UUID(hex=one.settle.request_id).version == 7, "it sorts by time"
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.ANSWERED, 200, "finished")
    assert (one.model_asked, one.settle.model, one.settle.neuron) == ("gpt-4o", "tiny", "beast")
    assert one.queue_ms is not None
    assert 0 <= one.queue_ms <= one.settle.duration_ms


async def test_logins_and_end_users(rig: RecordingRig, neuron: FakeNeuron) -> None:
    person = Principal(account="ours", scopes=frozenset({Scope.INFERENCE}))
    gone = InvalidApiKeyError("You are not logged in any more.")
    for login, status in (
        (Login(principal=person, username="ann"), 200),
        (Login(refusal=gone), 401),
    ):
        extras = {LOGIN: login}
        answer = await rig.client.post(CHAT, SHORT_CHAT, headers=BEARER, extras=extras)
        one = rig.record()
        account = "ours" if status == 200 else ""
        assert (answer.status, one.status, one.settle.account) == (status, status, account)
        assert (one.settle.key, one.end_user) == ("", "ann" if account else "")
    assert one.error_message == str(gone)
    # A trusted key names its end user.
    named = {"user": " ann\n@example.org\u202e"}
    by_proxy = {**BEARER, "x-openwebui-user-email": "bo@example.org"}
    for is_trusted, headers, more, end_user in (
        (False, by_proxy, named, ""),
        (True, BEARER, named, "ann@example.org"),
        (True, BEARER, {"safety_identifier": "s-1"}, "s-1"),
        (True, by_proxy, named, "bo@example.org"),
        (True, by_proxy, {"model": "none"}, "bo@example.org"),
    ):
        rig.directory.restrict(KEY, names_end_user=is_trusted)
        await rig.client.post(CHAT, {**SHORT_CHAT, **more}, headers=headers)
        assert rig.record().end_user == end_user
    while not neuron.submitted.empty():
        assert "example.org" not in str(neuron.submitted.get_nowait())


async def test_a_captured_key(rig: RecordingRig, neuron: FakeNeuron) -> None:
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
    rig.directory.restrict(KEY, capture_until_unix_s=None)

    # A trace never reaches the client; a neuron that was not asked for one is at fault.
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


@each_case(
    "case",
    [
        ("GET", "/v1/nothing", {}, b"", 404, "unknown_url", "unknown"),
        ("HEAD", "/v1/messages/nothing", {}, b"", 404, "unknown_url", "unknown"),
        ("GET", CHAT, BEARER, b"", 405, "method_not_allowed", CHAT),
        ("OPTIONS", CHAT, BEARER, b"", 405, "method_not_allowed", CHAT),
        ("POST", CHAT, BEARER, b"{", 400, "invalid_json", CHAT),
        ("POST", CHAT, BEARER, b"x" * 100_001, 413, "request_too_large", CHAT),
        ("POST", CHAT, BEARER | LARGE, b"", 413, "request_too_large", CHAT),
        ("OPTIONS", CHAT, PREFLIGHT, b"", 400, "origin_not_allowed", CHAT),
        ("OPTIONS", CHAT, PATCHED, b"", 400, "invalid_value", CHAT),
    ],
    ids=str,
)
async def test_unhandled(rig: RecordingRig, case: Any) -> None:
    method, path, headers, body, status, code, endpoint = case
    answer = await rig.client.open(method, path, parts=[body], headers=headers).finish()
    one = rig.record()
    assert answer.status == one.status == status
    assert answer.headers["x-request-id"] == one.settle.request_id
    assert (one.kind, one.settle.outcome) == (Outcome.REFUSED, code)
    assert one.settle.endpoint == endpoint
    assert one.error_message
    for ignored in ("/health", "/ping"):
        await rig.client.get(ignored)
    assert (await rig.client.open("OPTIONS", CHAT, headers=LOCAL).finish()).status == 200
    assert rig.ledger.recorded == [], "probes, and a preflight that is allowed"


@each_case("num_parts", [0, 1])
async def test_who_leaves_before_its_body_is_whole(rig: RecordingRig, num_parts: int) -> None:
    parts = [b'{"model":', b""][: num_parts + 1]
    exchange = rig.client.open("POST", CHAT, parts=parts, headers=BEARER)
    messages: Any = exchange._messages
    while messages.qsize() > num_parts:
        messages.get_nowait()
    exchange.leave()
    await exchange.finish()
    one = rig.record()
    assert (one.kind, one.status, one.settle.endpoint) == (Outcome.CANCELLED, 0, CHAT)
    assert one.settle.account == ("lab" if num_parts else "")


@each_case(
    ("path", "key", "code", "account", "endpoint"),
    [
        *[(CHAT, None, "unknown_url", "", CHAT), ("/nothing", None, "unknown_url", "", "unknown")],
        ("/ä€", None, "unknown_url", "", "unknown"),
        (RESPONSES, "hx-wrong", "invalid_api_key", "", f"{RESPONSES} (socket)"),
        (RESPONSES, NARROW_KEY, "insufficient_scope", "lab", f"{RESPONSES} (socket)"),
    ],
)
async def test_sockets_that_are_refused(
    rig: RecordingRig, path: str, key: str | None, code: str, account: str, endpoint: str
) -> None:
    headers = [(b"user-agent", b"OpenAI/Python 2.0")]
    headers += [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {REQUEST_ID: new_request_id()}
    for more in ({}, scope):
        socket = AsgiSocket(rig.client.application, path, headers=headers, **more)
        assert await socket.message() == {"type": "websocket.close"}
        await socket.leave()
        one = rig.refused(403, code, account=account)
        assert one.settle.endpoint == endpoint and one.settle.client
    assert one.settle.request_id == scope[REQUEST_ID]


async def test_messages_that_no_turn_takes(rig: RecordingRig, config: Config) -> None:
    async with AsgiSocket(rig.client.application, RESPONSES, headers=AUTHORIZED) as socket:
        socket.send_json({"input": "x" * config.max_body_bytes})
        assert (await socket.event())["code"] == "request_too_large"
        assert (await socket.message())["type"] == "websocket.close"
    rig.refused(413, "request_too_large")


async def test_a_body_that_the_server_does_not_read_is_its_senders(rig: RecordingRig) -> None:
    await rig.client.get("/ping")  # starts the gateway
    rig.directory.refused[OTHERS_KEY] = RevokedKeyError("It was.", account="them", key="hx-b")
    revoked = [(b"authorization", REVOKED["authorization"].encode())]
    for target, headers, account in (
        (CHAT, AUTHORIZED, "lab"),
        (CHAT, revoked, "them"),
        (CHAT, [], ""),
        ("/admin/", [], ""),
    ):
        error = RequestTooLargeError(10)
        refused = UnhandledRequests(rig.gateway).refused
        request_id = refused(target.encode(), error, error.status, headers=headers)
        await until(lambda: bool(rig.ledger.recorded))
        one = rig.refused(413, "request_too_large", account=account)
        assert one.settle.request_id == request_id


@pytest.fixture
def with_django(rig: RecordingRig, settings: Any) -> AsgiClient:
    """Pages and Django's APIs are behind the gateway, and ask for a key."""
    settings.CONFIG = replace(settings.CONFIG, allow_anonymous=False)
    return AsgiClient(build_application(rig.gateway, django_app=get_asgi_application()))


@each_case(
    "case",
    [
        ("/api/overview", {}, (401, "invalid_api_key", "", "/api/overview")),
        ("/version", {}, (401, "invalid_api_key", "", "/version")),
        ("/api/bench/runs", {}, (401, "invalid_api_key", "", "/api/bench/runs")),
        ("/api/keys/hx-x", {}, (401, "invalid_api_key", "", "/api/keys/{prefix}")),
        ("/api/keys", BEARER, (403, "insufficient_scope", "lab", "/api/keys")),
        ("/version", BEARER, (403, "insufficient_scope", "lab", "/version")),
        ("/api/keys", REVOKED, (401, "invalid_api_key", "lab", "/api/keys")),
        ("/docs", {}, (403, "forbidden", "", "unknown")),  # posted without a token
        ("/api/nothing", BEARER, (404, "unknown_url", "lab", "/api/")),
    ],
    ids=str,
)
async def test_what_django_refuses(
    rig: RecordingRig, with_django: AsgiClient, monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    path, headers, (status, code, account, endpoint) = case
    known = {}
    for key in (KEY, OTHERS_KEY):
        principal = Principal(account="lab", key=key[:13], scopes=frozenset({Scope.INFERENCE}))
        digest = digest_of(key, digest_secret(settings.SECRET_KEY))
        is_revoked = key == OTHERS_KEY
        known[key[:13]] = KeyRecord(digest=digest, principal=principal, is_revoked=is_revoked)
    monkeypatch.setattr(DatabaseKeyStore, "keys", lambda _store, _prefix: known)
    method = "POST" if path == "/docs" else "GET"
    answer = await with_django.open(method, path, headers=headers).finish()
    one = rig.refused(status, code, account=account)
    assert answer.status == status
    assert answer.headers["x-request-id"] == answer.headers["request-id"] == one.settle.request_id
    assert one.settle.endpoint == endpoint


async def test_pages_are_not_recorded(rig: RecordingRig, with_django: AsgiClient) -> None:
    await with_django.get("/ping")  # starts the gateway
    answer = await with_django.get("/login/nothing", headers={"accept": "text/html"})
    assert (answer.status, rig.ledger.recorded) == (404, [])
    assert "x-request-id" not in answer.headers
    answer = await with_django.post("/v3/chat/completions", {"model": "gpt-4o"})
    one = rig.refused(answer.status, "unknown_url", account="")
    assert answer.headers["x-request-id"] == one.settle.request_id
    assert (answer.status, one.error_message) == (404, answer.error["message"])


@dataclass(slots=True, kw_only=True)
class RecordingRig(Rig):
    def record(self) -> RequestOutcome:
        """The only record since the last one that was read."""
        (one,) = self.ledger.recorded
        self.ledger.recorded.clear()
        return one

    def refused(self, status: int, code: str, *, account: str = "lab") -> RequestOutcome:
        """Asserts that the only record is of that refusal."""
        one = self.record()
        assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, status, code)
        assert (one.settle.account, bool(one.settle.key)) == (account, bool(account))
        assert one.error_message
        return one


@pytest_asyncio.fixture
async def gateway(make_gateway: MakeGateway, ledger: FakeLedger) -> AsyncIterator[Gateway]:
    made = make_gateway(allow_anonymous=False)
    yield made
    await made.drain(0)
    made.close()
    assert ledger.is_closed


@pytest.fixture
def rig(rig: Rig) -> RecordingRig:
    return RecordingRig(**parts_of(rig))
