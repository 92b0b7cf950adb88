"""One ``manage.py serve`` from its start to its stop, with the real model: what every change must
keep. The other live tests are slow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.live.serving import LONG, MODEL, QUESTION, WAIT_TIMEOUT_S, Serve, wait_until

ASKED: Any = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 40
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": ["UTC", "CET"]}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def serve(server_dir: Path) -> Iterator[Serve]:
    with Serve(server_dir) as serve:
        yield serve


@pytest.fixture(scope="module")
def client(serve: Serve) -> Iterator[openai.OpenAI]:
    url = f"{serve.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def answer(client: openai.OpenAI) -> str:
    """What the model answers, greedily."""
    completion = client.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, max_tokens=MAX_TOKENS
    )
    return completion.choices[0].message.content or ""


def test_chat_completions(client: openai.OpenAI, answer: str) -> None:
    chunks = client.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, max_tokens=MAX_TOKENS, stream=True
    )
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert "Paris" in answer
    assert text == answer


def test_completions(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0}
    whole = client.completions.create(**asked, max_tokens=8).choices[0].text
    chunks = client.completions.create(**asked, max_tokens=8, stream=True)
    assert "Paris" in whole
    assert "".join(each.choices[0].text for each in chunks if each.choices) == whole


def test_responses(client: openai.OpenAI, answer: str) -> None:
    asked: Any = {"model": MODEL, "input": QUESTION, "temperature": 0}
    asked["max_output_tokens"] = MAX_TOKENS
    assert client.responses.create(**asked).output_text == answer
    events = client.responses.create(**asked, stream=True)
    text = "".join(each.delta for each in events if each.type == "response.output_text.delta")
    assert text == answer


def test_messages(serve: Serve, answer: str) -> None:
    asked: Any = {"model": MODEL, "messages": ASKED, "max_tokens": MAX_TOKENS}
    asked["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=serve.url, api_key="none", max_retries=0) as client:
        (block,) = client.messages.create(**asked).content
        assert block.type == "text" and block.text == answer
        events = client.messages.create(**asked, stream=True)
        deltas = [each.delta for each in events if each.type == "content_block_delta"]
    assert "".join(each.text for each in deltas if each.type == "text_delta") == answer


def test_ollamas_chat(serve: Serve, answer: str) -> None:
    options: Any = {"temperature": 0, "num_predict": MAX_TOKENS}
    with ollama.Client(host=serve.url, timeout=WAIT_TIMEOUT_S) as client:
        assert client.chat(MODEL, ASKED, options=options).message.content == answer
        parts = client.chat(MODEL, ASKED, options=options, stream=True)
        assert "".join(part.message.content or "" for part in parts) == answer


def test_a_tool_call(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=[TOOL], tool_choice="required", temperature=0
    )
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function" and call.function.name == "get_time"
    assert json.loads(call.function.arguments)["zone"] in ("UTC", "CET")


def test_a_killed_engine_fails_the_request_once_and_comes_back(serve: Serve) -> None:
    killed = serve.find("engine")
    with serve.stream(**LONG) as stream:
        stream.next_text()
        serve.kill("engine")
        events = list(stream)
    (error,) = (event for event in events if '"error"' in event)
    assert json.loads(error)["error"]["message"]
    assert events[-1] in (error, "[DONE]")
    wait_until(lambda: serve.chat().status_code == 200, "answers after its engine was killed")
    assert serve.find("engine").pid != killed.pid


def test_a_stop_leaves_nothing(serve: Serve) -> None:
    serve.stop()
