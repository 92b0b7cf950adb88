"""What an operator sets for all clients, on a second gateway beside the scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.live.operating.second_gateway import second_gateway
from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe

KEY = "the-operators-key"


@pytest.fixture(scope="module")
def gateway_url(scripted_server: ScriptedServe) -> Iterator[str]:
    settings = {"HELEXA_ALWAYS_STREAM_USAGE": "1", "HELEXA_API_KEY": KEY}
    with second_gateway(scripted_server, **settings) as url:
        yield url


@pytest.fixture
def question(hermes: ScriptedModel) -> Any:
    hermes.answers("ask the other gateway", "Asked.")
    return [{"role": "user", "content": "ask the other gateway"}]


def test_usage_comes_unasked(gateway_url: str, question: Any) -> None:
    with openai.OpenAI(base_url=f"{gateway_url}/v1", api_key=KEY, max_retries=0) as client:
        *_, chat = client.chat.completions.create(model="hermes", messages=question, stream=True)
        *_, text = client.completions.create(
            model="hermes", prompt="ask the other gateway", stream=True
        )
    for last in (chat, text):
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens > 0


def test_either_header_holds_the_key(gateway_url: str, question: Any) -> None:
    with openai.OpenAI(base_url=f"{gateway_url}/v1", api_key=KEY, max_retries=0) as client:
        answer = client.chat.completions.create(model="hermes", messages=question)
        assert answer.choices[0].message.content == "Asked."
    for credentials in ({"api_key": KEY}, {"auth_token": KEY}):
        fields: dict[str, Any] = credentials
        with anthropic.Anthropic(base_url=gateway_url, max_retries=0, **fields) as other:
            message = other.messages.create(model="hermes", max_tokens=99, messages=question)
            assert message.content[0].type == "text"


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
        *("/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"),
    ],
)
def test_a_wrong_key_is_refused_as_the_dialect_does(gateway_url: str, path: str) -> None:
    headers = {"authorization": "Bearer wrong"}
    refused = httpx.post(gateway_url + path, json={"model": "hermes"}, headers=headers, timeout=60)
    assert refused.status_code == 401
    error = refused.json()["error"]
    assert error["type"] == "authentication_error"
    assert ("code" in error) == ("messages" not in path)
