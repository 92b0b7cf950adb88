"""Who may ask what: every endpoint for owner, teammate, stranger, a key without the scope, and
an anonymous caller. Taken from the table itself: an endpoint without its row here fails.

The owner made the object that is asked for. A teammate has another key of the owner's account, a
stranger a key of another account. The anonymous caller has no key on a server that asks for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helexa_site.routing import api_table
from inference.batches.files import FileStore
from inference.gateway.batches.store import BatchStore
from inference.gateway.batches.worker import BatchWorker
from inference.gateway.gateway import Gateway
from inference.gateway.responses.store import ResponseStore
from inference.wire.openai.passed.request import ENDPOINTS
from metering.principal import Principal
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.bodies import counts, tokenizes
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.consumers.test_generate import ASKED, scores, settings
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, OTHERS_KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import FakeNeuron, Script, embeds, paris

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
INFERENCE = (200, 200, 200, 403, 401)
OWNED = (200, 200, 404, 403, 401)
ANYBODY = (200, 200, 200, 200, 200)
OPERATORS = (501, 501, 501, 403, 401)
NOTHING = (404, 404, 404, 404, 404)
Expected = tuple[int, int, int, int, int]
HI = {"model": "tiny", "input": "Hi"}
PROMPT = {"model": "tiny", "prompt": "Hi"}
ANOTHER = {**HI, "previous_response_id": "{id}"}
RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``path`` may hold ``{id}``, a response that the owner made in the background. ``expected``
    are the statuses of owner, teammate, stranger, narrow and anonymous."""

    method: str
    path: str
    expected: tuple[int, int, int, int, int]
    body: dict[str, Any] | None = None
    script: Script = paris


NOBODYS = (404, 404, 404, 403, 401)
"""The statuses for an id that nothing has."""
CONTINUED = (200, 200, 400, 403, 401)
"""The statuses of a request that continues the owner's response."""
TASKS = (400, 400, 400, 403, 401)
"""The statuses where a model of text is asked for something else: once it is known who asks."""


def get(path: str, expected: Expected = INFERENCE, script: Script = paris) -> Row:
    return Row(method="GET", path=path, expected=expected, script=script)


def post(
    path: str, body: Any = None, expected: Expected = INFERENCE, script: Script = paris
) -> Row:
    return Row(method="POST", path=path, body=body, expected=expected, script=script)


NOWHERE = [get(path, NOTHING) for path in ("/v1/messages/nowhere", "/v1/nowhere")]
ROWS = [
    post("/v1/chat/completions", CHAT),
    post("/v1/completions", PROMPT),
    post("/v1/embeddings", HI, script=embeds(b"\0" * 4)),
    post("/v1/messages", {**CHAT, "max_tokens": 9}),
    post("/v1/messages/count_tokens", CHAT, script=counts),
    post("/tokenize", PROMPT, script=tokenizes),
    post("/detokenize", {"model": "tiny", "tokens": [1]}, script=tokenizes),
    *(post(endpoint.path, HI, TASKS) for endpoint in ENDPOINTS),
    post("/api/chat", CHAT),
    post("/api/generate", PROMPT),
    post("/api/embed", HI, script=embeds(b"\0" * 4)),
    post("/api/embeddings", PROMPT, script=embeds(b"\0" * 4)),
    post("/api/show", {"model": "tiny"}),
    post("/api/pull", {"model": "x"}, NOBODYS),
    *(
        post(f"/api/{name}", {"model": "x"}, OPERATORS)
        for name in ("push", "create", "copy", "delete")
    ),
    post("/v1/score", {"model": "tiny", "text_1": "a", "text_2": ["b", "c"]}, script=scores),
    post("/v1/rerank", ASKED, script=scores),
    post("/v2/rerank", ASKED, script=scores),
    get("/tokenizer_info", script=settings),
    *(get(path, ANYBODY) for path in ("/openapi.json", "/health", "/ping")),
    *(get(f"/api/{path}") for path in ("tags", "ps", "version")),
    *(get(f"/v1/{path}") for path in ("files", "batches", "messages/batches", "models")),
    get("/v1/models/tiny"),
    *(
        Row(method=method, path=f"/v1/{path}", expected=NOBODYS)
        for method, path in (
            ("GET", "files/none"),
            ("DELETE", "files/none"),
            ("GET", "files/none/content"),
            ("GET", "batches/none"),
            ("POST", "batches/none/cancel"),
            ("GET", "messages/batches/none"),
            ("DELETE", "messages/batches/none"),
            ("POST", "messages/batches/none/cancel"),
            ("GET", "messages/batches/none/results"),
        )
    ),
    post(RESPONSES, HI),
    post(RESPONSES, ANOTHER, CONTINUED),
    post(f"{RESPONSES}/input_tokens", ANOTHER, CONTINUED, script=counts),
    post(f"{RESPONSES}/compact", {"model": "tiny", "previous_response_id": "{id}"}, CONTINUED),
    get(RESPONSES + "/{id}/input_items", OWNED),
    post(RESPONSES + "/{id}/cancel", expected=OWNED),
    get(RESPONSES + "/{id}", OWNED),
    Row(method="DELETE", path=RESPONSES + "/{id}", expected=OWNED),
]


def test_every_endpoint_has_its_row(gateway: Gateway, tmp_path: Path) -> None:
    batches = BatchStore(FileStore(tmp_path), max_files=1, max_bytes=1, max_open_batches=1)
    store = ResponseStore(gateway, max_responses=1, max_bytes=1)
    table = api_table(gateway, store, batches, BatchWorker(gateway, batches))
    paths = {path for _, _, answers in table for path in answers}
    assert paths == {re.sub("none|(?<=models/)tiny", "{id}", row.path) for row in ROWS}


@pytest.fixture
def client(make_client: MakeClient, directory: FakeDirectory) -> AsgiClient:
    directory.keys[TEAMMATES_KEY] = Principal(account="lab", key=TEAMMATES_KEY[:13])
    return make_client(allow_anonymous=False)


@each_case("row", [*ROWS, *NOWHERE], ids=lambda row: f"{row.method} {row.path}")
async def test_access(client: AsgiClient, neuron: FakeNeuron, row: Row) -> None:
    found = []
    for key in ROLES.values():
        neuron.script = paris
        needs_one = "{id}" in row.path or "{id}" in (row.body or {}).values()
        response_id = await _a_response_of_the_owner(client) if needs_one else ""
        neuron.script = row.script
        body = row.body and {
            name: response_id if value == "{id}" else value for name, value in row.body.items()
        }
        answer = await exchange_with(client, row.method, row.path.format(id=response_id), body, key)
        found.append(answer.status)
    assert dict(zip(ROLES, found, strict=True)) == dict(zip(ROLES, row.expected, strict=True))


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
