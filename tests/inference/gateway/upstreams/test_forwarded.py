"""Requests that an upstream serves: forwarded, streamed, in its places and with its key; and every
client's dialect over upstreams of each. Each field and each answer of a dialect is translated in
``tests/inference/wire/upstream``."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from django.conf import settings

from fleet.upstreams import seal
from inference.gateway.request.tokens import PromptRatios
from tests.inference.gateway.bodies import until
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.upstreams.conftest import (
    CHAT,
    HELLO,
    PATH,
    SPOKEN_BY,
    Spoken,
    UpstreamRig,
    cut_early,
    paused,
    text_of,
)
from tests.servers.fake_upstream import Asked, Wire, usage

TURNS: Any = CHAT["messages"]


async def test_streams_and_usage(rig: UpstreamRig, caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()
    rig.upstream.answer = paused(goes_on)
    exchange = rig.open_chat(stream=True, stream_options={"include_usage": True})
    await exchange.until(b'"Hel"')
    goes_on.set()
    *_, last, done = (await exchange.finish()).chunks
    assert (last["usage"]["prompt_tokens"], done) == (7, "[DONE]")
    fresh, learnt = (
        [ratios.near("far", 2**size) for size in range(16)]
        for ratios in (PromptRatios(), rig.gateway.limits.ratios)
    )
    changed = [(old, new) for old, new in zip(fresh, learnt, strict=True) if old != new]
    assert len(changed) == 1 and changed[0][1] < changed[0][0]
    rig.upstream.answer = lambda asked, wire: wire.stream(HELLO)
    rig.serve(concurrency=1)  # the next one waits for the connection of the last
    for _ in range(3):
        assert (await rig.chat()).status == 200
    assert rig.upstream.num_connections <= 2
    rig.forget()
    # Impossible usage.
    caplog.set_level(logging.INFO, "helexa.requests")
    for end in ([], [usage(10**9, 10**9)], [{"usage": {"prompt_tokens": -1}}], HELLO[4:]):
        rig.upstream.answer = lambda asked, wire, end=end: wire.stream([*HELLO[:4], *end])
        await rig.chat(max_tokens=50)
    assert [settled.completion_tokens for settled in rig.ledger.settled] == [2, 2, 2, 2]
    asked_bytes = len(json.dumps(CHAT["messages"]))
    for settled in rig.ledger.settled[:3]:  # four bytes a token, whatever a template may add
        assert asked_bytes / 6 < settled.prompt_tokens <= asked_bytes / 3
    rig.upstream.answer = cut_early
    await rig.chat()
    lines = [record.getMessage() for record in caplog.records if record.name == "helexa.requests"]
    assert [" estimated" in line for line in lines] == [True, True, True, False, False]


async def test_no_more_than_its_places_are_used(rig: UpstreamRig, make_client: MakeClient) -> None:
    goes_on = threading.Event()

    def waits(asked: Asked, wire: Wire) -> None:
        assert goes_on.wait(60)
        wire.stream(HELLO)

    rig.upstream.answer = waits
    rig.serve(concurrency=2)
    client = make_client(max_waiting_requests=3)
    open_ones = [client.open("POST", PATH, CHAT) for _ in range(6)]
    running = [one.running for one in open_ones]
    await asyncio.wait(running, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [one.error["code"] for one in open_ones if one.running.done()] == ["queue_full"]
    await until(lambda: len(rig.upstream.asked) == 2)
    await asyncio.sleep(0.05)
    assert len(rig.upstream.asked) == 2
    goes_on.set()
    answers = [await one.finish() for one in open_ones]
    assert sorted(one.status for one in answers) == [200] * 5 + [503]


async def test_keys_and_what_is_not_translated(rig: UpstreamRig) -> None:
    answer = await rig.chat(guided_regex="a+")
    assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
    assert answer.error["param"] == "guided_regex"
    for path, body in (
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/tokenize", {"prompt": "a"}),
    ):
        answer = await rig.client.post(path, {"model": "far", **body})
        assert answer.status == 400
        assert "served by an upstream" in answer.error["message"]
    assert not rig.upstream.asked
    rig.serve(sealed_secret=seal("sk-new", settings.SECRET_KEY))
    await rig.chat()
    assert rig.upstream.asked[-1].headers["authorization"] == "Bearer sk-new"
    rig.serve(sealed_secret=seal("sk-new", "another signing key"))
    answer = await rig.chat()
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    rig.list(upstream=None)
    assert (await rig.chat()).error["code"] == "upstream_failed"


async def test_a_cap_holds_without_a_tokenizer(rig: UpstreamRig) -> None:
    rig.directory.budgets = (1,)
    rig.ledger.cap_tokens = 1_000
    assert (await rig.chat()).status == 200
    (reserved,) = rig.ledger.reserved
    assert reserved.prompt_tokens >= len(json.dumps(CHAT["messages"]))
    assert rig.upstream.asked[0].json["max_tokens"] <= 1_000
    refused = await rig.chat(messages=[{"role": "user", "content": "x" * 2_000}])
    assert refused.status == 429
    function = {"name": "f", "description": "x" * 2_000}
    assert (await rig.chat(tools=[{"type": "function", "function": function}])).status == 429
    assert len(rig.upstream.asked) == 1
    assert not rig.ledger.held


async def test_the_model_is_listed_as_ready(rig: UpstreamRig) -> None:
    for task, capabilities in (("text", None), ("speech", ["speech"])):
        rig.offer(task)
        (card,) = (await rig.client.get("/v1/models")).json["data"]
        assert (card["id"], card["status"]) == ("far", "ready")
        assert capabilities in (None, card["capabilities"])
        assert (await rig.client.get("/health")).status == 200
        for path in ("/api/ps", "/api/tags", "/v1/models/far"):
            assert (await rig.client.get(path)).status == 200
        assert (await rig.client.post("/api/show", {"model": "far"})).status == 200


@pytest.fixture(params=SPOKEN_BY)
def spoken(rig: UpstreamRig, request: pytest.FixtureRequest) -> Spoken:
    """The upstream speaks that dialect."""
    dialect: Spoken = SPOKEN_BY[request.param]
    dialect.serve(rig, max_context_tokens=4_096)
    return dialect


@pytest.mark.usefixtures("neuron")
async def test_every_client_gets_the_same_answer(
    rig: UpstreamRig,
    spoken: Spoken,
    sdk: openai.AsyncOpenAI,
    anthropic_sdk: anthropic.AsyncAnthropic,
) -> None:
    answer = await rig.chat(max_tokens=9, stop=["x"], user="ann")
    assert text_of(answer) == "Hello"
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert answer.json["usage"]["prompt_tokens"] == 7
    (asked,) = rig.upstream.asked
    assert (asked.path, asked.json["model"], asked.json["stream"]) == (spoken.path, "org/m", True)
    assert asked.json.get("max_tokens") == 9 or asked.json["options"]["num_predict"] == 9
    assert asked.json["messages"][0]["role"] == "user" and "user" not in asked.json
    assert spoken.key.items() <= asked.headers.items()
    assert ("authorization" in asked.headers) == ("authorization" in spoken.key)
    settled = rig.settled
    assert (settled.prompt_tokens, settled.completion_tokens) == (7, 2)
    assert settled.cached_tokens == spoken.num_cached
    assert (settled.neuron, settled.cost_micro_usd) == ("upstream:box", 7 + 2 * 2)
    response = await sdk.responses.create(model="far", input="hi", store=False)
    assert response.output_text == "Hello"
    assert response.usage is not None and response.usage.input_tokens == 7
    async with anthropic_sdk.messages.stream(
        model="far", max_tokens=9, system="short", messages=TURNS
    ) as stream:
        assert await stream.get_final_text() == "Hello"
    assert "short" in json.dumps(rig.upstream.asked[-1].json)
    ollama = await rig.client.post("/api/chat", {**CHAT, "stream": False})
    assert (ollama.json["message"]["content"], ollama.json["eval_count"]) == ("Hello", 2)
    assert (await rig.client.post("/api/generate", {"model": "far"})).status == 200
    assert {asked.path for asked in rig.upstream.asked} == {spoken.path}


async def test_an_answer_may_be_whole_or_left(rig: UpstreamRig, spoken: Spoken) -> None:
    noticed = threading.Event()

    def continues(asked: Asked, wire: Wire) -> None:
        spoken.begin(wire)
        if wire.wait_for_hang_up():
            noticed.set()

    rig.answer(200, spoken.whole)
    answer = await rig.chat()
    assert (text_of(answer), answer.json["usage"]["prompt_tokens"]) == ("Hello", 7)
    rig.upstream.answer = continues
    exchange = rig.open_chat(stream=True)
    await exchange.until(b"Hel")
    exchange.leave()
    await exchange.finish()
    assert await asyncio.to_thread(noticed.wait, 60)
    settled = [(one.outcome, one.completion_tokens) for one in rig.ledger.settled]
    assert settled == [("finished", 2), ("cancelled", 1)]


async def test_completions_and_requests_that_must_stay(rig: UpstreamRig) -> None:
    choices = [{"index": i, "text": f"{i}!", "finish_reason": "length"} for i in range(2)]
    answered = [{"choices": [one]} for one in choices] + [usage(4, 2)]
    rig.upstream.answer = lambda asked, wire: wire.stream(answered)
    body: dict[str, Any] = {"model": "far", "prompt": ["a", "b"]}
    answer = await rig.client.post("/v1/completions", body)
    assert [choice["text"] for choice in answer.json["choices"]] == ["0!", "1!"]
    (asked,) = rig.upstream.asked
    assert (asked.path, asked.json["prompt"]) == ("/v1/completions", ["a", "b"])
    SPOKEN_BY["anthropic"].serve(rig)
    refused = await rig.client.post("/v1/completions", body | {"prompt": "a"})
    assert (refused.status, refused.error["param"]) == (400, "prompt")
    rig.forget()
    # None goes round.
    rig.upstream.answer = lambda asked, wire: wire.stream(HELLO)
    outside = replace(rig.row, leaves_network=True)
    rig.list(upstream=outside)
    assert (await rig.chat()).error["code"] == "network_not_allowed"
    rig.list(upstream=outside, may_leave_network=True)
    assert (await rig.client.post(PATH, CHAT, headers={"via": "1.1 proxy"})).status == 200
    (asked,) = rig.upstream.asked
    via = asked.headers["via"]
    assert via.startswith("1.1 proxy, 1.1 helexa-")
    for came in (via, f"{via}, 1.1 another"):
        answer = await rig.client.post(PATH, CHAT, headers={"via": came})
        assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
        assert "sent it back" in answer.error["message"]
    assert rig.upstream.asked == [asked]
