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
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.asgi_socket import AsgiSocket
from tests.inference.gateway.conftest import BEARER, CHAT, MakeClient, Rig
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY
from tests.inference.gateway.fake_neuron import FakeNeuron

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PAGE = "https://evil.example"
UNKNOWN = "hx-0123456789-" + 32 * "x"
INVALID = (401, "invalid_api_key")


async def post_chat(client: AsgiClient, **options: Any) -> Exchange:
    return await client.post(CHAT, BODY, **options)


async def refusal(client: AsgiClient, **options: Any) -> tuple[int, str | None]:
    answer = await post_chat(client, **options)
    return answer.status, answer.error["code"] if answer.status != 200 else None


SERVED = (200, None)


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


async def test_on_loopback_nobody_needs_a_key_and_placeholders_are_ignored(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    placeholders = {"authorization": "Bearer none"}, {"x-api-key": "x"}
    for headers in ({}, *placeholders, {"authorization": "Basic aHg6aHg="}):
        assert await refusal(client, headers=headers) == SERVED, headers


async def test_a_proxy_on_this_machine_lets_nobody_in(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    """It connects from loopback, and a plain proxy_pass adds no header that reveals a proxy."""
    client = make_client(api_key="sesame")
    proxied = {"host": "127.0.0.1:31313"}
    answer = await post_chat(client, peer="127.0.0.1", headers=proxied)
    assert (answer.status, answer.error["code"]) == INVALID
    assert answer.headers["x-request-id"]
    assert await refusal(client, headers={"authorization": "Bearer sesam"}) == INVALID
    for headers in ({"authorization": "bearer sesame"}, {"x-api-key": "sesame"}):
        assert await refusal(client, headers=headers) == SERVED


async def test_an_address_of_the_network_needs_a_key(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    client = make_client(listen_host="0.0.0.0")
    assert await refusal(client, peer="127.0.0.1") == INVALID
    for empty in ("", "Bearer", "Bearer "):
        answer = await post_chat(client, headers={"authorization": empty})
        assert answer.error["message"].startswith("Send your API key")
    assert await refusal(client, headers=BEARER) == SERVED
    assert await refusal(make_client(listen_host="0.0.0.0", allow_anonymous=True)) == SERVED


async def test_what_looks_like_a_key_and_is_none_is_refused_everywhere(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    for headers in (
        {"authorization": f"Bearer {UNKNOWN}"},
        {"authorization": UNKNOWN},
        {"authorization": f"Token {UNKNOWN}"},
        {"authorization": f'Bearer "{KEY}"'},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"x-api-key": f"{KEY}x"},
        {"x-api-key": f"Bearer {UNKNOWN}"},
        {"authorization": "Bearer none", "x-api-key": UNKNOWN},
    ):
        assert await refusal(client, headers=headers) == INVALID, headers


async def test_a_key_is_found_wherever_clients_put_it(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    closed = make_client(listen_host="0.0.0.0", api_key="sesame")
    basic = {"authorization": "Basic aHg6aHg="}
    for key in (KEY, "sesame"):
        for headers in (
            {"authorization": key},
            {"authorization": f"bearer  {key}"},
            {"x-api-key": f"Bearer {key}"},
            {**basic, "x-api-key": key},
        ):
            assert await refusal(closed, headers=headers) == SERVED, headers
    assert await refusal(closed, headers={"authorization": f"Token {KEY}"}) == SERVED
    assert "Send your API key" in (await post_chat(closed, headers=basic)).error["message"]


async def test_an_unknown_key_without_the_database_is_not_called_invalid(
    rig: Rig, neuron: FakeNeuron
) -> None:
    rig.directory.is_away = True
    answer = await rig.ask()
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
    assert answer.headers["retry-after"]


async def test_the_sender_of_a_large_body_is_identified_before_the_body_is_read(rig: Rig) -> None:
    headers = [(name.encode(), value.encode()) for name, value in BEARER.items()]
    await rig.gateway.check_headers(CHAT.encode(), headers)
    rig.directory.restrict(KEY, scopes=frozenset({Scope.USAGE_READ}))
    with pytest.raises(InsufficientScopeError):
        await rig.gateway.check_headers(CHAT.encode(), headers)
    await rig.gateway.check_headers(b"/admin/", headers)


async def test_a_scope_is_needed(client: AsgiClient, neuron: FakeNeuron) -> None:
    answer = await post_chat(client, headers={"authorization": f"Bearer {NARROW_KEY}"})
    assert (answer.status, answer.error["code"]) == (403, "insufficient_scope")
    messages = await client.post("/v1/messages", BODY, headers={"x-api-key": NARROW_KEY})
    assert (messages.status, messages.json["error"]["type"]) == (403, "permission_error")


async def test_a_page_of_elsewhere_is_refused_without_a_key(
    client: AsgiClient, make_client: MakeClient, neuron: FakeNeuron
) -> None:
    refused = (403, "origin_not_allowed")
    for origin in (PAGE, "null"):
        assert await refusal(client, headers={"origin": origin}) == refused
        assert await refusal(client, headers={"origin": origin, **BEARER}) == SERVED
    assert await refusal(client, headers={"origin": "http://localhost:5173"}) == SERVED
    everybody = {"allow_anonymous": True, "listen_host": "0.0.0.0"}
    assert await refusal(make_client(**everybody), headers={"origin": PAGE}) == refused
    named = make_client(**everybody, allowed_origins=(PAGE,))
    assert await refusal(named, headers={"origin": PAGE}) == SERVED


async def test_a_name_that_is_rebound_to_this_machine_is_refused(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    client = make_client(allowed_hosts=())
    for method, path in (("GET", "/v1/models"), ("POST", CHAT)):
        evil = {"host": "evil.example:80"}
        refused = await client.open(method, path, BODY, headers=evil).finish()
        assert (refused.status, refused.error["code"]) == (403, "host_not_allowed")
        for host in ("127.0.0.1:31313", "localhost", "[::1]:31313"):
            answer = await client.open(method, path, BODY, headers={"host": host}).finish()
            assert answer.status == 200


async def test_a_socket_of_a_page_of_elsewhere_gets_no_handshake(
    client: AsgiClient, make_client: MakeClient, neuron: FakeNeuron
) -> None:
    for application, name, value in (
        (client.application, b"origin", PAGE.encode()),
        (make_client(allowed_hosts=()).application, b"host", b"evil.example"),
    ):
        socket = AsgiSocket(application, "/v1/responses", headers=[(name, value)])
        assert await socket.message() == {"type": "websocket.close"}
        await socket.leave()
    allowed = [(b"origin", b"http://localhost:3000"), (b"host", b"127.0.0.1:31313")]
    async with AsgiSocket(client.application, "/v1/responses", headers=allowed):
        pass


TRUSTED = Principal(account="lab", names_end_user=True)


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
def test_headers(headers: dict[bytes, bytes], end_user: str) -> None:
    assert end_user_of_headers(headers.items(), TRUSTED) == end_user
    assert end_user_of_headers(headers.items(), Principal(account="lab")) == ""


def test_what_does_not_print_is_left_out() -> None:
    assert cleaned(" a\0b\n\u202ec\ud800 d ") == "abc d"


def test_long_names_that_differ_stay_different() -> None:
    assert cleaned("x" * MAX_CHARS) == "x" * MAX_CHARS
    names = {cleaned("x" * MAX_CHARS + end) for end in "abc"}
    assert [len(name) for name in names] == [MAX_CHARS] * 3
