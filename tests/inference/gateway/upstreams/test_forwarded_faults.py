"""An upstream's errors and faults: each ends its request once, by its meaning. Embeddings and
counts of a prompt's tokens that an upstream answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from inference.gateway.upstreams.links import MAX_FAILURES
from tests.cases import each_case
from tests.inference.gateway.bodies import until
from tests.inference.gateway.conftest import OPERATOR
from tests.inference.gateway.upstreams.conftest import (
    CHAT,
    HELLO,
    SECRET,
    SPOKEN_BY,
    Spoken,
    UpstreamRig,
    cut_early,
    paused,
)
from tests.servers.fake_upstream import Asked, Wire

LONG = "prompt is too long: 208310 tokens > 200000 maximum"
EXCEEDS = "the input length exceeds the context length"
OVERLOADED = {"type": "overloaded_error", "message": "full"}
ERRORS: list[tuple[str, int, Any, dict[str, str], int, str]] = [
    ("openai", 422, {"message": "no"}, {}, 400, "upstream_refused"),
    ("openai", 429, {"message": "slow down"}, {"retry_after": "7"}, 429, "rate_limit_exceeded"),
    ("openai", 401, {"message": f"wrong key {SECRET}"}, {}, 502, "upstream_failed"),
    ("openai", 302, {}, {"location": "http://169.254.169.254/"}, 502, "upstream_failed"),
    ("anthropic", 400, {"message": LONG}, {}, 400, "context_length_exceeded"),
    ("anthropic", 529, OVERLOADED, {"retry_after": "9"}, 503, "upstream_unavailable"),
    ("ollama", 400, EXCEEDS, {}, 400, "context_length_exceeded"),
    ("ollama", 500, f"boom {SECRET}", {}, 502, "upstream_failed"),
    ("ollama", 503, "server busy, please try again", {}, 503, "upstream_unavailable"),
]
Fault = Callable[[Spoken, Wire], None]
EMBEDDINGS, COUNT = "/v1/embeddings", "/v1/messages/count_tokens"
ASKED = {"model": "far", "input": ["a", "b"]}


@each_case("case", ERRORS, ids=[f"{one[0]} {one[1]} {one[-1]}" for one in ERRORS])
async def test_an_error_keeps_its_meaning(rig: UpstreamRig, case: Any) -> None:
    dialect, status, error, headers, ours, code = case
    rig.forget()
    SPOKEN_BY[dialect].serve(rig)
    rig.answer(status, {"error": error, "key": SECRET}, **headers)
    answer = await rig.chat(stream=True)
    assert (answer.status, answer.error["code"]) == (ours, code)
    usual = {429: "1", 503: "5"}.get(ours)
    assert answer.headers.get("retry-after") == headers.get("retry_after", usual)
    assert SECRET not in answer.body.decode()
    assert len(rig.upstream.asked) == 1
    settled = rig.settled
    assert (settled.outcome, settled.prompt_tokens, settled.cost_micro_usd) == (code, 0, 0)


def cut_late(spoken: Spoken, wire: Wire) -> None:
    spoken.begin(wire)
    wire.cut()


def half_closed(spoken: Spoken, wire: Wire) -> None:
    spoken.begin(wire)
    wire.half_close()
    wire.wait_for_hang_up()


def error_in_stream(spoken: Spoken, wire: Wire) -> None:
    """The error comes in one piece with the text."""
    spoken.begin(wire, spoken.frame(spoken.error))
    wire.end_stream(b"")


def never_ends(spoken: Spoken, wire: Wire) -> None:
    spoken.stream(wire, spoken.frames[: spoken.num_begun])


def huge_frame(spoken: Spoken, wire: Wire) -> None:
    spoken.begin(wire)
    for _ in range(64):
        wire.part(b"data: " + b"x" * 1024 * 1024)


def too_many_bytes(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    for _ in range(9):
        wire.part(b": " + b"x" * 1024 * 1024 + b"\n\n")
    wire.stream(HELLO)


LATE: list[Fault] = [cut_late, half_closed, error_in_stream, never_ends]
LATE_BY = [*((dialect, fault) for dialect in SPOKEN_BY for fault in LATE), ("openai", huge_frame)]


@each_case(
    ("dialect", "fault"), LATE_BY, ids=[f"{dialect} {fault.__name__}" for dialect, fault in LATE_BY]
)
async def test_a_fault_after_a_token(rig: UpstreamRig, dialect: str, fault: Fault) -> None:
    spoken = SPOKEN_BY[dialect]
    spoken.serve(rig)
    rig.upstream.answer = lambda asked, wire: fault(spoken, wire)
    is_overloaded = (dialect, fault) == ("anthropic", error_in_stream)
    code = "upstream_unavailable" if is_overloaded else "upstream_failed"
    for streams in (True, False):
        rig.forget()
        answer = await rig.chat(stream=streams)
        if streams:
            *begun, last = answer.chunks
            assert (answer.status, last["error"]["code"]) == (200, code)
            assert any(one["choices"][0]["delta"].get("content") == "Hel" for one in begun)
        else:
            assert (answer.status, answer.error["code"]) == (503 if is_overloaded else 502, code)
        assert len(rig.upstream.asked) == 1
        assert (rig.settled.outcome, rig.settled.is_failure) == (code, True)
        assert rig.settled.completion_tokens >= 1


@each_case(
    ("fault", "status"),
    [
        (cut_early, 503),
        (lambda asked, wire: wire.whole(200, b"<html>", "text/html"), 502),
        (lambda asked, wire: wire.json(200, {"error": {"type": "overloaded_error"}}), 503),
        (too_many_bytes, 502),
        (None, 503),
    ],
    ids=["cut", "a page", "an error with 200", "more bytes than tokens can have", "offline"],
)
async def test_a_fault_before_the_first_token_is_an_error_and_free(
    rig: UpstreamRig, fault: Callable[[Asked, Wire], None] | None, status: int
) -> None:
    rig.forget()
    if fault is None:
        rig.serve(url="http://127.0.0.1:9/v1")
    else:
        rig.upstream.answer = fault
    assert (await rig.chat(stream=True, max_tokens=1)).status == status
    assert rig.settled.prompt_tokens == 0


@pytest.mark.slow
async def test_an_upstream_that_is_silent_is_given_up(rig: UpstreamRig) -> None:
    def stalls(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event(HELLO[0] if rig.upstream.asked[1:] else HELLO[1])
        while True:  # until the connection is closed
            wire.part(b": still here\n\n")
            threading.Event().wait(0.1)

    rig.serve(first_token_timeout_s=1, token_timeout_s=1)
    rig.upstream.answer = stalls
    for _ in range(2):
        assert (await rig.chat()).error["code"] == "upstream_failed"


async def test_a_sick_upstream_is_probed(rig: UpstreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.gateway.upstreams.links.PROBE_AFTER_S", 0.02)
    upstream = rig.upstream

    def num(method: str) -> int:
        return sum(asked.method == method for asked in upstream.asked)

    def offline(asked: Asked, wire: Wire) -> None:
        if asked.body or num("GET") % 2:
            wire.cut()
        else:
            wire.json(500, {"error": "broken"})

    async def answers_probes(answer: Callable[[Asked, Wire], None]) -> None:
        upstream.answer = lambda asked, wire: (
            answer(asked, wire) if asked.body else wire.json(404, {"error": "no list of models"})
        )
        await until(lambda: not rig.gateway.upstreams.left_out())

    rig.answer(400, {"error": {"message": "yours"}})
    for _ in range(MAX_FAILURES):
        assert (await rig.chat()).status == 400
    assert (await rig.client.get("/health")).status == 200
    upstream.answer = offline
    for _ in range(MAX_FAILURES):
        assert (await rig.chat()).status == 503
    num_asked, num_probes = num("POST"), num("GET")
    refused = await rig.chat()
    health = await rig.client.get("/health", headers=OPERATOR)
    assert (health.status, health.json["status"]) == (503, "unhealthy")
    assert "upstream_unavailable" in [one["code"] for one in health.json["reasons"]]
    assert refused.status == 503 and "retry-after" in refused.headers
    assert "left out" in refused.error["message"]
    await until(lambda: num("GET") > num_probes + 2)
    assert "left out" in (await rig.chat()).error["message"]
    assert num("POST") == num_asked
    await answers_probes(cut_early)
    upstream.answer = offline
    assert (await rig.client.get("/health")).status == 200, "a balancer sends requests again"
    assert "left out" not in (await rig.chat()).error["message"]
    assert "left out" in (await rig.chat()).error["message"], "one failure was enough"
    goes_on = threading.Event()
    await answers_probes(paused(goes_on))
    trial = rig.open_chat(stream=True)
    await trial.until(b'"Hel"')
    upstream.answer = lambda asked, wire: wire.stream(HELLO)
    assert (await rig.chat()).status == 200, "it is well from its first token on"
    goes_on.set()
    assert (await trial.finish()).status == 200


def embeds(asked: Asked, wire: Wire) -> None:
    vectors = [[0.5, float(number)] for number in range(len(asked.json["input"]))]
    ollamas = {"embeddings": vectors, "prompt_eval_count": 5}
    data = [{"index": number, "embedding": vector} for number, vector in enumerate(vectors)]
    openais = {"object": "list", "data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    wire.json(200, ollamas if asked.path == "/api/embed" else openais)


async def test_embeddings(rig: UpstreamRig) -> None:
    for dialect, path, more in (
        ("ollama", "/api/embed", {"truncate": False}),
        ("openai", EMBEDDINGS, {"encoding_format": "base64"}),
    ):
        rig.forget()
        SPOKEN_BY[dialect].serve(rig)
        rig.upstream.answer = embeds
        answer = await rig.client.post(EMBEDDINGS, {**ASKED, "dimensions": 2})
        assert [one["embedding"] for one in answer.json["data"]] == [[0.5, 0.0], [0.5, 1.0]]
        assert answer.json["usage"]["prompt_tokens"] == 5
        (asked,) = rig.upstream.asked
        assert (asked.path, asked.headers["authorization"]) == (path, f"Bearer {SECRET}")
        assert asked.json == {"model": "org/m", "input": ["a", "b"], "dimensions": 2, **more}
        settled = rig.settled
        assert (settled.neuron, settled.cost_micro_usd) == ("upstream:box", 5)
        assert (settled.prompt_tokens, settled.completion_tokens) == (5, 0)
    ollama = await rig.client.post("/api/embed", {"model": "far", "input": "a"})
    assert (ollama.json["embeddings"], ollama.json["prompt_eval_count"]) == ([[1.0, 0.0]], 5)
    for answers, status, code in (
        (lambda asked, wire: wire.json(200, {"data": []}), 502, "upstream_failed"),
        (cut_early, 503, "upstream_unavailable"),
    ):
        rig.forget()
        rig.upstream.answer = answers
        refused = await rig.client.post(EMBEDDINGS, ASKED)
        assert (refused.status, refused.error["code"]) == (status, code)
        assert (rig.settled.outcome, rig.settled.cost_micro_usd) == (code, 0)
    rig.forget()
    rig.upstream.answer = embeds
    rig.ledger.cap_tokens = 100
    rig.directory.budgets = (1,)
    assert (await rig.client.post(EMBEDDINGS, ASKED)).status == 200
    long = {"model": "far", "input": "x" * 200}
    assert (await rig.client.post(EMBEDDINGS, long)).status == 429
    assert not rig.ledger.held
    rig.serve(dialect="anthropic")
    refused = await rig.client.post(EMBEDDINGS, ASKED)
    assert (refused.status, refused.error["param"]) == (400, "model")
    assert "anthropic" in refused.error["message"]
    assert len(rig.upstream.asked) == 1
    rig.list(targets=("box/org/m when ready",))
    assert (await rig.client.post(EMBEDDINGS, ASKED)).status == 200


async def test_prompts_are_counted(rig: UpstreamRig) -> None:
    asked = {**CHAT, "system": "Be brief."}
    SPOKEN_BY["anthropic"].serve(rig)
    rig.answer(200, {"input_tokens": 23})
    assert (await rig.client.post(COUNT, asked)).json["input_tokens"] == 23
    sent = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    body = {"model": "org/m", "system": "Be brief.", "messages": sent}
    assert [(one.path, one.json) for one in rig.upstream.asked] == [(COUNT, body)]
    of_openais = {"model": "far", "input": "hi"}
    counted = await rig.client.post("/v1/responses/input_tokens", of_openais)
    assert counted.json["input_tokens"] == 23
    assert "max_tokens" not in rig.upstream.asked[-1].json
    assert not [one for one in rig.ledger.settled if one.cost_micro_usd]
    SPOKEN_BY["openai"].serve(rig)
    rig.answer(200, {"count": 9, "max_model_len": 4096, "tokens": list(range(9))})
    assert (await rig.client.post(COUNT, asked)).json["input_tokens"] == 9
    assert rig.upstream.asked[-1].path == "/tokenize", "beside /v1"
    for status, answer, refusal in (
        (404, {"error": {"message": "no such path"}}, (502, "api_error")),
        (200, {"tokens": []}, (502, "api_error")),  # llama-server, which reads no chat there
        (200, {"count": -1}, (502, "api_error")),
        (200, {"error": {"message": "no", "code": 400}}, (400, "invalid_request_error")),
        (503, {}, (503, "overloaded_error")),
    ):
        rig.answer(status, answer)
        refused = await rig.client.post(COUNT, CHAT)
        assert (refused.status, refused.error["type"]) == refusal
    rig.forget()
    SPOKEN_BY["ollama"].serve(rig)
    refused = await rig.client.post(COUNT, CHAT)
    assert (refused.status, rig.upstream.asked) == (400, []), "there is no such path"
    assert "served by an upstream" in refused.error["message"]
