"""Who is let in: by the headers, the listening address and the operator's word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helexa_site.config import Config
from inference.gateway.gateway import Gateway
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
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import FakeNeuron

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PAGE = "https://evil.example"
BEARER = {"authorization": f"Bearer {KEY}"}


async def post_chat(client: AsgiClient, **options: Any) -> Exchange:
    return await client.post(CHAT, BODY, **options)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer none"}, {"x-api-key": "x"}])
async def test_on_loopback_nobody_needs_a_key_and_placeholders_are_ignored(
    client: AsgiClient, neuron: FakeNeuron, headers: dict[str, str]
) -> None:
    assert (await post_chat(client, headers=headers)).status == 200


async def test_a_proxy_on_this_machine_lets_nobody_in(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    """It connects from loopback, and a plain proxy_pass adds no header that reveals a proxy."""
    client = make_client(api_key="sesame")
    answer = await post_chat(client, peer="127.0.0.1", headers={"host": "127.0.0.1:31313"})
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.headers["x-request-id"]
    wrong = await post_chat(client, headers={"authorization": "Bearer sesam"})
    assert (wrong.status, wrong.error["code"]) == (401, "invalid_api_key")
    for headers in ({"authorization": "bearer sesame"}, {"x-api-key": "sesame"}):
        assert (await post_chat(client, headers=headers)).status == 200


async def test_an_address_of_the_network_needs_a_key(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    client = make_client(listen_host="0.0.0.0")
    assert (await post_chat(client, peer="127.0.0.1")).status == 401
    for empty in ("", "Bearer", "Bearer "):
        answer = await post_chat(client, headers={"authorization": empty})
        assert answer.error["message"].startswith("Send your API key")
    assert (await post_chat(client, headers=BEARER)).status == 200
    assert (await post_chat(make_client(listen_host="0.0.0.0", allow_anonymous=True))).status == 200


async def test_what_looks_like_a_key_and_is_none_is_refused_everywhere(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    unknown = "hx-0123456789-" + 32 * "x"
    for headers in (
        {"authorization": f"Bearer {unknown}"},
        {"authorization": unknown},
        {"authorization": f"Token {unknown}"},
        {"authorization": f'Bearer "{KEY}"'},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"x-api-key": f"{KEY}x"},
        {"x-api-key": f"Bearer {unknown}"},
        {"authorization": "Bearer none", "x-api-key": unknown},
    ):
        answer = await post_chat(client, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), headers


async def test_a_key_is_found_wherever_clients_put_it(
    client: AsgiClient, make_client: MakeClient, neuron: FakeNeuron
) -> None:
    closed = make_client(listen_host="0.0.0.0", api_key="sesame")
    for key in (KEY, "sesame"):
        for headers in (
            {"authorization": key},
            {"authorization": f"bearer  {key}"},
            {"x-api-key": f"Bearer {key}"},
            {"authorization": "Basic aHg6aHg=", "x-api-key": key},
        ):
            assert (await post_chat(closed, headers=headers)).status == 200, headers
    assert (await post_chat(closed, headers={"authorization": f"Token {KEY}"})).status == 200
    basic = {"authorization": "Basic aHg6aHg="}
    assert "Send your API key" in (await post_chat(closed, headers=basic)).error["message"]
    assert (await post_chat(client, headers=basic)).status == 200


async def test_an_unknown_key_without_the_database_is_not_called_invalid(
    client: AsgiClient, neuron: FakeNeuron, directory: FakeDirectory
) -> None:
    directory.is_away = True
    answer = await post_chat(client, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
    assert answer.headers["retry-after"]


async def test_the_sender_of_a_large_body_is_identified_once(
    client: AsgiClient,
    gateway: Gateway,
    neuron: FakeNeuron,
    directory: FakeDirectory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before its body is read; again only where the body takes longer than a revoked key may be
    remembered. A remembered sender does not replace the scope that the path needs."""
    headers = [(name.encode(), value.encode()) for name, value in BEARER.items()]
    extras = await gateway.check_headers(CHAT.encode(), headers)
    assert directory.num_finds == 1
    assert (await post_chat(client, headers=BEARER, extras=extras)).status == 200
    assert directory.num_finds == 1
    directory.restrict(KEY, scopes=frozenset({Scope.USAGE_READ}))
    with pytest.raises(InsufficientScopeError):
        await gateway.check_headers(CHAT.encode(), headers)
    monkeypatch.setattr("inference.gateway.request.identify.KNOWN_FOR_S", -1.0)
    assert (await post_chat(client, headers=BEARER, extras=extras)).status == 403
    assert await gateway.check_headers(b"/admin/", headers) == {}


async def test_a_scope_is_needed(client: AsgiClient, neuron: FakeNeuron) -> None:
    answer = await post_chat(client, headers={"authorization": f"Bearer {NARROW_KEY}"})
    assert (answer.status, answer.error["code"]) == (403, "insufficient_scope")
    messages = await client.post("/v1/messages", BODY, headers={"x-api-key": NARROW_KEY})
    assert (messages.status, messages.json["error"]["type"]) == (403, "permission_error")


async def test_a_page_of_elsewhere_is_refused_without_a_key(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    for origin in (PAGE, "null"):
        answer = await post_chat(client, headers={"origin": origin})
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        assert (await post_chat(client, headers={"origin": origin, **BEARER})).status == 200
    assert (await post_chat(client, headers={"origin": "http://localhost:5173"})).status == 200


async def test_a_page_of_elsewhere_is_refused_where_everybody_may_come_in(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    client = make_client(allow_anonymous=True, listen_host="0.0.0.0")
    assert (await post_chat(client, headers={"origin": PAGE})).status == 403
    named = make_client(allow_anonymous=True, listen_host="0.0.0.0", allowed_origins=(PAGE,))
    assert (await post_chat(named, headers={"origin": PAGE})).status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
async def test_a_name_that_is_rebound_to_this_machine_is_refused(
    make_client: MakeClient, neuron: FakeNeuron, path: str
) -> None:
    client = make_client(allowed_hosts=())
    method = "GET" if path == "/v1/models" else "POST"
    refused = await client.open(method, path, BODY, headers={"host": "evil.example:80"}).finish()
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
