"""Whatever reaches the gateway is recorded, also where no endpoint answers it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application

from helexa_site.config import Config
from helexa_site.routing import build_application
from inference.gateway.gateway import Gateway
from inference.gateway.request.identify import REQUEST_ID
from inference.gateway.server.bodies import MESSAGE_TOO_LARGE
from inference.request_ids import new_request_id
from metering.errors import RevokedKeyError
from metering.keys.api_key import digest_of, digest_secret
from metering.keys.records import KeyRecord
from metering.keys.store import DatabaseKeyStore
from metering.ledger.entries import Outcome
from metering.principal import Principal, Scope
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.asgi_socket import LAST, AsgiSocket
from tests.inference.gateway.fake_metering import KEY, OTHERS_KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import FakeNeuron, endless
from tests.inference.gateway.records.recorded import Recorded, Records
from tests.inference.gateway.responses_support import RESPONSES

CHAT = "/v1/chat/completions"
BEARER = {"authorization": f"Bearer {KEY}"}
REVOKED = {"authorization": f"Bearer {OTHERS_KEY}"}
PREFLIGHT = {"origin": "https://chat.example.org", "access-control-request-method": "POST"}
LOCAL = PREFLIGHT | {"origin": "http://localhost:3000"}
AUTHORIZED = [(b"authorization", BEARER["authorization"].encode())]


@pytest.mark.parametrize(
    ("method", "path", "headers", "parts", "status", "code", "endpoint"),
    [
        ("GET", "/v1/nothing", {}, [b""], 404, "unknown_url", "unknown"),
        ("HEAD", "/v1/nothing", {}, [b""], 404, "unknown_url", "unknown"),
        ("GET", "/v1/messages/nothing", {}, [b""], 404, "unknown_url", "unknown"),
        ("GET", CHAT, BEARER, [b""], 405, "method_not_allowed", CHAT),
        ("HEAD", CHAT, BEARER, [b""], 405, "method_not_allowed", CHAT),
        ("OPTIONS", CHAT, BEARER, [b""], 405, "method_not_allowed", CHAT),
        ("PATCH", "/v1/models", BEARER, [b""], 405, "method_not_allowed", "/v1/models"),
        ("POST", CHAT, BEARER, [b"{"], 400, "invalid_json", CHAT),
        ("POST", CHAT, BEARER, [b"\xff"], 400, "invalid_json", CHAT),
        ("POST", CHAT, BEARER, [b""], 400, "invalid_json", CHAT),
        ("OPTIONS", CHAT, PREFLIGHT, [b""], 400, "origin_not_allowed", CHAT),
        (
            *("OPTIONS", CHAT, LOCAL | {"access-control-request-method": "PATCH"}, [b""]),
            *(400, "invalid_value", CHAT),
        ),
    ],
)
async def test_refusals(
    records: Recorded,
    method: str,
    path: str,
    headers: dict[str, str],
    parts: list[bytes],
    status: int,
    code: str,
    endpoint: str,
) -> None:
    kept, client = records
    answer = await client.open(method, path, parts=parts, headers=headers).finish()
    one = kept.only()
    assert answer.status == one.status == status
    assert answer.headers["x-request-id"] == one.settle.request_id
    assert (one.kind, one.settle.outcome) == (Outcome.REFUSED, code)
    assert one.settle.endpoint == endpoint
    assert one.error_message


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_body_over_the_limit(records: Recorded, config: Config, is_declared: bool) -> None:
    kept, client = records
    limit_bytes = config.max_body_bytes
    parts = [b""] if is_declared else [b"x" * limit_bytes, b"x"]
    length = {"content-length": str(limit_bytes + 1)} if is_declared else {}
    answer = await client.open("POST", CHAT, parts=parts, headers=BEARER | length).finish()
    one = kept.only()
    assert answer.status == one.status == 413
    assert one.settle.outcome == "request_too_large"
    assert one.settle.account == "lab"


@pytest.mark.parametrize("num_parts", [0, 1])
async def test_a_client_that_leaves_before_its_body_is_whole(
    records: Recorded, num_parts: int
) -> None:
    kept, client = records
    exchange = client.open("POST", CHAT, parts=[b'{"model":', b""][: num_parts + 1], headers=BEARER)
    messages: Any = exchange._messages
    while messages.qsize() > num_parts:
        messages.get_nowait()
    exchange.leave()
    await exchange.finish()
    one = kept.only()
    assert (one.kind, one.status, one.settle.endpoint) == (Outcome.CANCELLED, 0, CHAT)
    assert one.settle.account == ("lab" if num_parts else "")


async def test_a_preflight_that_is_allowed_is_no_request(records: Recorded) -> None:
    kept, client = records
    await client.get("/ping")  # starts the gateway
    answer = await client.open("OPTIONS", CHAT, headers=LOCAL).finish()
    assert answer.status == 200 and kept.ended == []


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [(CHAT, CHAT), ("/v1/realtime", "unknown"), ("/nothing", "unknown"), ("/ä€", "unknown")],
)
async def test_sockets_at_paths_that_have_none(records: Recorded, path: str, endpoint: str) -> None:
    kept, client = records
    headers = [(b"user-agent", b"OpenAI/Python 2.0")]
    socket = AsgiSocket(client.application, path, headers=headers)
    assert await socket.message() == {"type": "websocket.close"}
    await socket.running
    one = kept.only()
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, 403, "unknown_url")
    assert (one.settle.endpoint, one.settle.account) == (endpoint, "")
    assert one.settle.client and one.error_message


async def test_a_message_that_the_server_does_not_read(records: Recorded) -> None:
    kept, client = records
    async with AsgiSocket(client.application, RESPONSES, headers=AUTHORIZED) as socket:
        socket._to_application.put_nowait({"type": MESSAGE_TOO_LARGE})
    one = kept.only()
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, 413, "request_too_large")
    assert one.settle.account == "lab"


async def test_messages_that_wait_when_their_client_leaves(
    records: Recorded, neuron: FakeNeuron
) -> None:
    kept, client = records
    neuron.script = endless
    body = {"model": "gpt-4o", "input": "Hi", "store": False}
    async with AsgiSocket(client.application, RESPONSES, headers=AUTHORIZED) as socket:
        for _ in range(3):
            socket.send_json({"type": "response.create", **body})
        while "delta" not in (event := await socket.event()):
            assert event["type"] not in LAST, event
    async with asyncio.timeout(60):
        while len(kept.ended) < 3:
            await asyncio.sleep(0.01)
    assert [one.kind for one in kept.ended] == [Outcome.CANCELLED] * 3
    assert {one.settle.account for one in kept.ended} == {"lab"}
    assert len({one.settle.request_id for one in kept.ended}) == 3


@pytest.mark.parametrize("num_bytes", [2, 100_000])
async def test_a_key_that_was_good_once(
    records: Recorded, directory: FakeDirectory, num_bytes: int
) -> None:
    kept, client = records
    directory.refused[KEY] = RevokedKeyError("It was revoked.", account="lab", key=KEY[:13])
    answer = await client.open("POST", CHAT, parts=[b"x" * num_bytes], headers=BEARER).finish()
    socket = AsgiSocket(client.application, RESPONSES, headers=AUTHORIZED)
    assert await socket.message() == {"type": "websocket.close"}
    await socket.leave()
    assert answer.status == 401
    assert [one.status for one in kept.ended] == [401, 403]
    for one in kept.ended:
        assert (one.settle.account, one.settle.key) == ("lab", KEY[:13])
        assert (one.kind, one.settle.outcome) == (Outcome.REFUSED, "invalid_api_key")


async def test_a_socket_is_recorded_by_the_id_that_its_server_answers_with(
    records: Recorded,
) -> None:
    kept, client = records
    for path in (RESPONSES, "/nothing"):
        request_id = new_request_id()
        scope = {"headers": [], REQUEST_ID: request_id}
        socket = AsgiSocket(client.application, path, **scope)
        assert await socket.message() == {"type": "websocket.close"}
        await socket.leave()
        assert kept.ended.pop().settle.request_id == request_id


def _key_record(key: str, **changes: Any) -> KeyRecord:
    principal = Principal(account="lab", key=key[:13], scopes=frozenset({Scope.INFERENCE}))
    digest = digest_of(key, digest_secret(settings.SECRET_KEY))
    return KeyRecord(digest=digest, principal=principal, **changes)


@pytest.fixture
def asks_for_a_key(settings: Any) -> None:
    settings.CONFIG = replace(settings.CONFIG, allow_anonymous=False)


@pytest.mark.usefixtures("asks_for_a_key")
@pytest.mark.parametrize(
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
    recording: tuple[Records, Gateway],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    headers: dict[str, str],
    wanted: tuple[int, str, str, str],
) -> None:
    known = {
        KEY[:13]: _key_record(KEY),
        OTHERS_KEY[:13]: _key_record(OTHERS_KEY, is_revoked=True),
    }
    monkeypatch.setattr(DatabaseKeyStore, "keys", lambda _store, _prefixes: known)
    kept, gateway = recording
    client = AsgiClient(build_application(gateway, django_app=get_asgi_application()))
    method = "POST" if path == "/docs" else "GET"
    answer = await client.open(method, path, headers=headers).finish()
    one = kept.only()
    assert answer.status == one.status
    assert answer.headers["x-request-id"] == answer.headers["request-id"] == one.settle.request_id
    found = (one.status, one.settle.outcome, one.settle.account, one.settle.endpoint)
    assert found == wanted and one.error_message
    assert bool(one.settle.key) == bool(one.settle.account)


async def test_a_page_is_not_recorded(recording: tuple[Records, Gateway]) -> None:
    kept, gateway = recording
    client = AsgiClient(build_application(gateway, django_app=get_asgi_application()))
    await client.get("/ping")  # starts the gateway
    answer = await client.get("/login/nothing", headers={"accept": "text/html"})
    assert answer.status == 404 and kept.ended == []
    assert "x-request-id" not in answer.headers


async def test_addresses_that_neither_a_page_nor_an_api_has(
    recording: tuple[Records, Gateway],
) -> None:
    """As of a client whose base URL is wrong."""
    kept, gateway = recording
    client = AsgiClient(build_application(gateway, django_app=get_asgi_application()))
    answer = await client.post("/v3/chat/completions", {"model": "gpt-4o"})
    one = kept.only()
    assert answer.status == one.status == 404
    assert answer.headers["x-request-id"] == one.settle.request_id
    assert (one.kind, one.settle.outcome) == (Outcome.REFUSED, "unknown_url")
    assert one.error_message == answer.error["message"]
