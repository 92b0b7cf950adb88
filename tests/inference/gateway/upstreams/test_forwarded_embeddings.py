"""Embeddings and counts of a prompt's tokens that an upstream answers."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.cases import each_case
from tests.inference.gateway.upstreams.forwarding import (
    CHAT,
    RED_PIXELS,
    SECRET,
    UpstreamRig,
    cut_early,
)
from tests.inference.gateway.upstreams.spoken import SPOKEN_BY
from tests.servers.fake_upstream import Asked, Wire

EMBEDDINGS, COUNT = "/v1/embeddings", "/v1/messages/count_tokens"
ASKED = {"model": "far", "input": ["a", "b"]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def embeds(asked: Asked, wire: Wire) -> None:
    if asked.path == "/api/embed":
        wire.json(200, {"embeddings": [[0.5, 0.0], [0.5, 1.0]], "prompt_eval_count": 5})
        return
    data = [{"index": n, "embedding": [0.5, float(n)]} for n in range(len(asked.json["input"]))]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    wire.json(200, {"object": "list", "data": data, "usage": usage})


@each_case(
    ("dialect", "path", "body"),
    [
        ("openai", EMBEDDINGS, {"encoding_format": "base64", "dimensions": 2}),
        ("ollama", "/api/embed", {"truncate": False, "dimensions": 2}),
    ],
)
async def test_embeddings_are_forwarded_and_billed(
    rig: UpstreamRig, dialect: str, path: str, body: dict[str, Any]
) -> None:
    rig.forget()
    SPOKEN_BY[dialect].serve(rig)
    rig.upstream.answer = embeds
    answer = await rig.client.post(EMBEDDINGS, {**ASKED, "dimensions": 2})
    assert [one["embedding"] for one in answer.json["data"]] == [[0.5, 0.0], [0.5, 1.0]]
    assert answer.json["usage"]["prompt_tokens"] == 5
    (asked,) = rig.upstream.asked
    assert (asked.path, asked.headers["authorization"]) == (path, f"Bearer {SECRET}")
    assert asked.json == {"model": "org/m", "input": ["a", "b"], **body}
    settled = rig.settled
    assert (settled.neuron, settled.cost_micro_usd) == ("upstream:box", 5)
    assert (settled.prompt_tokens, settled.completion_tokens) == (5, 0)
    if dialect == "openai":
        ollama = await rig.client.post("/api/embed", {"model": "far", "input": "a"})
        assert (ollama.json["embeddings"], ollama.json["prompt_eval_count"]) == ([[1.0, 0.0]], 5)


async def test_a_cap_holds_and_embeddings_go_to_no_other_dialect(rig: UpstreamRig) -> None:
    rig.upstream.answer = embeds
    rig.cap(100)
    rig.directory.budgets = (1,)
    assert (await rig.client.post(EMBEDDINGS, ASKED)).status == 200
    refused = await rig.client.post(EMBEDDINGS, {"model": "far", "input": "x" * 200})
    assert refused.status == 429
    assert not rig.ledger.held
    rig.serve(dialect="anthropic")
    refused = await rig.client.post(EMBEDDINGS, ASKED)
    assert (refused.status, refused.error["param"]) == (400, "model")
    assert "anthropic" in refused.error["message"]
    assert len(rig.upstream.asked) == 1
    rig.list(targets=("box/org/m when ready",))
    assert (await rig.client.post(EMBEDDINGS, ASKED)).status == 200


@each_case(
    ("answer", "status", "code"),
    [
        (lambda asked, wire: wire.json(200, {"data": []}), 502, "upstream_failed"),
        (lambda asked, wire: wire.json(429, {"error": {}}), 429, "rate_limit_exceeded"),
        (lambda asked, wire: wire.json(302, {}, location="http://x/"), 502, "upstream_failed"),
        (cut_early, 503, "upstream_unavailable"),
    ],
    ids=["no vectors", "429", "302", "cut"],
)
async def test_an_error_keeps_its_meaning_and_is_free(
    rig: UpstreamRig, answer: Any, status: int, code: str
) -> None:
    rig.forget()
    rig.upstream.answer = answer
    refused = await rig.client.post(EMBEDDINGS, ASKED)
    assert (refused.status, refused.error["code"]) == (status, code)
    assert len(rig.upstream.asked) == 1
    assert (rig.settled.outcome, rig.settled.cost_micro_usd) == (code, 0)


@pytest.mark.usefixtures("neuron")
async def test_prompts_are_counted_at_claudes_upstream(
    rig: UpstreamRig, sdk: openai.AsyncOpenAI, anthropic_sdk: anthropic.AsyncAnthropic
) -> None:
    SPOKEN_BY["anthropic"].serve(rig)
    rig.answer(200, {"input_tokens": 23})
    kind, _, data = RED_PIXELS.removeprefix("data:").partition(";base64,")
    source: Any = {"type": "base64", "media_type": kind, "data": data}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "look"}]
    counted = await anthropic_sdk.messages.count_tokens(
        model="far",
        system="Be brief.",
        messages=[{"role": "user", "content": content}],
        tools=[{"name": "f", "input_schema": {"type": "object"}}],
        thinking={"type": "enabled", "budget_tokens": 2048},
    )
    assert counted.input_tokens == 23
    (asked,) = rig.upstream.asked
    assert asked.path == COUNT
    assert asked.json == {
        "model": "org/m",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": content}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 2048},
    }
    of_openais = await sdk.responses.input_tokens.count(model="far", input="hi")
    assert of_openais.input_tokens == 23
    assert "max_tokens" not in rig.upstream.asked[-1].json
    assert not [one for one in rig.ledger.settled if one.cost_micro_usd]


async def test_a_chat_is_counted_as_vllm_counts_it(rig: UpstreamRig) -> None:
    rig.answer(200, {"count": 9, "max_model_len": 4096, "tokens": list(range(9))})
    tool = {"name": "f", "input_schema": SCHEMA}
    answer = await rig.client.post(COUNT, {**CHAT, "tools": [tool], "system": "Be brief."})
    assert (answer.status, answer.json["input_tokens"]) == (200, 9)
    (asked,) = rig.upstream.asked
    assert asked.path == "/tokenize", "beside /v1"
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    called = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    assert asked.json == {"model": "org/m", "messages": turns, "tools": [called]}
    SPOKEN_BY["ollama"].serve(rig)
    answer = await rig.client.post(COUNT, CHAT)
    assert (answer.status, len(rig.upstream.asked)) == (400, 1), "there is no such path"
    assert "served by an upstream" in answer.error["message"]


@each_case(
    ("status", "body", "refusal"),
    [
        (404, {"error": {"message": "no such path"}}, (502, "api_error")),
        (200, {"tokens": []}, (502, "api_error")),  # llama-server, which reads no chat there
        (200, {"count": -1}, (502, "api_error")),
        (200, [9], (502, "api_error")),
        (200, {"error": {"message": "no", "code": 400}}, (400, "invalid_request_error")),
        (503, {}, (503, "overloaded_error")),
    ],
)
async def test_what_is_no_count_is_an_error(
    rig: UpstreamRig, status: int, body: Any, refusal: tuple[int, str]
) -> None:
    rig.answer(status, body)
    answer = await rig.client.post(COUNT, CHAT)
    assert (answer.status, answer.error["type"]) == refusal
