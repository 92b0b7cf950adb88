"""Which paths are the API's, and what a wrong one is answered with."""

from __future__ import annotations

from inference.gateway.server.paths import (
    KNOWN_PATHS,
    REFERENCE,
    api_path,
    api_path_of,
    near_path,
    unknown_url,
)
from tests.cases import each_case


@each_case("path", [*KNOWN_PATHS, "/v1", "/v1/", "/v1/nothing", "/v1/models/a/b"])
def test_the_apis_own_paths_are_as_they_are(path: str) -> None:
    assert api_path(path) == path


@each_case(
    "path",
    [
        "/chat/completions",
        "/completions/",
        "/embeddings",
        "/messages",
        "/messages/count_tokens",
        "/models",
        "/models/org/name",
        "/responses",
        "/responses/resp_1/cancel",
    ],
)
def test_a_base_url_without_the_version(path: str) -> None:
    assert api_path(path) == "/v1" + path


@each_case("path", ["/", "/admin/", "/api/me", "/chat", "/messages/x", "/v10", "/v"])
def test_what_is_not_the_apis(path: str) -> None:
    assert api_path(path) is None


def test_a_query_is_not_part_of_the_path() -> None:
    assert api_path_of(b"/messages?beta=true") == "/v1/messages"


@each_case(
    ("path", "near"),
    [
        ("/v1/v1/messages", "/v1/messages"),
        ("/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/embeddings/", "/v1/embeddings"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat", None),
        ("/api/chats", "/api/chat"),
        ("/v1/things", None),
        ("/v1/Models", "/v1/models"),
        ("/" + "x" * 5000, None),
    ],
)
def test_what_a_wrong_path_may_have_meant(path: str, near: str | None) -> None:
    assert near_path(path) == near


def test_it_is_reported() -> None:
    message = f"There is no POST /v1/v1/messages here. Did you mean /v1/messages? {REFERENCE}"
    assert unknown_url("POST", "/v1/v1/messages") == message
    assert unknown_url("GET", "/v1/nothing") == f"There is no GET /v1/nothing here. {REFERENCE}"


@each_case("path", ["/metrics", "/metrics/", "/v1/metrics"])
def test_metrics_are_elsewhere(path: str) -> None:
    answer = unknown_url("GET", path)
    assert "HELEXA_METRICS_LISTEN" in answer
    assert "31314" in answer


@each_case("path", ["/v1/videos", "/v1/realtime/x", "/v1/assistants"])
def test_what_is_not_served_names_what_is(path: str) -> None:
    answer = unknown_url("POST", path)
    assert answer.startswith("This server ")
    assert "/v1/chat/completions" in answer
