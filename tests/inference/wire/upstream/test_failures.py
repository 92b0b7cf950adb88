"""An upstream's errors as failures of ours; and embeddings of one: its body, and its vectors."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.answer_check import AnswerCheck
from inference.protocol.events import Accepted, Embedded, Event, Usage
from inference.protocol.generation import EmbeddingRequest, TextInput
from inference.wire.embeddings import parse_openai
from inference.wire.errors import RequestFailedError, UnsupportedParameterError
from inference.wire.failures import (
    MAX_MESSAGE_CHARACTERS,
    upstream_failure,
    upstream_failure_in_stream,
)
from inference.wire.upstream import Sending, exchanges
from inference.wire.upstream.answer_events import UpstreamErrorObject, UpstreamFaultError
from inference.wire.upstream.exchanges import VectorsReader
from tests.cases import each_case
from tests.inference.wire.answers import events_read

NOW = "Thu, 26 Nov 2026 10:00:00 GMT"
HEADERS = st.text(max_size=6) | st.none() | st.sampled_from([NOW, NOW.replace("GMT", "+9999")])


WORDS = st.sampled_from(["code", "status", "type", "message", "param", "x"])
SCALARS = st.none() | st.integers(0, 999) | st.text(max_size=5)
ERRORS = SCALARS | st.dictionaries(WORDS, SCALARS, max_size=4)


@given(st.integers(400, 599), st.binary(max_size=60), HEADERS, HEADERS, ERRORS)
def test_any_error_is_a_failure(
    status: int, body: bytes, retry_after: str | None, date: str | None, streamed: Any
) -> None:
    assert RequestFailedError(upstream_failure_in_stream("box", streamed, secret="")).status >= 400
    failure = upstream_failure(
        "box", status, body, retry_after=retry_after, date=date, secret="s3cret"
    )
    error = RequestFailedError(failure)
    assert error.status in (400, 429, 502, 503)
    assert failure.message.isprintable()


@each_case(
    ("retry_after", "date", "seconds"),
    [
        ("7", None, 7),
        ("9e9", None, 3_600),
        ("-7", None, None),
        ("Thu, 26 Nov 2026 10:00:30 GMT", NOW, 30),
        ("Thu, 26 Nov 2026 09:00:00 GMT", NOW, 0),
        ("Fri, 27 Nov 2026 10:00:00 GMT", NOW, 3_600),
        ("Thu, 26 Nov 2026 10:00:30 GMT", None, None),
        ("soon", NOW, None),
    ],
)
def test_a_retry_after_or_a_date(retry_after: str, date: str | None, seconds: float | None) -> None:
    failure = upstream_failure("box", 429, b"", retry_after=retry_after, date=date, secret="")
    assert failure.retry_after_s == seconds


@each_case(
    ("error", "code"),
    [
        ({"code": 429}, "rate_limit_exceeded"),
        ({"type": "overloaded_error"}, "upstream_unavailable"),
        ({"code": "invalid_request_error", "message": "no"}, "upstream_refused"),
        ({"status": 400, "message": "The prompt is too long."}, "context_length_exceeded"),
        ({"status_code": 401}, "upstream_failed"),
        *[(error, "upstream_failed") for error in ("x", None, {"code": True}, {"status": 700})],
    ],
)
def test_an_error_in_a_stream_is_that_of_its_status(error: Any, code: str) -> None:
    assert upstream_failure_in_stream("box", error, secret="").code == code


def test_a_message_is_shortened_and_holds_no_key() -> None:
    words = "s3cret-key and\nmore " + "x" * 5_000
    body = json.dumps({"error": {"message": words}}).encode()
    failure = upstream_failure("box", 400, body, retry_after=None, secret="s3cret-key")
    assert "s3cret-key" not in failure.message
    assert len(failure.message) < MAX_MESSAGE_CHARACTERS + 100
    assert "\n" not in failure.message


TWO = EmbeddingRequest(model="far", input=TextInput(texts=["a", "b"]))
FIRST, SECOND = [0.5, -1.0], [0.25, 2.0]


def packed(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def text(*numbers: float) -> str:
    return b64encode(packed(*numbers)).decode()


def read(answer: Any, request: EmbeddingRequest = TWO) -> list[Event]:
    frames = [json.dumps(answer).encode()]
    return events_read(lambda made: VectorsReader(made, request), frames, num_choices=0)


def asked(**fields: Any) -> EmbeddingRequest:
    return parse_openai(json.dumps({"model": "far", "input": ["a"], **fields}).encode()).embedding


def sent(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        exchanges.openai_vectors_body(asked(**fields), Sending(model="m"))
    )
    return found


def test_the_bodies() -> None:
    plain = {"model": "m", "input": ["a"], "encoding_format": "base64"}
    assert sent(user="ann", encoding_format="float", truncate_prompt_tokens=-1) == plain
    cut = {"dimensions": 8, "truncate_prompt_tokens": 7}
    assert sent(**cut) == plain | cut
    assert sent(input=[[1, 2], [3]])["input"] == [[1, 2], [3]]
    sending = Sending(model="m", context_tokens=512)
    body = json.loads(exchanges.ollama_vectors_body(asked(dimensions=8), sending))
    asked_of_ollama = {"model": "m", "input": ["a"], "truncate": False, "dimensions": 8}
    assert body == asked_of_ollama | {"options": {"num_ctx": 512}}
    body = json.loads(exchanges.ollama_vectors_body(asked(truncate_prompt_tokens=-1), sending))
    assert body["truncate"] is True
    for fields in ({"input": [[1, 2]]}, {"truncate_prompt_tokens": 7}):
        with pytest.raises(UnsupportedParameterError) as caught:
            exchanges.ollama_vectors_body(asked(**fields), sending)
        assert caught.value.param in fields


@each_case("given_", [[FIRST, SECOND], [text(*FIRST), text(*SECOND)]])
def test_vectors_are_in_the_inputs_order(given_: list[Any]) -> None:
    data = [{"index": 1, "embedding": given_[1]}, {"index": 0, "embedding": given_[0]}]
    *_, estimated = read({"data": data})
    assert isinstance(estimated, Embedded)
    assert estimated.usage == Usage(prompt_tokens=3, completion_tokens=0), "it is not counted"
    counted = Usage(prompt_tokens=5, completion_tokens=0)
    vectors = Embedded(request_id="r", vectors=[packed(*FIRST), packed(*SECOND)], usage=counted)
    for answer in (
        {"data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}},
        {"embeddings": [FIRST, SECOND], "prompt_eval_count": 5},
    ):
        assert read(answer) == [Accepted(request_id="r", prompt_tokens=3), vectors]


@each_case(
    "answer",
    [
        *[{"data": data} for data in ([], "vectors", [{"embedding": FIRST}])],
        *[
            {"data": [{"embedding": one, **at} for one, at in zip(vectors, places, strict=True)]}
            for vectors, places in (
                ([FIRST] * 3, [{}] * 3),
                ([FIRST, SECOND], [{"index": 0}, {"index": 0}]),
                ([FIRST, SECOND], [{"index": 0}, {"index": 2}]),
                ([FIRST, [1.0]], [{}] * 2),
                ([[], []], [{}] * 2),
                ([[1e39, 0.0], SECOND], [{}] * 2),
                (["?", "?"], [{}] * 2),
                (["QUI=", "QUI="], [{}] * 2),
                ([text(float("nan"), 1.0), text(*SECOND)], [{}] * 2),
            )
        ],
        *({}, {"embeddings": [FIRST]}, {"embeddings": 7}),
    ],
)
def test_what_is_no_answer_is_a_fault(answer: Any) -> None:
    with pytest.raises(UpstreamFaultError):
        read(answer)


def test_other_dimensions_than_were_asked_for_are_a_fault() -> None:
    request = EmbeddingRequest(model="far", input=TextInput(texts=["a"]), dimensions=3)
    with pytest.raises(UpstreamFaultError):
        read({"data": [{"embedding": FIRST}]}, request)
    with pytest.raises(UpstreamErrorObject):
        read({"error": {"message": "no"}})


NUMBERS = st.floats() | st.integers() | st.none() | st.text(max_size=5)
VECTORS = NUMBERS | st.lists(NUMBERS, max_size=3)
ITEMS = NUMBERS | st.dictionaries(st.sampled_from(["embedding", "index", "x"]), VECTORS)


@given(ITEMS, ITEMS, VECTORS)
def test_any_json_is_an_answer_or_a_fault(first: Any, second: Any, vector: Any) -> None:
    for answer in (
        {"data": [first, second]},
        {"data": [{"embedding": vector}, {"embedding": FIRST}], "usage": first},
        {"embeddings": [vector, FIRST], "prompt_eval_count": first},
    ):
        check = AnswerCheck(TWO, Usage(prompt_tokens=10**30, completion_tokens=1))
        try:
            for event in read(answer):
                check.check(event)
        except (UpstreamFaultError, UpstreamErrorObject):
            continue
