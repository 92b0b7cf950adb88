"""Which paths are the API's, what a wrong one is answered with, and which web pages may use the API
from a browser."""

from __future__ import annotations

import dataclasses
from typing import Any

from helexa_site.config import Config
from inference.gateway.server.origins import is_allowed
from inference.gateway.server.paths import (
    KNOWN_PATHS,
    REFERENCE,
    api_path,
    api_path_of,
    api_path_of_azure,
    deployment_of,
    near_path,
    unknown_url,
    with_model,
)
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron

PATHS = ["/chat/completions", "/completions/", "/embeddings", "/messages", "/models"]
DEEPER = ["/messages/count_tokens", "/models/org/name", "/responses", "/responses/resp_1/cancel"]
TURNS: Any = [{"role": "user", "content": "Hi"}]
PAGE = "https://chat.example.org"


@each_case(
    ("path", "found"),
    [
        *[(path, path) for path in (*KNOWN_PATHS, "/v1", "/v1/", "/v1/nothing", "/v1/models/a/b")],
        *[(path, f"/v1{path}") for path in (*PATHS, *DEEPER)],
        *[(path, None) for path in ("/", "/admin/", "/api/me", "/chat", "/messages/x", "/v10")],
        ("/v", None),
    ],
)
def test_the_path_in_the_api(path: str, found: str | None) -> None:
    """Its own are as they are, and a base URL may lack the version."""
    assert api_path(path) == found
    if found:
        assert api_path_of(f"{path}?beta=true".encode()) == found


@each_case(
    ("path", "near", "words"),
    [
        ("/v1/v1/messages", "/v1/messages", [f"here. Did you mean /v1/messages? {REFERENCE}"]),
        ("/openai/v1/chat/completions", "/v1/chat/completions", []),
        ("/api/v1/embeddings/", "/v1/embeddings", []),
        ("/v1/chat/completion", "/v1/chat/completions", []),
        ("/v1/chat", None, []),
        ("/api/chats", "/api/chat", []),
        ("/v1/things", None, [f"There is no POST /v1/things here. {REFERENCE}"]),
        ("/v1/Models", "/v1/models", []),
        ("/" + "x" * 5000, None, []),
        *[
            (path, None, ["HELEXA_METRICS_LISTEN", "31314"])
            for path in ("/metrics", "/metrics/", "/v1/metrics")
        ],
        *[
            (path, near_path(path), ["This server ", "/v1/chat/completions"])
            for path in ("/v1/videos", "/v1/realtime/x", "/v1/assistants")
        ],
    ],
)
def test_a_wrong_path_is_told_the_right_one(path: str, near: str | None, words: list[str]) -> None:
    assert near_path(path) == near
    answer = unknown_url("POST", path)
    assert all(word in answer for word in words), answer


async def test_azures_deployments_and_keys(make_client: MakeClient, neuron: FakeNeuron) -> None:
    client, key = make_client(api_key="shared-secret"), {"api-key": "shared-secret"}
    path = "/openai/deployments/tiny/chat/completions"
    for named in ({}, {"model": "another"}):
        answer = await client.post(path, {"messages": TURNS, **named}, headers=key)
        assert (answer.status, answer.json["model"]) == (200, "tiny")
    body = {"model": "tiny", "messages": TURNS}
    newer = await client.post("/openai/v1/chat/completions", body, headers=key)
    assert newer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    assert (await client.post(path, [1], headers=key)).status == 400
    unknown = await client.post("/openai/deployments/tiny/images/generations", {}, headers=key)
    assert (unknown.status, unknown.error["code"]) == (404, "unknown_url")
    for wrong in ("", "wrong"):
        answer = await client.post(path, {"messages": TURNS}, headers={"api-key": wrong})
        assert answer.status == 401


@each_case(
    ("path", "api_path", "model"),
    [
        ("/openai/deployments/tiny/completions", "/v1/completions", "tiny"),
        ("/openai/deployments/org/name/embeddings/", "/v1/embeddings", "org/name"),
        ("/openai/v1/responses", "/v1/responses", None),
        ("/openai/files", "/v1/files", None),
        ("/openai", "/v1", None),
        ("/openai2/files", None, None),
        ("/v1/models", None, None),
    ],
)
def test_paths_of_azure(path: str, api_path: str | None, model: str | None) -> None:
    assert (api_path_of_azure(path), deployment_of(path)) == (api_path, model)
    body = b'{"seed":123456789012345678901234567890,"x":1.10,"model":"a"}'
    assert with_model(body, "b") == body.replace(b'"a"', b'"b"'), "nothing else is changed"
    for other in (b"", b"[1]", b"{", b"\xff"):
        assert with_model(other, "b") == other


@each_case(
    ("origin", "wanted"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:8080", True),
        ("app://obsidian.md", True),
        ("vscode-webview://1a2b3c", True),
        (PAGE, False),
        ("http://localhost.example.org", False),
        ("http://localhost:3000.example.org", False),
        ("https://127.0.0.1.example.org", False),
        ("null", False),
        ("", False),
    ],
)
def test_pages_of_this_machine_may(config: Config, origin: str, wanted: bool) -> None:
    assert is_allowed(config, origin) is wanted
    assert is_allowed(dataclasses.replace(config, allowed_origins=("*",)), origin)
    named = dataclasses.replace(config, allowed_origins=(PAGE,))  # by the operator
    assert is_allowed(named, PAGE) and not is_allowed(named, PAGE + ":8443")


async def test_pages_that_may(client: AsgiClient) -> None:
    question = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = await client.open(
        "OPTIONS", "/v1/chat/completions", headers=question, peer="192.0.2.7"
    ).finish()
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    assert answer.headers["access-control-allow-private-network"] == "true"
    refused = await client.open(
        "OPTIONS", "/v1/messages", headers=question | {"Origin": PAGE}
    ).finish()
    assert refused.status == 400
    assert "access-control-allow-origin" not in refused.headers
    assert refused.error["code"] == "origin_not_allowed"
    assert "HELEXA_ALLOWED_ORIGINS" in refused.error["message"]
    # Django answers the bench's results; the rest of what it answers is no page's of another
    # origin.
    near, allowed = {"Origin": "http://localhost:3000"}, "access-control-allow-origin"
    for path in ("/health", "/v1/models", "/v1/models/unknown", "/api/bench/summary"):
        answer = await client.get(path, headers=near)
        assert answer.headers[allowed] == "http://localhost:3000"
        if not path.startswith("/api"):
            assert "x-helexa-advice" in answer.headers["access-control-expose-headers"]
    for path, headers, status in (
        ("/v1/models", {"Origin": PAGE}, 403),
        ("/api/bench/summary", {"Origin": PAGE}, 418),
        ("/api/fleet", near, 418),
        ("/v1/models", {}, 200),
    ):
        answer = await client.get(path, headers=headers)
        assert answer.status == status
        assert not [name for name in answer.headers if name.startswith("access-control-allow")]
        assert status != 403 or "HELEXA_ALLOWED_ORIGINS" in answer.error["message"]
    assert (await client.open("OPTIONS", "/v1/models").finish()).status == 405
