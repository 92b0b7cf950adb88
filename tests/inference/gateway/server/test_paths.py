"""Which paths are the API's, what a wrong one is answered with, and which web pages may use it;
refusals before a neuron gets the request, health and drains."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
from typing import Any

import pytest
import redis.asyncio
from prometheus_client import generate_latest

from helexa_site.config import Config
from helexa_site.data_directory import instance_id
from inference.gateway.consumers.health import STALLED_AFTER_S
from inference.gateway.gateway import Gateway
from inference.gateway.request.identify import origin_is_allowed
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
from inference.protocol import keys
from inference.supervised_threads import FailureRecord
from inference.wire.errors import ServiceUnavailableError
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import CHAT, ENTRY, OPERATOR, MakeClient, Rig
from tests.inference.gateway.fake_metering import NARROW_KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, endless

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
    assert api_path(path) == found
    if found:
        assert api_path_of(f"{path}?beta=true".encode()) == found


@each_case(
    ("path", "near", "words"),
    [
        ("/v1/v1/messages", "/v1/messages", f"here. Did you mean /v1/messages? {REFERENCE}"),
        ("/openai/v1/chat/completions", "/v1/chat/completions", ""),
        ("/api/v1/embeddings/", "/v1/embeddings", ""),
        ("/v1/chat/completion", "/v1/chat/completions", ""),
        ("/v1/chat", None, ""),
        ("/api/chats", "/api/chat", ""),
        ("/v1/things", None, f"There is no POST /v1/things here. {REFERENCE}"),
        ("/v1/Models", "/v1/models", ""),
        ("/" + "x" * 5000, None, ""),
        ("/metrics/", None, "HELEXA_METRICS_LISTEN"),
        ("/v1/metrics", None, "31314"),
        ("/v1/realtime/x", None, "This server "),
    ],
)
def test_a_wrong_path_is_told_the_right_one(path: str, near: str | None, words: str) -> None:
    assert near_path(path) == near
    assert words in unknown_url("POST", path)


async def test_azures_deployments_and_keys(make_client: MakeClient, neuron: FakeNeuron) -> None:
    client, key = make_client(api_key="shared-secret"), {"api-key": "shared-secret"}
    path = "/openai/deployments/tiny/chat/completions"
    for named in ({}, {"model": "another"}):
        answer = await client.post(path, {"messages": TURNS, **named}, headers=key)
        assert (answer.status, answer.json["model"]) == (200, "tiny")
    newer = await client.post("/openai/v1/chat/completions", BODY, headers=key)
    assert newer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    assert (await client.post(path, [1], headers=key)).status == 400
    unknown = await client.post("/openai/deployments/tiny/images/generations", {}, headers=key)
    assert (unknown.status, unknown.error["code"]) == (404, "unknown_url")
    for wrong in ("", "wrong"):
        answer = await client.post(path, {"messages": TURNS}, headers={"api-key": wrong})
        assert answer.status == 401
    for path, *found in (
        ("/openai/deployments/tiny/completions", "/v1/completions", "tiny"),
        ("/openai/deployments/org/name/embeddings/", "/v1/embeddings", "org/name"),
        ("/openai/files", "/v1/files", None),
        ("/openai", "/v1", None),
        ("/openai2/files", None, None),
        ("/v1/models", None, None),
    ):
        assert [api_path_of_azure(path), deployment_of(path)] == found
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
    assert origin_is_allowed(config, origin) is wanted
    assert origin_is_allowed(dataclasses.replace(config, allowed_origins=("*",)), origin)
    named = dataclasses.replace(config, allowed_origins=(PAGE,))  # by the operator
    assert origin_is_allowed(named, PAGE) and not origin_is_allowed(named, PAGE + ":8443")


async def test_pages_that_may(client: AsgiClient) -> None:
    near, allowed = {"Origin": "http://localhost:3000"}, "access-control-allow-origin"
    question = near | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = await client.open("OPTIONS", CHAT, headers=question, peer="192.0.2.7").finish()
    assert (answer.status, answer.headers[allowed]) == (200, "http://localhost:3000")
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    assert answer.headers["access-control-allow-private-network"] == "true"
    # Django answers the bench's results; the rest of what it answers is no page's of another
    # origin.
    for path in ("/health", "/v1/models", "/v1/models/unknown", "/api/bench/summary"):
        answer = await client.get(path, headers=near)
        assert answer.headers[allowed] == "http://localhost:3000"
        if not path.startswith("/api"):
            assert "x-helexa-advice" in answer.headers["access-control-expose-headers"]
    for method, path, headers, status in (
        ("OPTIONS", "/v1/messages", question | {"Origin": PAGE}, 400),
        ("OPTIONS", "/v1/models", {}, 405),
        ("GET", "/v1/models", {"Origin": PAGE}, 403),
        ("GET", "/api/bench/summary", {"Origin": PAGE}, 418),
        ("GET", "/api/fleet", near, 418),
        ("GET", "/v1/models", {}, 200),
    ):
        answer = await client.open(method, path, headers=headers).finish()
        assert answer.status == status
        shown = [name for name in answer.headers if name.startswith("access-control-allow")]
        assert allowed not in shown and (method == "OPTIONS" or not shown)
        if status in (400, 403):
            assert answer.error["code"] == "origin_not_allowed"
            assert "HELEXA_ALLOWED_ORIGINS" in answer.error["message"]


BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_bodies_methods_and_paths(client: AsgiClient, neuron: FakeNeuron) -> None:
    sent = await client.post(CHAT, parts=[b"x" * 60_000, b"x" * 60_000, b"x"])
    assert (sent.status, sent.error["code"]) == (413, "request_too_large")
    packed = gzip.compress(json.dumps(BODY).encode())
    answer = await client.post(CHAT, parts=[packed], headers={"content-encoding": "gzip"})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert "Content-Encoding" in answer.error["message"]
    as_it_is = await client.post(CHAT, BODY, headers={"content-encoding": "identity"})
    assert as_it_is.status == 200
    # Methods and paths that are not there.
    for method in ("PUT", "HEAD"):
        answer = await client.open(method, CHAT).finish()
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (answer.body == b"") == (method == "HEAD")
    for path in ("", "/", "/assistants", "/chat", "/modelsx", "/two\nlines"):
        answer = await client.post(f"/v1{path}", {})
        assert (answer.status, answer.error["code"]) == (404, "unknown_url"), path
    assert (await client.get("/admin/")).status == 418, "other paths are Django's"
    # A model's may end in a slash and has one line; a base URL may lack the version.
    for path in ("/v1/models/tiny/", "/models/tiny"):
        assert (await client.get(path)).json["id"] == "tiny"
    answer = await client.get("/v1/models/ti\nny")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    answer = await client.post("/chat/completions", BODY)
    assert answer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    large = "x" * 100_001
    for method, path, asked, status, type_ in (
        ("POST", "/messages", {}, 400, "invalid_request_error"),
        ("GET", "/v1/messages/count_tokens", {}, 405, "invalid_request_error"),
        ("POST", "/v1/messages/nothing", {}, 404, "not_found_error"),
        ("GET", "/v1/messages/batches/x", {}, 404, "not_found_error"),
        ("POST", "/v1/messages", large, 413, "request_too_large"),
    ):
        refused = await client.open(method, path, asked).finish()
        found = (refused.status, refused.json["type"], refused.error["type"])
        assert found == (status, "error", type_), "in the dialect of that path"


async def health(client: AsgiClient) -> tuple[int, str, list[str]]:
    """The status, and the codes of the reasons."""
    answer = await client.get("/health", headers=OPERATOR)
    return answer.status, answer.json["status"], [one["code"] for one in answer.json["reasons"]]


async def until_unhealthy(client: AsgiClient) -> None:
    async with asyncio.timeout(60):
        while (await client.get("/health")).status != 503:
            await asyncio.sleep(0.01)


async def test_what_is_wrong_with_a_neuron_is_named(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.thread_problems = ["the thread intake-16k-0 is gone"]
    neuron.last_forward_age_s = STALLED_AFTER_S + 1
    await neuron.beat()
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert answer.json["neurons"][0]["problems"] == neuron.thread_problems
    assert {one["code"]: one["message"] for one in answer.json["reasons"]} == {
        "thread_broke": "beast: the thread intake-16k-0 is gone.",
        "engine_stalled": "tiny makes no progress on beast.",
    }
    neuron.is_ready = False
    await neuron.beat()
    await until_unhealthy(client)
    assert (await client.post(CHAT, BODY)).status == 503
    assert neuron.submitted.empty()


async def test_what_is_wrong_with_a_gateway_is_named(rig: Rig, neuron: FakeNeuron) -> None:
    async def is_degraded(code: str, message: str) -> None:
        answer = await rig.client.get("/health", headers=OPERATOR)
        assert (answer.status, answer.json["status"]) == (200, "degraded")
        (reason,) = answer.json["reasons"]
        assert reason["code"] == code
        assert reason["message"].startswith(f"This gateway: {message}")

    record = FailureRecord("thread ledger")
    record.broke(SystemExit(1))
    await is_degraded("thread_broke", "the thread ledger broke once lately")
    record.has_ended = True
    rig.ledger.spool_problem = "bills cannot be written to /data: No space left on device"
    await is_degraded("bills_not_spooled", f"{rig.ledger.spool_problem}.")


async def test_healthy_and_without_a_neuron(
    rig: Rig, neuron: FakeNeuron, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = rig.client
    with caplog.at_level("INFO", logger="helexa.requests"):
        answer = await client.get("/health", headers=OPERATOR)
    assert not caplog.records
    assert (answer.status, answer.json["status"]) == (200, "ok")
    (replica,) = answer.json["neurons"][0]["replicas"]
    assert (replica["status"], replica["in_flight"], replica["queue_depth"]) == ("ready", 1, 2)
    assert (replica["kv_blocks_used"], replica["kv_blocks_total"]) == (3, 400)
    for headers in ({}, {"authorization": f"Bearer {NARROW_KEY}"}):
        seen = await client.get("/health", headers=headers)
        assert (seen.status, seen.json) == (200, {"status": "ok"}), "strangers see no more"
    for path in ("/health", "/v1/models", "/v1/models/tiny", "/api/tags"):
        whole, head = await client.get(path), await client.open("HEAD", path).finish()
        assert (head.status, head.body) == (whole.status, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == whole.headers[name]
    instance = instance_id(rig.gateway.config.data_dir)
    for answer in (seen, await client.open("HEAD", "/health").finish()):
        assert answer.headers["x-helexa-instance"] == instance
    await neuron.die()
    await until_unhealthy(client)
    assert await health(client) == (503, "unhealthy", ["neuron_away"])
    assert (await client.get("/health")).json == {"status": "unhealthy"}
    text = generate_latest(rig.gateway.metrics.registry).decode()
    assert 'helexa_requests_ended_total{code="unhealthy",status="503"}' in text
    assert 'code="finished",status="503"' not in text
    client = make_client(redis_url="unix:///nowhere.sock")
    assert await health(client) == (503, "unhealthy", ["redis_unavailable"])
    assert (await client.post(CHAT, BODY)).error["code"] == "redis_unavailable"


async def test_what_can_still_be_served_is_healthy(rig: Rig, neuron: FakeNeuron) -> None:
    rig.catalogue.failure = ServiceUnavailableError("database_unavailable", "gone")
    assert await health(rig.client) == (200, "degraded", ["database_unavailable"])
    rig.catalogue.failure = None
    neuron.status = None
    await neuron.beat()
    async with asyncio.timeout(60):
        while await health(rig.client) != (200, "degraded", ["model_away"]):
            await asyncio.sleep(0.01)
    rig.catalogue.listed = [dataclasses.replace(ENTRY, pinned=False)]
    assert await health(rig.client) == (200, "ok", [])


async def test_draining_lets_finish_then_cuts_and_refuses(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, redis_client: redis.asyncio.Redis
) -> None:
    neuron.script = endless
    streaming = client.open("POST", CHAT, {**BODY, "stream": True})
    waiting = client.open("POST", CHAT, BODY)
    await streaming.until(b"on and")
    alive = keys.gateway_alive_key(gateway.gateway_id)
    assert await redis_client.exists(alive)
    draining = asyncio.create_task(gateway.drain(0.2))
    await asyncio.sleep(0.05)
    refused = await client.post(CHAT, BODY)
    await draining
    await streaming.finish()
    assert streaming.chunks[-1]["error"]["code"] == "shutting_down"
    for answer in (refused, await waiting.finish()):
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
    assert not await redis_client.exists(alive)
    async with asyncio.timeout(60):
        assert {await neuron.cancelled.get(), await neuron.cancelled.get()}
