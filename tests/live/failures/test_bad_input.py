"""Whatever a client sends, the running server answers with a 4xx in the dialect, never a 500."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.live.serving import Serve

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "unknown model": ({"model": "gpt-9"}, 404),
    "model of a wrong type": ({"model": 7}, 400),
    "no messages": ({"messages": []}, 400),
    "messages of a wrong type": ({"messages": "hello"}, 400),
    "unknown role": ({"messages": [{"role": "wizard", "content": "hi"}]}, 400),
    "negative temperature": ({"temperature": -1}, 400),
    "absurd temperature": ({"temperature": 1e308}, 400),
    "temperature in words": ({"temperature": "hot"}, 400),
    "max_tokens of zero": ({"max_tokens": 0}, 400),
    "max_tokens beyond numbers": ({"max_tokens": 10**30}, 400),
    "top_p over one": ({"top_p": 1.5}, 400),
    "top_logprobs without logprobs": ({"top_logprobs": 3}, 400),
    "a field nobody knows": ({"frobnicate": True}, 400),
    "audio": ({"modalities": ["text", "audio"]}, 400),
    "prompt over the limit": (
        {"messages": [{"role": "user", "content": "many words " * 20_000}]},
        400,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_in_the_dialect(helexa: Serve, case: str) -> None:
    fields, status = CASES[case]
    response = helexa.chat(**fields)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"]
    assert error["type"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize("case", ["unknown model", "no messages", "prompt over the limit"])
def test_refused_before_the_stream_starts(helexa: Serve, case: str) -> None:
    fields, status = CASES[case]
    response = helexa.chat(**fields, stream=True)
    assert response.status_code == status, response.text


def test_prompt_over_the_limit_reports_both_numbers(helexa: Serve) -> None:
    fields, _ = CASES["prompt over the limit"]
    error = helexa.chat(**fields).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert sum(word.strip(".,").isdigit() for word in error["message"].split()) >= 2


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"{" * 100_000, b'{"model": NaN}']
)
def test_bodies_that_are_no_request(helexa: Serve, body: bytes) -> None:
    response = httpx.post(
        f"{helexa.url}/v1/chat/completions",
        content=body,
        headers={"Content-Type": "application/json"},
        timeout=30.0,
    )
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_unknown_path_and_method(helexa: Serve) -> None:
    assert httpx.get(f"{helexa.url}/v1/nothing", timeout=30.0).status_code == 404
    assert httpx.get(f"{helexa.url}/v1/chat/completions", timeout=30.0).status_code == 405


def test_still_answers(helexa: Serve) -> None:
    assert "Paris" in helexa.answer()
