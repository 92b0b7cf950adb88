"""Responses over a WebSocket with a real engine behind it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.live.serving import MODEL, QUESTION, Serve

INSTRUCTIONS = "You answer questions about the capitals of countries, in one short sentence. " * 8


@pytest.fixture
def connection(helexa: Serve) -> Any:
    client = openai.OpenAI(base_url=f"{helexa.url}/v1", api_key="x")
    with client.responses.connect() as connected:
        yield connected


def turn(connection: Any, **fields: Any) -> Any:
    sent = {"type": "response.create", "model": MODEL, "temperature": 0, "store": False}
    connection.send(sent | fields)
    for event in connection:
        if event.type == "response.completed":
            return event.response
        assert event.type not in ("error", "response.failed"), event
    raise AssertionError("the socket was closed")


def test_what_was_prepared_is_not_computed_again(connection: Any) -> None:
    developer = {"role": "developer", "content": INSTRUCTIONS}
    prepared = turn(connection, input=[developer], generate=False)
    assert (prepared.output, prepared.usage.output_tokens) == ([], 0)
    answer = turn(connection, input=QUESTION, previous_response_id=prepared.id)
    assert "Paris" in answer.output_text
    assert answer.temperature == 0
    assert answer.usage.input_tokens_details.cached_tokens >= 96
    again = turn(connection, input="And of Italy?", previous_response_id=answer.id)
    assert again.usage.input_tokens > answer.usage.total_tokens
