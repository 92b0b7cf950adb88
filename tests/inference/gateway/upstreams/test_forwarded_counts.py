"""The tokens of a prompt, counted by the upstream that would answer it."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from fleet.catalogue import CatalogueEntry
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.upstreams.forwarding import CHAT, RED_PIXELS, serve
from tests.servers.fake_upstream import FakeUpstream

COUNT = "/v1/messages/count_tokens"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def answering(upstream: FakeUpstream, status: int, body: Any) -> None:
    upstream.answer = lambda asked, wire: wire.json(status, body)


@pytest.fixture
def claude(upstream: FakeUpstream, catalogue: FakeCatalogue, far: CatalogueEntry) -> None:
    serve(catalogue, far, url=upstream.origin, dialect="anthropic")
    answering(upstream, 200, {"input_tokens": 23})


@pytest.mark.usefixtures("claude")
async def test_claudes_clients_count_at_claudes_upstream(
    anthropic_sdk: anthropic.AsyncAnthropic, upstream: FakeUpstream, ledger: FakeLedger
) -> None:
    counted = await anthropic_sdk.messages.count_tokens(
        model="far",
        system="Be brief.",
        messages=[{"role": "user", "content": "hi"}],
        tools=[{"name": "f", "input_schema": {"type": "object"}}],
        thinking={"type": "enabled", "budget_tokens": 2048},
    )
    assert counted.input_tokens == 23
    (asked,) = upstream.asked
    assert asked.path == COUNT
    assert asked.json == {
        "model": "org/m",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 2048},
    }
    assert not [one for one in ledger.settled if one.cost_micro_usd]


@pytest.mark.usefixtures("claude")
async def test_openais_clients_count_there_too(
    sdk: openai.AsyncOpenAI, upstream: FakeUpstream
) -> None:
    counted = await sdk.responses.input_tokens.count(model="far", input="hi")
    assert counted.input_tokens == 23
    assert "max_tokens" not in upstream.asked[0].json


@pytest.mark.usefixtures("claude")
async def test_an_image_is_counted_by_its_bytes(client: AsgiClient, upstream: FakeUpstream) -> None:
    kind, _, data = RED_PIXELS.removeprefix("data:").partition(";base64,")
    source = {"type": "base64", "media_type": kind, "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "look"}]
    answer = await client.post(
        COUNT, {"model": "far", "messages": [{"role": "user", "content": content}]}
    )
    assert (answer.status, answer.json["input_tokens"]) == (200, 23)
    assert upstream.asked[0].json["messages"][0]["content"] == content


@pytest.mark.usefixtures("far")
async def test_a_chat_is_counted_as_vllm_counts_it(
    client: AsgiClient, upstream: FakeUpstream
) -> None:
    answering(upstream, 200, {"count": 9, "max_model_len": 4096, "tokens": list(range(9))})
    tool = {"name": "f", "input_schema": SCHEMA}
    answer = await client.post(COUNT, {**CHAT, "tools": [tool], "system": "Be brief."})
    assert (answer.status, answer.json["input_tokens"]) == (200, 9)
    (asked,) = upstream.asked
    assert asked.path == "/tokenize", "beside /v1"
    assert asked.json == {
        "model": "org/m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    }


@pytest.mark.parametrize(
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
@pytest.mark.usefixtures("far")
async def test_what_is_no_count_is_an_error(
    client: AsgiClient, upstream: FakeUpstream, status: int, body: Any, refusal: tuple[int, str]
) -> None:
    answering(upstream, status, body)
    answer = await client.post(COUNT, CHAT)
    assert (answer.status, answer.error["type"]) == refusal


async def test_an_upstream_that_has_no_such_path_is_not_asked(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    serve(catalogue, far, url=upstream.origin, dialect="ollama")
    answer = await client.post(COUNT, CHAT)
    assert answer.status == 400
    assert "served by an upstream" in answer.error["message"]
    assert not upstream.asked
