"""Who is let in: by the headers, the listening address and the operator's word. Who may ask what:
every endpoint for owner, teammate, stranger, a key without the scope, and an anonymous caller.
Taken from the table itself: an endpoint without its row here fails.

The owner made the object that is asked for. A teammate has another key of the owner's account, a
stranger a key of another account. The anonymous caller has no key on a server that asks for one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helexa_site.config import Config
from helexa_site.routing import api_table
from inference.batches.files import FileStore
from inference.gateway.batch_store import BatchStore
from inference.gateway.batch_worker import BatchWorker
from inference.gateway.gateway import Gateway
from inference.gateway.request.identify import (
    MAX_CHARS,
    allows_anonymous,
    cleaned,
    end_user_of_headers,
)
from inference.gateway.response_store import ResponseStore
from inference.wire.errors import InsufficientScopeError
from inference.wire.openai.passed import ENDPOINTS
from metering.principal import Principal, Scope
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient, AsgiSocket
from tests.inference.gateway.bodies import counts, tokenizes
from tests.inference.gateway.conftest import BEARER, CHAT, SHORT_CHAT, MakeClient, Rig
from tests.inference.gateway.consumers.test_generate import ASKED, scores, settings
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, OTHERS_KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, embeds, paris

TEAMMATES_KEY = "hx-teammate00-" + 32 * "s"
ROLES = {
    "owner": KEY,
    "teammate": TEAMMATES_KEY,
    "stranger": OTHERS_KEY,
    "narrow": NARROW_KEY,
    "nobody": None,
}
MESSAGES = [{"role": "user", "content": "Hi"}]
ASKS = {"model": "tiny", "messages": MESSAGES}
INFERENCE = (200, 200, 200, 403, 401)
OWNED = (200, 200, 404, 403, 401)
ANYBODY = (200, 200, 200, 200, 200)
OPERATORS = (501, 501, 501, 403, 401)
NOTHING = (404, 404, 404, 404, 404)
HI = {"model": "tiny", "input": "Hi"}
PROMPT = {"model": "tiny", "prompt": "Hi"}
RESPONSES = "/v1/responses"


class Row(NamedTuple):
    """``path`` may hold ``{id}``, a response that the owner made in the background. ``expected``
    are the statuses of owner, teammate, stranger, narrow and anonymous."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    expected: tuple[int, int, int, int, int] = INFERENCE
    script: Script = paris


NOBODYS = (404, 404, 404, 403, 401)
"""The statuses for an id that nothing has."""
CONTINUED = (200, 200, 400, 403, 401)
"""The statuses of a request that continues the owner's response."""
TASKS = (400, 400, 400, 403, 401)
"""The statuses where a model of text is asked for something else: once it is known who asks."""


