"""Who may ask what: every endpoint for owner, teammate, stranger, a key without the scope, and
an anonymous caller. Taken from the routes themselves: an endpoint without its row here fails.

The owner made the object that is asked for. A teammate has another key of the owner's account, a
stranger a key of another account. The anonymous caller has no key on a server that asks for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helexa_site.routing import api_routes, batch_routes
from inference.batches.files import FileStore
from inference.gateway.batches.store import BatchStore
from inference.gateway.batches.worker import BatchWorker
from inference.gateway.gateway import Gateway
from inference.gateway.responses.store import ResponseStore
from inference.wire.openai.passed.request import ENDPOINTS
from metering.principal import Principal
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.consumers.test_vectors import ASKED, scores, settings
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, OTHERS_KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, embeds, paris
from tests.inference.gateway.responses_support import counts, tokenizes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("kept")]

TEAMMATES_KEY = "hx-teammate00-" + 32 * "s"
ROLES = {
    "owner": KEY,
    "teammate": TEAMMATES_KEY,
    "stranger": OTHERS_KEY,
    "narrow": NARROW_KEY,
    "nobody": None,
}
MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = {"model": "tiny", "messages": MESSAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``path`` may hold ``{id}``, a response that the owner made in the background. ``expected``
    are the statuses of owner, teammate, stranger, narrow and anonymous."""

    method: str
    path: str
    expected: tuple[int, int, int, int, int]
    body: dict[str, Any] | None = None
    script: Script = paris


INFERENCE = (200, 200, 200, 403, 401)
OWNED = (200, 200, 404, 403, 401)
ANYBODY = (200, 200, 200, 200, 200)
OPERATORS = (501, 501, 501, 403, 401)
NOTHING = (404, 404, 404, 404, 404)
NOBODYS = (404, 404, 404, 403, 401)
"""The statuses for an id that nothing has."""
ONE = r"^v1/responses/(?P<response_id>[^/]+)"
ROWS: dict[str, list[Row]] = {
    r"^v1/chat/completions/?$": [
        Row(method="POST", path="/v1/chat/completions", body=CHAT, expected=INFERENCE)
    ],
    r"^v1/completions/?$": [
        Row(
            method="POST",
            path="/v1/completions",
            body={"model": "tiny", "prompt": "Hi"},
            expected=INFERENCE,
        )
    ],
    r"^v1/embeddings/?$": [
        Row(
            method="POST",
            path="/v1/embeddings",
            body={"model": "tiny", "input": "Hi"},
            expected=INFERENCE,
            script=embeds(b"\0" * 4),
        )
    ],
    r"^v1/messages/?$": [
        Row(method="POST", path="/v1/messages", body={**CHAT, "max_tokens": 9}, expected=INFERENCE)
    ],
    r"^v1/messages/count_tokens/?$": [
        Row(
            method="POST",
            path="/v1/messages/count_tokens",
            body=CHAT,
            expected=INFERENCE,
            script=counts,
        )
    ],
    r"^tokenize/?$": [
        Row(
            method="POST",
            path="/tokenize",
            body={"model": "tiny", "prompt": "Hi"},
            expected=INFERENCE,
            script=tokenizes,
        )
    ],
    r"^detokenize/?$": [
        Row(
            method="POST",
            path="/detokenize",
            body={"model": "tiny", "tokens": [1]},
            expected=INFERENCE,
            script=tokenizes,
        )
    ],
    **{
        rf"^{endpoint.path.removeprefix('/')}/?$": [
            # A model of text: the request is refused once it is known who asks.
            Row(
                method="POST",
                path=endpoint.path,
                body={"model": "tiny", "input": "Hi"},
                expected=(400, 400, 400, 403, 401),
            )
        ]
        for endpoint in ENDPOINTS
    },
    "^api/chat$": [Row(method="POST", path="/api/chat", body=CHAT, expected=INFERENCE)],
    "^api/generate$": [
        Row(
            method="POST",
            path="/api/generate",
            body={"model": "tiny", "prompt": "Hi"},
            expected=INFERENCE,
        )
    ],
    "^api/embed$": [
        Row(
            method="POST",
            path="/api/embed",
            body={"model": "tiny", "input": "Hi"},
            expected=INFERENCE,
            script=embeds(b"\0" * 4),
        )
    ],
    "^api/embeddings$": [
        Row(
            method="POST",
            path="/api/embeddings",
            body={"model": "tiny", "prompt": "Hi"},
            expected=INFERENCE,
            script=embeds(b"\0" * 4),
        )
    ],
    "^api/tags$": [Row(method="GET", path="/api/tags", expected=INFERENCE)],
    "^api/ps$": [Row(method="GET", path="/api/ps", expected=INFERENCE)],
    "^api/version$": [Row(method="GET", path="/api/version", expected=INFERENCE)],
    "^api/show$": [
        Row(method="POST", path="/api/show", body={"model": "tiny"}, expected=INFERENCE)
    ],
    "^api/pull$": [
        Row(
            method="POST",
            path="/api/pull",
            body={"model": "x"},
            expected=(404, 404, 404, 403, 401),
        )
    ],
    **{
        f"^api/{name}$": [
            Row(method="POST", path=f"/api/{name}", body={"model": "x"}, expected=OPERATORS)
        ]
        for name in ("push", "create", "copy", "delete")
    },
    r"^v1/messages/": [Row(method="GET", path="/v1/messages/nowhere", expected=NOTHING)],
    r"^(v1/)?score/?$": [
        Row(
            method="POST",
            path="/v1/score",
            body={"model": "tiny", "text_1": "red?", "text_2": ["grass", "blood"]},
            expected=INFERENCE,
            script=scores,
        )
    ],
    **{
        pattern: [Row(method="POST", path=path, body=ASKED, expected=INFERENCE, script=scores)]
        for pattern, path in {
            r"^(v1/)?rerank/?$": "/v1/rerank",
            r"^v2/rerank/?$": "/v2/rerank",
        }.items()
    },
    r"^tokenizer_info/?$": [
        Row(method="GET", path="/tokenizer_info", expected=INFERENCE, script=settings)
    ],
    r"^openapi\.json$": [Row(method="GET", path="/openapi.json", expected=ANYBODY)],
    **{
        rf"^{path}/?$": [Row(method="GET", path=f"/{path}", expected=INFERENCE)]
        for path in ("v1/files", "v1/batches", "v1/messages/batches")
    },
    **{
        rf"^v1/{kind}/(?P<name>[^/]+){action}/?$": [
            Row(method=method, path=f"/v1/{kind}/none{action}", expected=NOBODYS)
        ]
        for method, kind, action in (
            ("GET", "files", ""),
            ("GET", "files", "/content"),
            ("GET", "batches", ""),
            ("POST", "batches", "/cancel"),
            ("GET", "messages/batches", ""),
            ("POST", "messages/batches", "/cancel"),
            ("GET", "messages/batches", "/results"),
        )
    },
    r"^v1/responses/?$": [
        Row(
            method="POST",
            path="/v1/responses",
            body={"model": "tiny", "input": "Hi"},
            expected=INFERENCE,
        ),
        Row(
            method="POST",
            path="/v1/responses",
            body={"model": "tiny", "input": "Hi", "previous_response_id": "{id}"},
            expected=(200, 200, 400, 403, 401),
        ),
    ],
    r"^v1/responses/input_tokens/?$": [
        Row(
            method="POST",
            path="/v1/responses/input_tokens",
            body={"model": "tiny", "input": "Hi", "previous_response_id": "{id}"},
            expected=(200, 200, 400, 403, 401),
            script=counts,
        )
    ],
    r"^v1/responses/compact/?$": [
        Row(
            method="POST",
            path="/v1/responses/compact",
            body={"model": "tiny", "previous_response_id": "{id}"},
            expected=(200, 200, 400, 403, 401),
        )
    ],
    ONE + r"/input_items/?$": [
        Row(method="GET", path="/v1/responses/{id}/input_items", expected=OWNED)
    ],
    ONE + r"/cancel/?$": [Row(method="POST", path="/v1/responses/{id}/cancel", expected=OWNED)],
    ONE + r"/?$": [
        Row(method="GET", path="/v1/responses/{id}", expected=OWNED),
        Row(method="DELETE", path="/v1/responses/{id}", expected=OWNED),
    ],
    r"^v1/models/?$": [Row(method="GET", path="/v1/models", expected=INFERENCE)],
    r"(?s)^v1/models/(?P<name>.+?)/?$": [
        Row(method="GET", path="/v1/models/tiny", expected=INFERENCE)
    ],
    r"(?s)^v1(?:/.*)?$": [Row(method="GET", path="/v1/nowhere", expected=NOTHING)],
    r"^health/?$": [Row(method="GET", path="/health", expected=ANYBODY)],
    r"^ping/?$": [Row(method="GET", path="/ping", expected=ANYBODY)],
}


