"""Whatever reaches the gateway is recorded, also where no endpoint answers it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application

from helexa_site.config import Config
from helexa_site.routing import build_application
from inference.gateway.request.identify import REQUEST_ID
from inference.gateway.server.unhandled import UnhandledRequests
from inference.request_ids import new_request_id
from inference.wire.errors import RequestTooLargeError
from metering.errors import RevokedKeyError
from metering.keys.api_key import digest_of, digest_secret
from metering.keys.records import KeyRecord
from metering.keys.store import DatabaseKeyStore
from metering.ledger.entries import Outcome
from metering.principal import Principal, Scope
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.asgi_socket import AsgiSocket
from tests.inference.gateway.conftest import BEARER, CHAT
from tests.inference.gateway.fake_metering import KEY, OTHERS_KEY
from tests.inference.gateway.records.recorded import RecordingRig
from tests.inference.gateway.responses_support import RESPONSES
from tests.inference.gateway.waiting import until

REVOKED = {"authorization": f"Bearer {OTHERS_KEY}"}
PREFLIGHT = {"origin": "https://chat.example.org", "access-control-request-method": "POST"}
LOCAL = PREFLIGHT | {"origin": "http://localhost:3000"}
AUTHORIZED = [(b"authorization", BEARER["authorization"].encode())]


PATCHED = LOCAL | {"access-control-request-method": "PATCH"}


@each_case(
    ("method", "path", "headers", "body", "status", "code", "endpoint"),
    [
        ("GET", "/v1/nothing", {}, b"", 404, "unknown_url", "unknown"),
        ("HEAD", "/v1/nothing", {}, b"", 404, "unknown_url", "unknown"),
        ("GET", "/v1/messages/nothing", {}, b"", 404, "unknown_url", "unknown"),
        ("GET", CHAT, BEARER, b"", 405, "method_not_allowed", CHAT),
        ("HEAD", CHAT, BEARER, b"", 405, "method_not_allowed", CHAT),
        ("OPTIONS", CHAT, BEARER, b"", 405, "method_not_allowed", CHAT),
        ("PATCH", "/v1/models", BEARER, b"", 405, "method_not_allowed", "/v1/models"),
        ("POST", CHAT, BEARER, b"{", 400, "invalid_json", CHAT),
        ("POST", CHAT, BEARER, b"\xff", 400, "invalid_json", CHAT),
        ("POST", CHAT, BEARER, b"", 400, "invalid_json", CHAT),
        ("OPTIONS", CHAT, PREFLIGHT, b"", 400, "origin_not_allowed", CHAT),
        ("OPTIONS", CHAT, PATCHED, b"", 400, "invalid_value", CHAT),
    ],
)
async def test_refusals(
    rig: RecordingRig,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
    code: str,
    endpoint: str,
) -> None:
    answer = await rig.client.open(method, path, parts=[body], headers=headers).finish()
    one = rig.record()
    assert answer.status == one.status == status
    assert answer.headers["x-request-id"] == one.settle.request_id
    assert (one.kind, one.settle.outcome) == (Outcome.REFUSED, code)
    assert one.settle.endpoint == endpoint
    assert one.error_message


async def test_a_body_over_the_limit(rig: RecordingRig, config: Config) -> None:
    limit_bytes = config.max_body_bytes
    declared = {"content-length": str(limit_bytes + 1)}
    for parts, length in (([b""], declared), ([b"x" * limit_bytes, b"x"], {})):
        answer = await rig.client.post(CHAT, parts=parts, headers=BEARER | length)
        assert answer.status == 413
        rig.refused(413, "request_too_large")


@each_case("num_parts", [0, 1])
async def test_a_client_that_leaves_before_its_body_is_whole(
    rig: RecordingRig, num_parts: int
) -> None:
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


async def test_a_preflight_that_is_allowed_is_no_request(rig: RecordingRig) -> None:
    await rig.client.get("/ping")  # starts the gateway
    answer = await rig.client.open("OPTIONS", CHAT, headers=LOCAL).finish()
    assert answer.status == 200 and rig.records.ended == []


@each_case(
    ("path", "endpoint"),
    [(CHAT, CHAT), ("/v1/realtime", "unknown"), ("/nothing", "unknown"), ("/ä€", "unknown")],
)
async def test_sockets_at_paths_that_have_none(rig: RecordingRig, path: str, endpoint: str) -> None:
    headers = [(b"user-agent", b"OpenAI/Python 2.0")]
    socket = AsgiSocket(rig.client.application, path, headers=headers)
    assert await socket.message() == {"type": "websocket.close"}
    await socket.running
    one = rig.refused(403, "unknown_url", account="")
    assert one.settle.endpoint == endpoint
    assert one.settle.client


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
        await until(lambda: bool(rig.records.ended))
        one = rig.refused(413, "request_too_large", account=account)
        assert one.settle.request_id == request_id


@each_case("num_bytes", [2, 100_000])
async def test_a_key_that_was_good_once(rig: RecordingRig, num_bytes: int) -> None:
    rig.directory.refused[KEY] = RevokedKeyError("It was revoked.", account="lab", key=KEY[:13])
    answer = await rig.client.post(CHAT, parts=[b"x" * num_bytes], headers=BEARER)
    assert answer.status == 401
    rig.refused(401, "invalid_api_key")
    socket = AsgiSocket(rig.client.application, RESPONSES, headers=AUTHORIZED)
    assert await socket.message() == {"type": "websocket.close"}
    await socket.leave()
    rig.refused(403, "invalid_api_key")


async def test_a_socket_is_recorded_by_the_id_that_its_server_answers_with(
    rig: RecordingRig,
) -> None:
    for path in (RESPONSES, "/nothing"):
        request_id = new_request_id()
        scope = {"headers": [], REQUEST_ID: request_id}
        socket = AsgiSocket(rig.client.application, path, **scope)
        assert await socket.message() == {"type": "websocket.close"}
        await socket.leave()
        assert rig.record().settle.request_id == request_id


def _key_record(key: str, **changes: Any) -> KeyRecord:
    principal = Principal(account="lab", key=key[:13], scopes=frozenset({Scope.INFERENCE}))
    digest = digest_of(key, digest_secret(settings.SECRET_KEY))
    return KeyRecord(digest=digest, principal=principal, **changes)


@pytest.fixture
def with_django(rig: RecordingRig, settings: Any) -> AsgiClient:
    """Pages and Django's APIs are behind the gateway, and ask for a key."""
    settings.CONFIG = replace(settings.CONFIG, allow_anonymous=False)
    return AsgiClient(build_application(rig.gateway, django_app=get_asgi_application()))


