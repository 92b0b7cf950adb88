"""A real answer of the real model, through every process, from plain HTTP and the openai SDK."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import httpx
import openai
import pytest

from tests.live.serving import (
    MODEL,
    QUESTION,
    REPOSITORY_DIR,
    WAIT_TIMEOUT_S,
    Serve,
    chat_body,
    serve_environment,
    wait_until,
)


@pytest.fixture
def client(helexa: Serve) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{helexa.url}/v1", api_key="none", max_retries=0)


def test_answers(helexa: Serve) -> None:
    response = helexa.chat()
    assert response.status_code == 200
    body = response.json()
    assert "Paris" in body["choices"][0]["message"]["content"]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["object"] == "chat.completion"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] > 0


def test_streams(helexa: Serve) -> None:
    """Role first, text, the finish reason, the usage, [DONE]; the text is that of the answer."""
    with helexa.stream(stream_options={"include_usage": True}) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        *events, done = list(stream)
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][:-1] == [None] * (
        len(chunks) - 2
    )
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert len({chunk["id"] for chunk in chunks}) == 1
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1])
    assert text == helexa.answer()


def test_stops_at_max_tokens(helexa: Serve) -> None:
    body = helexa.chat(max_tokens=3).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


def test_characters_are_never_split(helexa: Serve) -> None:
    """Each event is whole UTF-8 whatever the tokens cut through."""
    messages = [{"role": "user", "content": "Repeat exactly: 日本語 🦊 žluťoučký kůň 🦊🦊"}]
    with helexa.stream(messages=messages, max_tokens=60) as stream:
        raw = b"".join(stream.response.iter_bytes())
    assert "\ufffd" not in raw.decode("utf-8", errors="strict")
    assert any(ord(character) > 127 for character in raw.decode()) or b"\\u" in raw


def test_sdk_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")


def test_sdk_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    assert chunks[-1].usage is not None


def test_sdk_completes(client: openai.OpenAI) -> None:
    completion = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8
    )
    assert "Paris" in completion.choices[0].text


def test_sdk_scores_a_prompt(client: openai.OpenAI) -> None:
    """Test suites of models ask so: which of two endings is the likelier."""

    def ending(text: str) -> float:
        prompt = f"The capital of France is {text}"
        answer = client.completions.create(
            model=MODEL, prompt=prompt, echo=True, logprobs=1, max_tokens=0
        )
        (choice,) = answer.choices
        assert choice.text == prompt and choice.logprobs is not None
        tokens, values = choice.logprobs.tokens or [], choice.logprobs.token_logprobs or []
        assert "".join(tokens) == prompt and values[0] is None
        return sum(values[-1:])

    assert ending("Paris") > ending("carpet")


def test_sdk_lists_models(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_same_seed_same_answer(helexa: Serve) -> None:
    first, second = (helexa.answer(temperature=1.0, seed=7, max_tokens=24) for _ in range(2))
    assert first == second


def test_health(helexa: Serve) -> None:
    def idle_replica() -> dict[str, Any] | None:
        replica = helexa.replica()
        return replica if replica is not None and replica["in_flight"] == 0 else None

    replica = wait_until(idle_replica, "idle")
    assert replica["status"] == "ready"
    assert replica["queue_depth"] == 0
    assert replica["kv_blocks_used"] == 0
    assert replica["kv_blocks_total"] > 0


def test_answers_many_at_once(helexa: Serve) -> None:
    """Batched answers are those of each alone."""
    alone = helexa.answer(max_tokens=16)
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: helexa.answer(max_tokens=16), range(8)))
    assert answers == [alone] * 8


def test_body_is_what_curl_sends(helexa: Serve) -> None:
    """The line that serve prints for pasting is one that works."""
    body = json.loads(helexa.wait_printed(r" curl .*-d '(.*)'")[1])
    response = httpx.post(f"{helexa.url}/v1/chat/completions", json=body, timeout=60.0)
    assert "Paris" in response.text
    assert body == chat_body()


def test_the_chat_command_finds_the_serve_of_its_data_directory(helexa: Serve) -> None:
    """A newcomer's second command: no URL, no key, a question through a pipe."""
    environment = serve_environment() | {"HELEXA_DATA_DIR": str(helexa.data_dir)}
    environment.pop("HELEXA_URL", None)
    done = subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), "chat", MODEL, "--max-tokens", "8"],
        input=QUESTION,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), done.stderr
    assert re.search(r"\[\d tokens, [\d.]+ tok/s\]", done.stderr), done.stderr
