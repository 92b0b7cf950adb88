"""An upstream's errors and faults: each ends its request once, by its meaning."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from inference.gateway.gateway import Gateway
from inference.gateway.upstreams.links import MAX_FAILURES
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import OPERATOR, FakeCatalogue
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.upstreams.forwarding import (
    CHAT,
    HELLO,
    SECRET,
    chat,
    cut_early,
    paused,
    serve,
)
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, chunk

ERRORS: list[tuple[int, dict[str, Any], dict[str, str], int, str]] = [
    (400, {"message": "bad top_k", "param": "top_k"}, {}, 400, "upstream_refused"),
    (400, {"message": "maximum context length is 5"}, {}, 400, "context_length_exceeded"),
    (422, {"message": "no"}, {}, 400, "upstream_refused"),
    (429, {"message": "slow down"}, {"retry_after": "7"}, 429, "rate_limit_exceeded"),
    (401, {"message": f"wrong key {SECRET}"}, {}, 502, "upstream_failed"),
    (404, {"message": "no model"}, {}, 502, "upstream_failed"),
    (500, {"message": "boom"}, {}, 502, "upstream_failed"),
    (503, {"message": "later"}, {"retry_after": "9"}, 503, "upstream_unavailable"),
    (302, {}, {"location": "http://169.254.169.254/"}, 502, "upstream_failed"),
]


@pytest.mark.parametrize(("status", "error", "headers", "ours", "code"), ERRORS)
@pytest.mark.usefixtures("far")
async def test_an_error_keeps_its_meaning(
    client: AsgiClient,
    upstream: FakeUpstream,
    ledger: FakeLedger,
    status: int,
    error: dict[str, Any],
    headers: dict[str, str],
    ours: int,
    code: str,
) -> None:
    body = {"error": {**error, "key": SECRET}}
    upstream.answer = lambda asked, wire: wire.json(status, body, **headers)
    answer = await chat(client, stream=True)
    assert (answer.status, answer.error["code"]) == (ours, code)
    assert answer.headers.get("retry-after") == headers.get("retry_after", _usual(ours))
    assert SECRET not in answer.body.decode()
    assert len(upstream.asked) == 1
    (settled,) = ledger.settled
    assert (settled.outcome, settled.prompt_tokens, settled.cost_micro_usd) == (code, 0, 0)


def _usual(status: int) -> str | None:
    return {429: "1", 503: "5"}.get(status)


def cut_late(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(HELLO[1])
    wire.cut()


def half_closed(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(HELLO[1])
    wire.half_close()
    wire.wait_for_hang_up()


def not_json(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(HELLO[1])
    wire.part(b"data: {not json\n\n")


def huge_frame(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(HELLO[1])
    for _ in range(64):
        wire.part(b"data: " + b"x" * 1024 * 1024)


def error_in_stream(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.event(HELLO[1])
    wire.event({"error": {"message": "boom", "code": 500}})


def no_reason(asked: Asked, wire: Wire) -> None:
    wire.stream(HELLO[:3])


def another_choice(asked: Asked, wire: Wire) -> None:
    wire.stream([HELLO[1], chunk({"content": "x"}, index=4)])


LATE = [cut_late, half_closed, not_json, huge_frame, error_in_stream, no_reason, another_choice]


@pytest.mark.parametrize("fault", LATE)
@pytest.mark.parametrize("streams", [True, False])
async def test_a_fault_after_the_first_token_ends_the_request_once(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    ledger: FakeLedger,
    fault: Any,
    streams: bool,
) -> None:
    upstream.answer = fault
    answer = await chat(client, stream=streams)
    if streams:
        *begun, last = answer.chunks
        assert (answer.status, last["error"]["code"]) == (200, "upstream_failed")
        assert any(one["choices"][0]["delta"].get("content") == "Hel" for one in begun)
    else:
        assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert len(upstream.asked) == 1
    (settled,) = ledger.settled
    assert settled.outcome == "upstream_failed"
    assert settled.completion_tokens >= 1


def html(asked: Asked, wire: Wire) -> None:
    wire.whole(200, b"<html>", "text/html")


def error_with_200(asked: Asked, wire: Wire) -> None:
    wire.json(200, {"error": {"message": "no", "type": "overloaded_error"}})


@pytest.mark.parametrize(
    ("fault", "status"), [(cut_early, 503), (html, 502), (error_with_200, 503)]
)
@pytest.mark.usefixtures("far")
async def test_a_fault_before_the_first_token_is_an_error_and_free(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger, fault: Any, status: int
) -> None:
    upstream.answer = fault
    answer = await chat(client, stream=True)
    assert answer.status == status
    assert [settled.prompt_tokens for settled in ledger.settled] == [0]


@pytest.mark.slow
async def test_an_upstream_that_is_away_or_silent(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    def silent(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event(chunk({"role": "assistant"}))
        assert wire.wait_for_hang_up()

    def stalls(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event(HELLO[1])
        for _ in range(60):
            wire.part(b": still here\n\n")
            if wire.connection.fileno() < 0:
                return
            threading.Event().wait(0.1)

    serve(catalogue, far, first_token_timeout_s=1, token_timeout_s=1)
    upstream.answer = silent
    assert (await chat(client)).error["code"] == "upstream_failed"
    upstream.answer = stalls
    assert (await chat(client)).error["code"] == "upstream_failed"
    serve(catalogue, far, url="http://127.0.0.1:9/v1")
    answer = await chat(client)
    assert (answer.status, answer.error["code"]) == (503, "upstream_unavailable")


async def test_a_sick_upstream_is_left_out_until_it_answers_a_probe(
    client: AsgiClient,
    gateway: Gateway,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.gateway.upstreams.links.PROBE_AFTER_S", 0.02)

    def num(method: str) -> int:
        return sum(asked.method == method for asked in upstream.asked)

    def offline(asked: Asked, wire: Wire) -> None:
        cut_early(asked, wire) if asked.body else wire.cut()

    async def answers_probes(answer: Callable[[Asked, Wire], None]) -> None:
        upstream.answer = lambda asked, wire: (
            answer(asked, wire) if asked.body else wire.json(404, {"error": "no list of models"})
        )
        await until(lambda: not gateway.upstreams.left_out())

    upstream.answer = lambda asked, wire: wire.json(400, {"error": {"message": "yours"}})
    for _ in range(MAX_FAILURES):
        assert (await chat(client)).status == 400
    assert (await client.get("/health")).status == 200
    upstream.answer = offline
    for _ in range(MAX_FAILURES):
        assert (await chat(client)).status == 503
    num_asked, num_probes = num("POST"), num("GET")
    refused = await chat(client)
    health = await client.get("/health", headers=OPERATOR)
    assert (health.status, health.json["status"]) == (503, "unhealthy")
    assert "upstream_unavailable" in [one["code"] for one in health.json["reasons"]]
    assert refused.status == 503 and "retry-after" in refused.headers
    await until(lambda: num("GET") > num_probes + 2)
    assert "left out" in refused.error["message"]
    assert "left out" in (await chat(client)).error["message"]
    assert num("POST") == num_asked
    await answers_probes(cut_early)
    upstream.answer = offline
    assert (await client.get("/health")).status == 200, "a balancer sends requests again"
    assert "left out" not in (await chat(client)).error["message"]
    assert "left out" in (await chat(client)).error["message"], "one failure was enough"
    goes_on = threading.Event()
    await answers_probes(paused(goes_on))
    trial = client.open("POST", "/v1/chat/completions", {**CHAT, "stream": True})
    await trial.until(b'"Hel"')
    upstream.answer = lambda asked, wire: wire.stream(HELLO)
    assert (await chat(client)).status == 200, "it is well from its first token on"
    goes_on.set()
    assert (await trial.finish()).status == 200


async def test_a_request_that_an_upstream_sends_back_is_sent_round_no_more(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry
) -> None:
    answer = await client.post("/v1/chat/completions", CHAT, headers={"via": "1.1 proxy"})
    assert answer.status == 200
    via = upstream.asked[0].headers["via"]
    assert via.startswith("1.1 proxy, 1.1 helexa-")
    upstream.asked.clear()
    for headers in ({"via": via}, {"via": f"{via}, 1.1 another"}):
        answer = await client.post("/v1/chat/completions", CHAT, headers=headers)
        assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
        assert "sent it back" in answer.error["message"]
    assert not upstream.asked