@each_case(
    ("path", "headers", "wanted"),
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
)
async def test_what_django_refuses(
    rig: RecordingRig,
    with_django: AsgiClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    headers: dict[str, str],
    wanted: tuple[int, str, str, str],
) -> None:
    known = {
        KEY[:13]: _key_record(KEY),
        OTHERS_KEY[:13]: _key_record(OTHERS_KEY, is_revoked=True),
    }
    monkeypatch.setattr(DatabaseKeyStore, "keys", lambda _store, _prefix: known)
    method = "POST" if path == "/docs" else "GET"
    answer = await with_django.open(method, path, headers=headers).finish()
    status, code, account, endpoint = wanted
    one = rig.refused(status, code, account=account)
    assert answer.status == status
    assert answer.headers["x-request-id"] == answer.headers["request-id"] == one.settle.request_id
    assert one.settle.endpoint == endpoint


async def test_a_page_is_not_recorded(rig: RecordingRig, with_django: AsgiClient) -> None:
    await with_django.get("/ping")  # starts the gateway
    answer = await with_django.get("/login/nothing", headers={"accept": "text/html"})
    assert answer.status == 404 and rig.records.ended == []
    assert "x-request-id" not in answer.headers


async def test_addresses_that_neither_a_page_nor_an_api_has(
    rig: RecordingRig, with_django: AsgiClient
) -> None:
    """As of a client whose base URL is wrong."""
    answer = await with_django.post("/v3/chat/completions", {"model": "gpt-4o"})
    assert answer.status == 404
    one = rig.refused(404, "unknown_url", account="")
    assert answer.headers["x-request-id"] == one.settle.request_id
    assert one.error_message == answer.error["message"]
