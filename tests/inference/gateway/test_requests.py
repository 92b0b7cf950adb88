"""Refusals before a neuron gets the request: keys, sizes, methods, paths, bad bodies, drains."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
import redis.asyncio
from prometheus_client import generate_latest

from helexa_site.config import Config
from helexa_site.instance import instance_id
from inference.gateway.gateway import Gateway
from inference.protocol import keys
from inference.supervised_threads import FailureRecord
from inference.wire.errors import ServiceUnavailableError
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import OPERATOR, FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import NARROW_KEY, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, endless

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_declared_length_over_the_limit_is_not_read(client: AsgiClient) -> None:
    exchange = client.open("POST", CHAT, parts=[b"{", b"}"], headers={"content-length": "100001"})
    await exchange.finish()
    assert (exchange.status, exchange.error["code"]) == (413, "request_too_large")


async def test_an_undeclared_length_over_the_limit(client: AsgiClient) -> None:
    answer = await client.post(CHAT, parts=[b"x" * 60_000, b"x" * 60_000, b"x"])
    assert answer.status == 413


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_method_not_allowed(client: AsgiClient, method: str) -> None:
    answer = await client.open(method, CHAT).finish()
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/tiny", "/api/tags"])
async def test_whoever_watches_a_server_may_ask_for_the_head_alone(
    client: AsgiClient, neuron: FakeNeuron, path: str
) -> None:
    """Balancers and monitors do, and Ollama's own client before anything else."""
    whole = await client.get(path)
    head = await client.open("HEAD", path).finish()
    assert (head.status, head.body) == (whole.status, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


async def test_a_head_of_what_is_only_posted(client: AsgiClient) -> None:
    answer = await client.open("HEAD", CHAT).finish()
    assert (answer.status, answer.body, answer.headers["allow"]) == (405, b"", "POST")


async def test_a_models_address_may_end_in_a_slash(client: AsgiClient, neuron: FakeNeuron) -> None:
    assert (await client.get("/v1/models/tiny/")).json["id"] == "tiny"


async def test_a_models_name_in_two_lines_is_not_known(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    answer = await client.get("/v1/models/ti\nny")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/assistants", "/v1/chat", "/v1/modelsx", "/v1/two\nlines"]
)
async def test_unknown_paths_under_v1(client: AsgiClient, path: str) -> None:
    answer = await client.open("POST", path, {}).finish()
    assert (answer.status, answer.error["code"]) == (404, "unknown_url")


async def test_the_api_answers_without_its_version_too(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Capital of France?"}]}
    answer = await client.open("POST", "/chat/completions", body).finish()
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    assert (await client.get("/models/tiny")).json["id"] == "tiny"
    refused = await client.open("POST", "/messages", {}).finish()
    assert refused.json["type"] == "error", "in the dialect of that path"


async def test_other_paths_are_djangos(client: AsgiClient) -> None:
    assert (await client.get("/admin/")).status == 418


async def test_a_compressed_body_is_refused_for_what_it_is(client: AsgiClient) -> None:
    packed = gzip.compress(json.dumps(BODY).encode())
    answer = await client.post(CHAT, parts=[packed], headers={"content-encoding": "gzip"})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert "Content-Encoding" in answer.error["message"]


async def test_a_body_may_be_declared_as_it_is(client: AsgiClient, neuron: FakeNeuron) -> None:
    answer = await client.post(CHAT, BODY, headers={"content-encoding": "identity"})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"", "invalid_json", None),
        (b"\xff\xfe", "invalid_json", None),
        (b"[" * 5000, "invalid_json", None),
        (b"[]", "invalid_type", None),
        (b"{}", "missing_required_parameter", "model"),
        (b'{"model":"tiny","messages":[]}', "invalid_value", "messages"),
        (b'{"model":"tiny","messages":[{"role":"x","content":""}]}', "invalid_value", None),
    ],
)
async def test_bad_bodies(client: AsgiClient, body: bytes, code: str, param: str | None) -> None:
    answer = await client.post(CHAT, parts=[body])
    assert (answer.status, answer.error["code"]) == (400, code)
    assert answer.error["type"] == "invalid_request_error"
    if param:
        assert answer.error["param"] == param