ALL_ROWS = [row for rows in ROWS.values() for row in rows]


def test_every_endpoint_has_its_row(gateway: Gateway, tmp_path: Path) -> None:
    batches = BatchStore(FileStore(tmp_path), max_files=1, max_bytes=1, max_open_batches=1)
    routes = [
        *batch_routes(gateway, batches, BatchWorker(gateway, batches)),
        *api_routes(gateway, ResponseStore(gateway, max_responses=1, max_bytes=1)),
    ]
    assert {route.pattern.regex.pattern for route in routes} == ROWS.keys()


@pytest.fixture
def client(make_client: MakeClient, directory: FakeDirectory) -> AsgiClient:
    directory.keys[TEAMMATES_KEY] = Principal(account="lab", key=TEAMMATES_KEY[:13])
    return make_client(allow_anonymous=False)


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: f"{row.method} {row.path}")
async def test_access(client: AsgiClient, neuron: FakeNeuron, row: Row) -> None:
    """Each role asks for an object of its own: one may be deleted."""
    answers_the_owner = neuron.script
    found = []
    for key in ROLES.values():
        neuron.script = answers_the_owner
        response_id = await _a_response_of_the_owner(client) if _needs_one(row) else ""
        neuron.script = row.script
        body = row.body and {
            name: response_id if value == "{id}" else value for name, value in row.body.items()
        }
        answer = await exchange_with(client, row.method, row.path.format(id=response_id), body, key)
        found.append(answer.status)
    assert dict(zip(ROLES, found, strict=True)) == dict(zip(ROLES, row.expected, strict=True))


def _needs_one(row: Row) -> bool:
    return "{id}" in row.path or "{id}" in (row.body or {}).values()


async def _a_response_of_the_owner(client: AsgiClient) -> str:
    body = {"model": "tiny", "input": "Hi", "background": True}
    made = await exchange_with(client, "POST", "/v1/responses", body, KEY)
    response_id: str = made.json["id"]
    while True:
        found = await exchange_with(client, "GET", f"/v1/responses/{response_id}", None, KEY)
        if found.json["status"] == "completed":
            return response_id
        assert found.json["status"] in ("queued", "in_progress"), found.json


async def exchange_with(
    client: AsgiClient, method: str, path: str, body: dict[str, Any] | None, key: str | None
) -> Exchange:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await client.open(method, path, body, headers=headers).finish()
