"""Web pages that use the API from a browser."""

from __future__ import annotations

import dataclasses

from helexa_site.config import Config
from inference.gateway.server.origins import is_allowed
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient

PAGE = "https://chat.example.org"


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


async def test_a_browser_asks_before_it_sends(client: AsgiClient) -> None:
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


async def test_answers_and_refusals_can_be_read_by_the_page(client: AsgiClient) -> None:
    from_page = {"Origin": "http://localhost:3000"}
    for path in ("/health", "/v1/models", "/v1/models/unknown"):
        answer = await client.get(path, headers=from_page)
        assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "x-helexa-advice" in answer.headers["access-control-expose-headers"]
    refused = await client.get("/v1/models", headers={"Origin": PAGE})
    assert refused.status == 403
    assert "HELEXA_ALLOWED_ORIGINS" in refused.error["message"]
    assert "access-control-allow-origin" not in refused.headers


async def test_other_clients_notice_nothing(client: AsgiClient) -> None:
    answer = await client.get("/v1/models")
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control-allow")]
    options = await client.open("OPTIONS", "/v1/models").finish()
    assert options.status == 405


async def test_the_benchs_results_are_read_by_pages_that_may(client: AsgiClient) -> None:
    """Django answers there; the rest of what it answers is no page's of another origin."""
    from_page = {"Origin": "http://localhost:3000"}
    answer = await client.get("/api/bench/summary", headers=from_page)
    assert answer.status == 418
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    for path, origin in (("/api/bench/summary", PAGE), ("/api/fleet", from_page["Origin"])):
        answer = await client.get(path, headers={"Origin": origin})
        assert answer.status == 418
        assert "access-control-allow-origin" not in answer.headers