async def test_models(client: AsgiClient, neuron: FakeNeuron) -> None:
    model, alias = (await client.get("/v1/models")).json["data"]
    assert alias == model | {"id": "gpt-4o", "alias_of": "tiny", "aliases": []}
    assert (model["id"], model["status"], model["loaded"]) == ("tiny", "ready", True)
    assert [place["node"] for place in model["locations"]] == model["feasible_on"] == ["beast"]
    for name in ("tiny", "gpt-4o"):
        assert (await client.get(f"/v1/models/{name}")).json == model
    missing = await client.get("/v1/models/org/huge")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_an_unloaded_model_is_listed_as_such(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.status = None
    await neuron.beat()
    model = (await client.get("/v1/models/tiny")).json
    assert (model["status"], model["loaded"], model["limit"]) == ("unloaded", False, None)
    assert model["feasible_on"] == ["beast"]


async def test_healthy(client: AsgiClient, neuron: FakeNeuron) -> None:
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "ok")
    (replica,) = answer.json["neurons"][0]["replicas"]
    assert (replica["status"], replica["in_flight"], replica["queue_depth"]) == ("ready", 1, 2)
    assert (replica["kv_blocks_used"], replica["kv_blocks_total"]) == (3, 400)


async def test_a_neuron_that_lost_threads_is_named_and_gets_nothing(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    neuron.thread_problems = ["the thread intake-16k-0 is gone"]
    await neuron.beat()
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert answer.json["reasons"] == [
        {"code": "thread_broke", "message": "beast: the thread intake-16k-0 is gone."}
    ]
    assert answer.json["neurons"][0]["problems"] == neuron.thread_problems
    neuron.is_ready = False
    await neuron.beat()

    async with asyncio.timeout(60):
        while (await client.get("/health")).status != 503:
            await asyncio.sleep(0.01)
    asked = await client.post(CHAT, BODY)
    assert asked.status == 503
    assert neuron.submitted.empty()


async def test_a_thread_of_the_gateway_that_broke_is_named(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    record = FailureRecord("thread ledger")
    record.broke(SystemExit(1))
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    ((reason),) = answer.json["reasons"]
    assert reason["code"] == "thread_broke"
    assert reason["message"].startswith("This gateway: the thread ledger broke once lately")
    record.has_ended = True


async def test_bills_that_neither_the_database_nor_the_disk_takes_are_named(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    ledger.spool_problem = "bills cannot be written to /data: No space left on device"
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    ((reason),) = answer.json["reasons"]
    assert reason["code"] == "bills_not_spooled"
    assert reason["message"] == f"This gateway: {ledger.spool_problem}."


async def test_strangers_see_only_whether_it_is_well(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    answer = await client.get("/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    answer = await client.get("/health", headers={"authorization": f"Bearer {NARROW_KEY}"})
    assert (answer.status, answer.json) == (200, {"status": "ok"})


async def test_unhealthy_without_a_neuron(client: AsgiClient) -> None:
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (503, "unhealthy")
    assert [reason["code"] for reason in answer.json["reasons"]] == ["neuron_away"]
    answer = await client.get("/health")
    assert (answer.status, answer.json) == (503, {"status": "unhealthy"})


async def test_an_unhealthy_answer_has_not_finished_well(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    assert (await client.get("/health")).status == 200
    await neuron.die()
    async with asyncio.timeout(60):
        while (await client.get("/health")).status == 200:
            await asyncio.sleep(0.02)
    text = generate_latest(gateway.metrics.registry).decode()
    assert 'helexa_requests_ended_total{code="unhealthy",status="503"} 1.0' in text
    assert 'code="finished",status="503"' not in text


async def test_one_models_absence_takes_no_gateway_out_of_rotation(
    client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    """It can be loaded on demand."""
    neuron.status = None
    await neuron.beat()
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert [reason["code"] for reason in answer.json["reasons"]] == ["model_away"]
    catalogue.unpin()
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "ok")


async def test_a_gateway_without_its_database_still_serves_what_is_loaded(
    client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    catalogue.failure = ServiceUnavailableError("database_unavailable", "gone")
    answer = await client.get("/health", headers=OPERATOR)
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert [reason["code"] for reason in answer.json["reasons"]] == ["database_unavailable"]


async def test_unhealthy_without_redis(make_client: MakeClient) -> None:
    client = make_client(redis_url="unix:///nowhere.sock")
    answer = await client.get("/health", headers=OPERATOR)
    assert answer.status == 503
    assert [reason["code"] for reason in answer.json["reasons"]] == ["redis_unavailable"]
    asked = await client.post(CHAT, BODY)
    assert (asked.status, asked.error["code"]) == (503, "redis_unavailable")


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


async def test_probes_do_not_bury_the_log(
    client: AsgiClient, neuron: FakeNeuron, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="helexa.requests")
    await client.get("/health")
    await client.get("/v1/models")
    (line,) = [record.message for record in caplog.records if record.name == "helexa.requests"]
    assert " /v1/models " in line


async def test_health_names_the_instance_of_the_data_directory(
    client: AsgiClient, config: Config
) -> None:
    answer = await client.get("/health")
    sent = dict(answer.headers)["x-helexa-instance"]
    assert sent == instance_id(config.data_dir)
    assert dict((await client.get("/health")).headers)["x-helexa-instance"] == sent
