"""Requests that an upstream serves: forwarded, streamed, in its places and with its key, and how
many copies of a large one there are."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import tracemalloc

import orjson
import pytest
from django.conf import settings

from fleet.upstreams.secret import seal
from inference.gateway.request.tokens import PromptRatios
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.upstreams.forwarding import (
    CHAT,
    HELLO,
    PATH,
    UpstreamRig,
    cut_early,
    paused,
)
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, Wire, usage


async def test_a_stream_is_forwarded_as_it_comes(rig: UpstreamRig) -> None:
    goes_on = threading.Event()
    rig.upstream.answer = paused(goes_on)
    exchange = rig.open_chat(stream=True, stream_options={"include_usage": True})
    await exchange.until(b'"Hel"')
    goes_on.set()
    await exchange.finish()
    *_, last, done = exchange.chunks
    assert (last["usage"]["prompt_tokens"], done) == (7, "[DONE]")
    rig.upstream.answer = lambda asked, wire: wire.stream(HELLO)
    rig.serve(concurrency=1)  # the next one waits for the connection of the last
    for _ in range(3):
        assert (await rig.chat()).status == 200
    assert rig.upstream.num_connections <= 2


async def test_what_prompts_cost_is_learnt_from_its_usage(rig: UpstreamRig) -> None:
    """Later requests reserve what such prompts have, not the most that they can have."""

    rig.upstream.answer = lambda asked, wire: wire.stream(HELLO)
    assert (await rig.chat()).status == 200
    fresh, learnt = (
        [ratios.near("far", 2**size) for size in range(16)]
        for ratios in (PromptRatios(), rig.gateway.limits.ratios)
    )
    changed = [(old, new) for old, new in zip(fresh, learnt, strict=True) if old != new]
    assert len(changed) == 1 and changed[0][1] < changed[0][0]


async def test_no_more_than_its_places_are_used(rig: UpstreamRig, make_client: MakeClient) -> None:
    goes_on = threading.Event()
    most = num_open = 0
    counting = threading.Lock()

    def counted(asked: Asked, wire: Wire) -> None:
        nonlocal most, num_open
        with counting:
            num_open += 1
            most = max(most, num_open)
        assert goes_on.wait(60)
        with counting:
            num_open -= 1
        wire.stream(HELLO)

    rig.upstream.answer = counted
    rig.serve(concurrency=2)
    client = make_client(max_waiting_requests=3)
    open_ones = [client.open("POST", PATH, CHAT) for _ in range(6)]
    running = [one.running for one in open_ones]
    await asyncio.wait(running, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [one.error["code"] for one in open_ones if one.running.done()] == ["queue_full"]
    await until(lambda: num_open == 2)
    goes_on.set()
    answers = [await one.finish() for one in open_ones]
    assert sorted(one.status for one in answers) == [200] * 5 + [503]
    assert most == 2


async def test_requests_that_must_stay_never_leave(rig: UpstreamRig) -> None:
    rig.serve(leaves_network=True)
    for path in (PATH, "/v1/messages", "/api/chat", "/v1/embeddings"):
        body = {"model": "far", "input": "a"} if path == "/v1/embeddings" else CHAT
        more = {"max_tokens": 5} if path == "/v1/messages" else {}
        assert (await rig.client.post(path, {**body, **more})).status == 403, path
    assert not rig.upstream.asked
    (entry,) = rig.catalogue.listed
    rig.list(upstream=entry.upstream, may_leave_network=True)
    assert (await rig.chat()).status == 200


async def test_another_key_is_used_at_once_and_one_that_cannot_be_read_is_no_answer(
    rig: UpstreamRig,
) -> None:
    await rig.chat()
    rig.serve(sealed_secret=seal("sk-new", settings.SECRET_KEY))
    await rig.chat()
    assert rig.upstream.asked[-1].headers["authorization"] == "Bearer sk-new"
    rig.serve(sealed_secret=seal("sk-new", "another signing key"))
    answer = await rig.chat()
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    rig.list(upstream=None)
    assert (await rig.chat()).error["code"] == "upstream_failed"


async def test_usage_that_is_missing_or_impossible_is_estimated_and_marked(
    rig: UpstreamRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "helexa.requests")
    for end in ([], [usage(10**9, 10**9)], [{"usage": {"prompt_tokens": -1}}]):
        rig.upstream.answer = lambda asked, wire, end=end: wire.stream([*HELLO[:4], *end])
        await rig.chat(max_tokens=50)
    assert [settled.completion_tokens for settled in rig.ledger.settled] == [2, 2, 2]
    asked_bytes = len(json.dumps(CHAT["messages"]))
    for settled in rig.ledger.settled:  # four bytes a token, whatever a template may add
        assert asked_bytes / 6 < settled.prompt_tokens <= asked_bytes / 3
    lines = [record.getMessage() for record in caplog.records if record.name == "helexa.requests"]
    assert [" estimated" in line for line in lines] == [True, True, True]
    rig.upstream.answer = lambda asked, wire: wire.stream(HELLO)
    await rig.chat(max_tokens=50)
    assert " estimated" not in caplog.records[-1].getMessage()
    rig.upstream.answer = cut_early
    await rig.chat()
    assert " estimated" not in caplog.records[-1].getMessage()


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


async def test_what_is_not_translated_is_refused_by_name(rig: UpstreamRig) -> None:
    fields = {"prompt_logprobs": 1, "return_token_ids": True, "guided_regex": "a+"}
    for name, value in fields.items():
        answer = await rig.chat(**{name: value})
        assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
        assert answer.error["param"] == name
    for path, body in {
        "/v1/rerank": {"query": "a", "documents": ["b"]},
        "/tokenize": {"prompt": "a"},
    }.items():
        answer = await rig.client.post(path, {"model": "far", **body})
        assert answer.status == 400
        assert "served by an upstream" in answer.error["message"]
    assert not rig.upstream.asked


async def test_the_model_is_listed_as_ready(rig: UpstreamRig) -> None:
    get = rig.client.get
    (card,) = (await get("/v1/models")).json["data"]
    assert (card["id"], card["status"]) == ("far", "ready")
    assert [one["name"] for one in (await get("/api/tags")).json["models"]] == ["far"]
    assert (await get("/api/ps")).status == 200
    assert (await rig.client.post("/api/show", {"model": "far"})).status == 200
    anthropics = await get("/v1/models/far", headers={"anthropic-version": "2023-06-01"})
    assert anthropics.json["id"] == "far"
    assert (await get("/health")).status == 200
    rig.offer("speech")
    (card,) = (await get("/v1/models")).json["data"]
    assert (card["id"], card["status"], card["capabilities"]) == ("far", "ready", ["speech"])


async def test_a_request_that_an_upstream_sends_back_is_sent_round_no_more(
    rig: UpstreamRig,
) -> None:
    answer = await rig.client.post(PATH, CHAT, headers={"via": "1.1 proxy"})
    assert answer.status == 200
    via = rig.upstream.asked[0].headers["via"]
    assert via.startswith("1.1 proxy, 1.1 helexa-")
    rig.upstream.asked.clear()
    for headers in ({"via": via}, {"via": f"{via}, 1.1 another"}):
        answer = await rig.client.post(PATH, CHAT, headers=headers)
        assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
        assert "sent it back" in answer.error["message"]
    assert not rig.upstream.asked


async def test_of_a_prompt_of_100_000_tokens_there_are_two_copies_while_it_is_answered(
    rig: UpstreamRig, make_client: MakeClient
) -> None:
    """The request's text and the upstream's body, beside what the upstream itself has read of it.
    Resident memory does not show so little, so allocations of its size are counted."""
    body = orjson.dumps({**CHAT, "messages": [{"role": "user", "content": "word " * 80_000}]})
    num_copies: list[int] = []

    def counted(asked: Asked, wire: Wire) -> None:
        num_asked_bytes = len(asked.body)
        assert num_asked_bytes > 400_000
        traces = tracemalloc.take_snapshot().traces
        num_copies.append(sum(trace.size >= len(body) // 2 for trace in traces))
        wire.stream(HELLO)

    rig.upstream.answer = counted
    client = make_client(max_body_bytes=1_000_000)
    tracemalloc.start()
    try:
        answer = await client.post(PATH, parts=[body])
    finally:
        tracemalloc.stop()
    assert answer.status == 200, answer.body[:500]
    assert num_copies == [3]