NOWHERE = [Row("GET", path, None, NOTHING) for path in ("/v1/messages/nowhere", "/v1/nowhere")]
SCORED = {"model": "tiny", "text_1": "a", "text_2": ["b", "c"]}
OF_TINY = {"model": "tiny", "previous_response_id": "{id}"}
ROWS = [
    Row("POST", CHAT, ASKS),
    Row("POST", "/v1/completions", PROMPT),
    Row("POST", "/v1/embeddings", HI, script=embeds(b"\0" * 4)),
    Row("POST", "/v1/messages", {**ASKS, "max_tokens": 9}),
    Row("POST", "/v1/messages/count_tokens", ASKS, script=counts),
    Row("POST", "/tokenize", PROMPT, script=tokenizes),
    Row("POST", "/detokenize", {"model": "tiny", "tokens": [1]}, script=tokenizes),
    *(Row("POST", endpoint.path, HI, TASKS) for endpoint in ENDPOINTS),
    Row("POST", "/api/chat", ASKS),
    Row("POST", "/api/generate", PROMPT),
    Row("POST", "/api/embed", HI, script=embeds(b"\0" * 4)),
    Row("POST", "/api/embeddings", PROMPT, script=embeds(b"\0" * 4)),
    Row("POST", "/api/show", {"model": "tiny"}),
    Row("POST", "/api/pull", {"model": "x"}, NOBODYS),
    *(
        Row("POST", f"/api/{name}", {"model": "x"}, OPERATORS)
        for name in ("push", "create", "copy", "delete")
    ),
    Row("POST", "/v1/score", SCORED, script=scores),
    Row("POST", "/v1/rerank", ASKED, script=scores),
    Row("POST", "/v2/rerank", ASKED, script=scores),
    Row("GET", "/tokenizer_info", script=settings),
    *(Row("GET", path, None, ANYBODY) for path in ("/openapi.json", "/health", "/ping")),
    *(Row("GET", f"/api/{path}") for path in ("tags", "ps", "version")),
    *(Row("GET", f"/v1/{path}") for path in ("files", "batches", "messages/batches", "models")),
    Row("GET", "/v1/models/tiny"),
    *(
        Row(*one.split(), None, NOBODYS)
        for one in (
            "GET /v1/files/none",
            "DELETE /v1/files/none",
            "GET /v1/files/none/content",
            "GET /v1/batches/none",
            "POST /v1/batches/none/cancel",
            "GET /v1/messages/batches/none",
            "DELETE /v1/messages/batches/none",
            "POST /v1/messages/batches/none/cancel",
            "GET /v1/messages/batches/none/results",
        )
    ),
    Row("POST", RESPONSES, HI),
    Row("POST", RESPONSES, {**HI, **OF_TINY}, CONTINUED),
    Row("POST", f"{RESPONSES}/input_tokens", {**HI, **OF_TINY}, CONTINUED, counts),
    Row("POST", f"{RESPONSES}/compact", OF_TINY, CONTINUED),
    Row("GET", RESPONSES + "/{id}/input_items", None, OWNED),
    Row("POST", RESPONSES + "/{id}/cancel", None, OWNED),
    Row("GET", RESPONSES + "/{id}", None, OWNED),
    Row("DELETE", RESPONSES + "/{id}", None, OWNED),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("kept")
def test_every_endpoint_has_its_row(gateway: Gateway, tmp_path: Path) -> None:
    batches = BatchStore(FileStore(tmp_path), max_files=1, max_bytes=1, max_open_batches=1)
    store = ResponseStore(gateway, max_responses=1, max_bytes=1)
    table = api_table(gateway, store, batches, BatchWorker(gateway, batches))
    paths = {path for _, _, answers in table for path in answers}
    assert paths == {re.sub("none|(?<=models/)tiny", "{id}", row.path) for row in ROWS}


@pytest.fixture
def guarded(make_client: MakeClient, directory: FakeDirectory) -> AsgiClient:
    directory.keys[TEAMMATES_KEY] = Principal(account="lab", key=TEAMMATES_KEY[:13])
    return make_client(allow_anonymous=False)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("kept")
@each_case("row", [*ROWS, *NOWHERE], ids=lambda row: f"{row.method} {row.path}")
async def test_access(guarded: AsgiClient, neuron: FakeNeuron, row: Row) -> None:
    found = []
    for key in ROLES.values():
        neuron.script = paris
        needs_one = "{id}" in row.path or "{id}" in (row.body or {}).values()
        made = await _a_response_of_the_owner(guarded) if needs_one else ""
        neuron.script = row.script
        body = row.body and {
            name: made if value == "{id}" else value for name, value in row.body.items()
        }
        headers = bearer(key) if key else {}
        asked = guarded.open(row.method, row.path.format(id=made), body, headers=headers)
        found.append((await asked.finish()).status)
    assert dict(zip(ROLES, found, strict=True)) == dict(zip(ROLES, row.expected, strict=True))


async def _a_response_of_the_owner(client: AsgiClient) -> str:
    body = {"model": "tiny", "input": "Hi", "background": True}
    made = (await client.post(RESPONSES, body, headers=BEARER)).json
    while made["status"] != "completed":
        assert made["status"] in ("queued", "in_progress"), made
        made = (await client.get(f"{RESPONSES}/{made['id']}", headers=BEARER)).json
    return str(made["id"])


PAGE = "https://evil.example"
UNKNOWN = "hx-0123456789-" + 32 * "x"
BASIC = {"authorization": "Basic aHg6aHg="}
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


async def test_who_is_served(make_client: MakeClient, neuron: FakeNeuron) -> None:
    at_home = [{}, bearer("none"), {"x-api-key": "x"}, BASIC, {"origin": "http://localhost:5173"}]
    no_keys = [
        bearer(UNKNOWN),
        {"authorization": UNKNOWN},
        {"authorization": f"Token {UNKNOWN}"},
        bearer(f'"{KEY}"'),
        bearer(KEY[:-1]),
        {"x-api-key": f"{KEY}x"},
        {"x-api-key": f"Bearer {UNKNOWN}"},
        {"authorization": "Bearer none", "x-api-key": UNKNOWN},
    ]
    places = [
        headers
        for key in (KEY, "sesame")
        for headers in (
            {"authorization": key},
            {"authorization": f"bearer  {key}"},
            {"x-api-key": key},
            {"x-api-key": f"Bearer {key}"},
            {**BASIC, "x-api-key": key},
        )
    ]
    nothing = [BASIC, *({"authorization": word} for word in ("", "Bearer", "Bearer "))]
    foreign = [{"origin": origin} for origin in (PAGE, "null")]
    for changes, tried, status, code in (
        # On loopback nobody needs a key, and placeholders are ignored.
        ({}, at_home, 200, None),
        # What looks like a key and is none is refused everywhere.
        ({}, no_keys, 401, "invalid_api_key"),
        # A proxy on this machine lets nobody in: a plain proxy_pass adds no header of its own.
        (SESAME, [{"host": "127.0.0.1:31313"}, bearer("sesam")], 401, "invalid_api_key"),
        # An address of the network needs a key.
        (NETWORK, [{}], 401, "invalid_api_key"),
        (NETWORK, [BEARER], 200, None),
        (EVERYBODY, [{}], 200, None),
        # A key is found wherever clients put it.
        (CLOSED, [*places, {"authorization": f"Token {KEY}"}], 200, None),
        (CLOSED, nothing, 401, "invalid_api_key"),
        ({}, [bearer(NARROW_KEY)], 403, "insufficient_scope"),
        # A page of elsewhere is refused without a key.
        ({}, foreign, 403, "origin_not_allowed"),
        ({}, [one | BEARER for one in foreign], 200, None),
        (EVERYBODY, [{"origin": PAGE}], 403, "origin_not_allowed"),
        ({**EVERYBODY, "allowed_origins": (PAGE,)}, [{"origin": PAGE}], 200, None),
    ):
        client = make_client(**changes)
        for headers in tried:
            answer = await client.post(CHAT, SHORT_CHAT, headers=headers)
            found = None if answer.status == 200 else answer.error["code"]
            assert (answer.status, found) == (status, code), (changes, headers)
            assert answer.headers["x-request-id"]
            if tried is nothing:
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
    assert cleaned(" a\0b\n\u202ec\ud800 d ") == "abc d"
    assert cleaned("x" * MAX_CHARS) == "x" * MAX_CHARS
    names = {cleaned("x" * MAX_CHARS + end) for end in "abc"}
    assert [len(name) for name in names] == [MAX_CHARS] * 3
