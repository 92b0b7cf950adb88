"""What stays of a conversation that is made shorter, and how its summary is read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponseCompactionItem

from inference.protocol.events import FinishReason, Usage
from inference.protocol.generation import ChatInput
from inference.wire.errors import ApiError
from inference.wire.openai.responses import compact as openai_responses_compact
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses.compact import (
    MAX_LAST_CHARS,
    MAX_SUMMARY_TOKENS,
    SUMMARISE,
    Summary,
    settled,
)
from tests.cases import each_case

CONVERSATION = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris?"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Ask."}], "summary": []},
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "Sunny."},
    {"role": "assistant", "content": "It is sunny."},
    {"role": "user", "content": "And in Oslo?"},
]


def parse(**fields: Any) -> openai_responses.ResponsesRequest:
    return openai_responses_compact.parse(json.dumps({"model": "m", **fields}).encode())


def compacted(given: Any, summary: str) -> dict[str, Any]:
    request = parse(input=given)
    usage = Usage(prompt_tokens=9, completion_tokens=4)
    body = openai_responses_compact.body(
        request.items, Summary(text=summary), usage, request_id="r", created_unix_s=1
    )
    read: dict[str, Any] = json.loads(body)
    return read


def messages(request: openai_responses.ResponsesRequest) -> list[tuple[str, str | None]]:
    assert isinstance(request.generation.input, ChatInput)
    return [(message.role, message.content) for message in request.generation.input.messages]


def test_the_summary_is_asked_for_last_bounded_and_sampled_low() -> None:
    for given, most in (("Hi", 256), ("x" * 2000, 500), ("x" * 10**6, MAX_SUMMARY_TOKENS)):
        asking = openai_responses_compact.summary_request(parse(input=given))
        assert isinstance(asking.input, ChatInput)
        assert asking.input.messages[-1].content == SUMMARISE
        assert (asking.input.thinking, asking.input.tools) == (False, [])
        assert asking.sampling.max_tokens == most
        assert asking.sampling.temperature is not None and asking.sampling.temperature <= 0.3
        assert asking.ends_at_context, "less is left for it: it may still be enough"


USAGE = Usage(prompt_tokens=9, completion_tokens=1024)


@each_case(
    ("text", "reason", "status", "begins"),
    [
        (" Sunny. \n", "stop", "complete", "Sunny."),
        ("It is sunny. It is al", "length", "cut_off", "It is sunny.\n\n["),
        ("It is sunny. It is al", "context", "cut_off", "It is sunny.\n\n["),
        (" \n", "stop", "missing", "["),
    ],
)
def test_a_summary_that_is_not_whole_ends_with_a_sentence_and_the_last_words(
    text: str, reason: FinishReason, status: str, begins: str
) -> None:
    summary = settled(text, reason, USAGE, parse(input=CONVERSATION).items)
    assert summary.status == status and summary.text.startswith(begins)
    if status == "complete":
        assert summary == Summary(text="Sunny.")
        return
    assert f"[{summary.message}]" in summary.text
    assert ("after 1024 tokens" in (summary.message or "")) == (status == "cut_off")
    assert "You called" in summary.text and "It returned" in summary.text


def test_last_words_are_bounded_and_the_newest_and_keep_an_earlier_summary() -> None:
    earlier = compacted(CONVERSATION, "E" * 5000)["output"][-1]
    turns = [{"role": "assistant", "content": f"{n} " + "x" * 1500} for n in range(9)]
    items = parse(input=[earlier, *turns]).items
    text = settled("", "stop", USAGE, items).text
    assert "E" * 5000 in text
    assert "8 xxx" in text and "0 xxx" not in text
    assert len(text) < 5000 + MAX_LAST_CHARS + 200


def test_what_the_user_wrote_stays_and_it_continues_from_there() -> None:
    response = compacted(CONVERSATION, "Paris is ☀, Oslo open.")
    assert (response["object"], response["created_at"]) == ("response.compaction", 1)
    assert response["usage"]["total_tokens"] == 13
    output = response["output"]
    ResponseCompactionItem.model_validate(output[-1], strict=True)
    assert len({item["id"] for item in output}) == 4
    body = json.dumps({"model": "m", "input": [*output, {"role": "user", "content": "Go on."}]})
    assert messages(openai_responses.parse(body.encode())) == [
        ("system", "Be brief."),
        ("user", "Weather in Paris?"),
        ("user", "And in Oslo?"),
        ("assistant", "The conversation so far, in short:\n\nParis is ☀, Oslo open."),
        ("user", "Go on."),
    ]
    again = compacted(output, "Shorter.")["output"]
    assert [item["type"] for item in again] == ["message"] * 3 + ["compaction"]


@each_case(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "Hi", "model": None}, "model"),
        ({"input": "Hi", "temperature": 0}, "temperature"),
        ({"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}, None),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        parse(**fields)
    assert refused.value.param == (param or "input[0].encrypted_content")
