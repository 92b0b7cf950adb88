"""Refusals before a neuron gets the request: keys, sizes, methods, paths, bad bodies, drains."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
import redis.asyncio
from prometheus_client import generate_latest

from helexa_site.instance import instance_id
from inference.gateway.consumers.health import STALLED_AFTER_S
from inference.gateway.gateway import Gateway
from inference.protocol import keys
from inference.supervised_threads import FailureRecord
from inference.wire.errors import ServiceUnavailableError
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import CHAT, OPERATOR, MakeClient, Rig
from tests.inference.gateway.fake_metering import NARROW_KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, endless

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_bodies_methods_and_paths(client: AsgiClient, neuron: FakeNeuron) -> None:
    declared = client.open("POST", CHAT, parts=[b"{", b"}"], headers={"content-length": "100001"})
    sent = client.open("POST", CHAT, parts=[b"x" * 60_000, b"x" * 60_000, b"x"])
    for exchange in (declared, sent):
        await exchange.finish()
        assert (exchange.status, exchange.error["code"]) == (413, "request_too_large")
    packed = gzip.compress(json.dumps(BODY).encode())
    answer = await client.post(CHAT, parts=[packed], headers={"content-encoding": "gzip"})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert "Content-Encoding" in answer.error["message"]
    as_it_is = await client.post(CHAT, BODY, headers={"content-encoding": "identity"})
    assert as_it_is.status == 200
    # Methods and paths that are not there.
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD"):
        answer = await client.open(method, CHAT).finish()
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (answer.body == b"") == (method == "HEAD")
        assert method == "HEAD" or answer.error["code"] == "method_not_allowed"
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
    refused = await client.post("/messages", {})
    assert refused.json["type"] == "error", "in the dialect of that path"


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
    async def message_of(code: str) -> str:
        answer = await rig.client.get("/health", headers=OPERATOR)
        assert (answer.status, answer.json["status"]) == (200, "degraded")
        ((reason),) = answer.json["reasons"]
        assert reason["code"] == code
        return str(reason["message"])

    record = FailureRecord("thread ledger")
    record.broke(SystemExit(1))
    broke = "This gateway: the thread ledger broke once lately"
    assert (await message_of("thread_broke")).startswith(broke)
    record.has_ended = True
    rig.ledger.spool_problem = "bills cannot be written to /data: No space left on device"
    message = await message_of("bills_not_spooled")
    assert message == f"This gateway: {rig.ledger.spool_problem}."


async def test_healthy_and_without_a_neuron(
    rig: Rig, neuron: FakeNeuron, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Probes do not bury the log. Balancers and monitors ask for the head alone."""
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
    """Without its database it serves what is loaded; a model can be loaded on demand."""
    rig.catalogue.failure = ServiceUnavailableError("database_unavailable", "gone")
    assert await health(rig.client) == (200, "degraded", ["database_unavailable"])
    rig.catalogue.failure = None
    neuron.status = None
    await neuron.beat()
    async with asyncio.timeout(60):
        while await health(rig.client) != (200, "degraded", ["model_away"]):
            await asyncio.sleep(0.01)
    rig.catalogue.unpin()
    assert await health(rig.client) == (200, "ok", [])


async def test_draining_lets_finish_then_cuts_and_refuses(
    client: AsgiClient,
    neuron: FakeNeuron,
    gateway: Gateway,
    redis_client: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.gateway.gateway.FLUSH_S", 60.0)
    neuron.script = endless
    streaming = client.open("POST", CHAT, {**BODY, "stream": True})
    waiting = client.open("POST", CHAT, BODY)
    await streaming.until(b"on and")
    assert await redis_client.exists(keys.gateway_alive_key(gateway.gateway_id))
    draining = asyncio.create_task(gateway.drain(0.2))
    await asyncio.sleep(0.05)
    refused = await client.post(CHAT, BODY)
    assert (refused.status, refused.error["code"]) == (503, "shutting_down")
    await draining
    await streaming.finish()
    await waiting.finish()
    assert streaming.chunks[-1]["error"]["code"] == "shutting_down"
    assert (waiting.status, waiting.error["code"]) == (503, "shutting_down")
    assert not await redis_client.exists(keys.gateway_alive_key(gateway.gateway_id))
    async with asyncio.timeout(60):
        assert {await neuron.cancelled.get(), await neuron.cancelled.get()}
