"""Requests as an upstream's bodies, and its errors as failures of ours."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from inference.protocol.sampling import SamplingOptions
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.errors import RequestFailedError, UnsupportedParameterError
from inference.wire.openai.chat.request import parse
from inference.wire.upstream.chat_request import body_of
from inference.wire.upstream.refusals import MAX_MESSAGE_CHARACTERS, failure_in_stream, failure_of
from inference.wire.upstream.sending import Sending
from tests.cases import each_case

TURNS = [{"role": "user", "content": "hi"}]


def sent(request: GenerationRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body_of(request, Sending(model="m")))
    return found


def openai_sent(**fields: Any) -> dict[str, Any]:
    body = {"model": "far", "messages": TURNS, **fields}
    return sent(parse(json.dumps(body).encode()).generation)


def anthropic_sent(**fields: Any) -> dict[str, Any]:
    body = {"model": "far", "max_tokens": 50_000, "messages": TURNS, **fields}
    return sent(anthropic_messages.parse(json.dumps(body).encode()).generation)


@each_case(
    "field",
    [
        {"temperature": 0.25},
        {"top_p": 0.5},
        {"top_k": 7},
        {"min_p": 0.1},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0},
        {"frequency_penalty": -1.0},
        {"seed": 3},
        {"stop": ["a", "b"]},
        {"n": 2},
        {"logit_bias": {"5": -1.0}},
        {"logprobs": True, "top_logprobs": 2},
        {"min_tokens": 2},
        {"ignore_eos": True},
        {"stop_token_ids": [4]},
        {"chat_template_kwargs": {"x": 1}},
        {"reasoning_effort": "high"},
        {"reasoning_effort": "none"},
        {"response_format": {"type": "json_object"}},
        {"add_generation_prompt": False},
    ],
)
def test_a_field_is_sent_as_it_was_given(field: dict[str, Any]) -> None:
    plain, body = openai_sent(), openai_sent(**field)
    assert {name: body[name] for name in body if name not in plain} == field


def test_thinking_becomes_an_effort() -> None:
    efforts = [
        anthropic_sent(thinking={"type": "enabled", "budget_tokens": budget})["reasoning_effort"]
        for budget in (1_024, 4_096, 32_000)
    ]
    assert efforts == ["low", "medium", "high"]
    assert openai_sent(reasoning_effort="minimal")["reasoning_effort"] == "none"
    assert "reasoning_effort" not in anthropic_sent()


def test_the_start_of_an_answer_is_continued() -> None:
    body = anthropic_sent(messages=[*TURNS, {"role": "assistant", "content": "So"}])
    assert body["messages"][-1] == {"role": "assistant", "content": "So"}
    assert body["continue_final_message"] is True


def test_every_sampling_option_is_translated_or_refused() -> None:
    values: dict[str, Any] = {
        "logit_bias": {1: 1.0},
        "stop_token_ids": [1],
        "ignore_eos": True,
    }
    chat = ChatInput(messages=[ChatMessage(role="user", content="hi")])
    plain = sent(GenerationRequest(model="far", input=chat))
    for name in SamplingOptions.__struct_fields__:
        if name == "max_tokens":
            continue  # what bounds an answer is an argument
        options = SamplingOptions(**{name: values.get(name, 1)})
        try:
            body = sent(GenerationRequest(model="far", input=chat, sampling=options))
        except UnsupportedParameterError as error:
            assert error.param == name
        else:
            assert body != plain, name


NOW = "Thu, 26 Nov 2026 10:00:00 GMT"
HEADERS = st.text(max_size=6) | st.none() | st.sampled_from([NOW, NOW.replace("GMT", "+9999")])


@given(st.integers(400, 599), st.binary(max_size=60), HEADERS, HEADERS)
def test_any_error_is_a_failure(
    status: int, body: bytes, retry_after: str | None, date: str | None
) -> None:
    failure = failure_of("box", status, body, retry_after=retry_after, date=date, secret="s3cret")
    error = RequestFailedError(failure)
    assert error.status in (400, 429, 502, 503)
    assert failure.message.isprintable()


@each_case(
    ("retry_after", "date", "seconds"),
    [
        ("7", None, 7),
        ("9e9", None, 3_600),
        ("Thu, 26 Nov 2026 10:00:30 GMT", NOW, 30),
        ("Thu, 26 Nov 2026 09:00:00 GMT", NOW, 0),
        ("Fri, 27 Nov 2026 10:00:00 GMT", NOW, 3_600),
        ("Thu, 26 Nov 2026 10:00:30 GMT", None, None),
        ("soon", NOW, None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(
    retry_after: str, date: str | None, seconds: float | None
) -> None:
    failure = failure_of("box", 429, b"", retry_after=retry_after, date=date, secret="")
    assert failure.retry_after_s == seconds


def test_a_message_is_shortened_and_holds_no_key() -> None:
    words = "s3cret-key and\nmore " + "x" * 5_000
    body = json.dumps({"error": {"message": words}}).encode()
    failure = failure_of("box", 400, body, retry_after=None, secret="s3cret-key")
    assert "s3cret-key" not in failure.message
    assert len(failure.message) < MAX_MESSAGE_CHARACTERS + 100
    assert "\n" not in failure.message


WORDS = st.sampled_from(["code", "status", "type", "message", "param", "x"])
SCALARS = st.none() | st.integers(0, 999) | st.text(max_size=5)


@given(SCALARS | st.dictionaries(WORDS, SCALARS, max_size=4))
def test_any_error_in_a_stream_is_a_failure(error: Any) -> None:
    assert RequestFailedError(failure_in_stream("box", error, secret="")).status >= 400
