"""Who is let in: by the headers, the listening address and the operator's word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helexa_site.config import Config
from inference.gateway.request.identify import (
    MAX_CHARS,
    allows_anonymous,
    cleaned,
    end_user_of_headers,
)
from inference.wire.errors import InsufficientScopeError
from metering.principal import Principal, Scope
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient, AsgiSocket
from tests.inference.gateway.conftest import BEARER, CHAT, SHORT_CHAT, MakeClient, Rig
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY
from tests.inference.gateway.fake_neuron import FakeNeuron

PAGE = "https://evil.example"
UNKNOWN = "hx-0123456789-" + 32 * "x"
BASIC = {"authorization": "Basic aHg6aHg="}
SERVED = (200, None)
INVALID = (401, "invalid_api_key")
FOREIGN = (403, "origin_not_allowed")
SESAME = {"api_key": "sesame"}
NETWORK = {"listen_host": "0.0.0.0"}
CLOSED = {**NETWORK, **SESAME}
EVERYBODY = {**NETWORK, "allow_anonymous": True}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@each_case(
    ("listen_host", "api_key", "word", "wanted"),
    [
        ("127.0.0.1", None, None, True),
        ("::1", None, None, True),
        ("localhost", None, None, True),
        ("0.0.0.0", None, None, False),
        ("192.0.2.4", None, None, False),
        (None, None, None, False),
        ("127.0.0.1", "sesame", None, False),
        ("127.0.0.1", None, False, False),
        ("127.0.0.1", "sesame", True, True),
        ("0.0.0.0", None, True, True),
    ],
)
def test_anonymous_use_follows_from_address_and_word(
    config: Config, listen_host: str | None, api_key: str | None, word: bool | None, wanted: bool
) -> None:
    changed = replace(config, listen_host=listen_host, api_key=api_key, allow_anonymous=word)
    assert allows_anonymous(changed) is wanted


@each_case(
    "case",
    [
        # On loopback nobody needs a key, and placeholders are ignored.
        *(({}, headers, SERVED) for headers in ({}, bearer("none"), {"x-api-key": "x"}, BASIC)),
        # What looks like a key and is none is refused everywhere.
        *(
            ({}, headers, INVALID)
            for headers in (
                bearer(UNKNOWN),
                {"authorization": UNKNOWN},
                {"authorization": f"Token {UNKNOWN}"},
                bearer(f'"{KEY}"'),
                bearer(KEY[:-1]),
                {"x-api-key": f"{KEY}x"},
                {"x-api-key": f"Bearer {UNKNOWN}"},
                {"authorization": "Bearer none", "x-api-key": UNKNOWN},
            )
        ),
        # A proxy on this machine lets nobody in: a plain proxy_pass adds no header of its own.
        (SESAME, {"host": "127.0.0.1:31313"}, INVALID),
        (SESAME, bearer("sesam"), INVALID),
        # An address of the network needs a key.
        (NETWORK, {}, INVALID),
        (NETWORK, BEARER, SERVED),
        (EVERYBODY, {}, SERVED),
        # A key is found wherever clients put it.
        *(
            (CLOSED, headers, SERVED)
            for key in (KEY, "sesame")
            for headers in (
                {"authorization": key},
                {"authorization": f"bearer  {key}"},
                {"x-api-key": key},
                {"x-api-key": f"Bearer {key}"},
                {**BASIC, "x-api-key": key},
            )
        ),
        (CLOSED, {"authorization": f"Token {KEY}"}, SERVED),
        ({}, bearer(NARROW_KEY), (403, "insufficient_scope")),
        # A page of elsewhere is refused without a key.
        *(({}, {"origin": origin}, FOREIGN) for origin in (PAGE, "null")),
        *(({}, {"origin": origin, **BEARER}, SERVED) for origin in (PAGE, "null")),
        ({}, {"origin": "http://localhost:5173"}, SERVED),
        (EVERYBODY, {"origin": PAGE}, FOREIGN),
        ({**EVERYBODY, "allowed_origins": (PAGE,)}, {"origin": PAGE}, SERVED),
    ],
    ids=str,
)
async def test_who_is_served(make_client: MakeClient, neuron: FakeNeuron, case: Any) -> None:
    settings, headers, found = case
    answer = await make_client(**settings).post(CHAT, SHORT_CHAT, headers=headers)
    code = None if answer.status == 200 else answer.error["code"]
    assert (answer.status, code) == found
    assert answer.headers["x-request-id"]


async def test_who_sends_no_key(make_client: MakeClient, neuron: FakeNeuron) -> None:
    client = make_client(**CLOSED)
    for headers in (BASIC, *({"authorization": word} for word in ("", "Bearer", "Bearer "))):
        answer = await client.post(CHAT, SHORT_CHAT, headers=headers)
        assert answer.error["message"].startswith("Send your API key")
    messages = await client.post("/v1/messages", SHORT_CHAT, headers={"x-api-key": NARROW_KEY})
    assert (messages.status, messages.error["type"]) == (403, "permission_error")


async def test_large_bodies_and_without_the_database(rig: Rig, neuron: FakeNeuron) -> None:
    headers = [(name.encode(), value.encode()) for name, value in BEARER.items()]
    await rig.gateway.check_headers(CHAT.encode(), headers)
    rig.directory.restrict(KEY, scopes=frozenset({Scope.USAGE_READ}))
    with pytest.raises(InsufficientScopeError):
        await rig.gateway.check_headers(CHAT.encode(), headers)
    await rig.gateway.check_headers(b"/admin/", headers)
    # Without the database no key is invalid.
    rig.directory.is_away = True
    answer = await rig.ask()
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
    assert answer.headers["retry-after"]


async def test_rebound(client: AsgiClient, make_client: MakeClient, neuron: FakeNeuron) -> None:
    local = make_client(allowed_hosts=())
    for method, path in (("GET", "/v1/models"), ("POST", CHAT)):
        for host, status in (
            ("evil.example:80", 403),
            *((host, 200) for host in ("127.0.0.1:31313", "localhost", "[::1]:31313")),
        ):
            answer = await local.open(method, path, SHORT_CHAT, headers={"host": host}).finish()
            assert answer.status == status
            assert status == 200 or answer.error["code"] == "host_not_allowed"
    for application, name, value in (
        (client.application, b"origin", PAGE.encode()),
        (local.application, b"host", b"evil.example"),
    ):
        socket = AsgiSocket(application, "/v1/responses", headers=[(name, value)])
        assert await socket.message() == {"type": "websocket.close"}
        await socket.leave()
    allowed = [(b"origin", b"http://localhost:3000"), (b"host", b"127.0.0.1:31313")]
    async with AsgiSocket(client.application, "/v1/responses", headers=allowed):
        pass


@each_case(
    ("headers", "end_user"),
    [
        ({}, ""),
        ({b"x-openwebui-user-id": b"7"}, "7"),
        ({b"x-openwebui-user-id": b"7", b"x-openwebui-user-email": b"a@b.c"}, "a@b.c"),
        ({b"x-openwebui-user-id": b"7", b"x-openwebui-user-email": b" \x07 "}, "7"),
        ({b"x-litellm-end-user-id": b"e", b"x-openwebui-user-email": b"a@b.c"}, "e"),
        ({b"x-litellm-end-user-id": b"e", b"x-litellm-customer-id": b"c"}, "c"),
        ({b"x-litellm-customer-id": "Zoë".encode()}, "Zoë"),
        ({b"x-litellm-customer-id": b"\xff"}, "\ufffd"),
    ],
)
def test_the_end_user_that_a_trusted_key_names(headers: dict[bytes, bytes], end_user: str) -> None:
    trusted = Principal(account="lab", names_end_user=True)
    assert end_user_of_headers(headers.items(), trusted) == end_user
    assert end_user_of_headers(headers.items(), Principal(account="lab")) == ""


def test_names_are_cleaned_and_long_ones_that_differ_stay_different() -> None:
    assert cleaned(" a\0b\n\u202ec\ud800 d ") == "abc d"
    assert cleaned("x" * MAX_CHARS) == "x" * MAX_CHARS
    names = {cleaned("x" * MAX_CHARS + end) for end in "abc"}
    assert [len(name) for name in names] == [MAX_CHARS] * 3
