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

from tests.live.serving import LONG, MODEL, QUESTION, WAIT_TIMEOUT_S, Serve, chat_body, wait_until

ASKED: Any = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 40
ZONE = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
TOOL: Any = {"type": "function", "function": {"name": "get_time", "parameters": ZONE}}


@pytest.fixture(scope="module")
def serve(server_dir: Path) -> Iterator[Serve]:
    with Serve(server_dir) as serve:
        yield serve


@pytest.fixture(scope="module")
def client(serve: Serve) -> Iterator[openai.OpenAI]:
    url = f"{serve.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_chat_and_completions(client: Any) -> None:
    for create, given, text_of in (
        (
            client.chat.completions.create,
            {"messages": ASKED},
            lambda one: (getattr(one, "message", None) or one.delta).content,
        ),
        (
            client.completions.create,
            {"prompt": "The capital of France is"},
            lambda one: one.text,
        ),
    ):
        asked = {"model": MODEL, "temperature": 0, "max_tokens": MAX_TOKENS} | given
        whole = text_of(create(**asked).choices[0])
        chunks = create(**asked, stream=True)
        texts = [text_of(one.choices[0]) or "" for one in chunks if one.choices]
        assert "Paris" in whole
        assert "".join(texts) == whole and len(texts) > 1


def test_other_dialects_answer_the_same(serve: Serve, client: Any) -> None:
    pasted = json.loads(serve.wait_printed(r" curl .*-d '(.*)'")[1])
    assert pasted == chat_body(), "the line that serve prints for pasting"
    answer = serve.answer(max_tokens=MAX_TOKENS)
    asked: Any = {"model": MODEL, "input": QUESTION, "temperature": 0}
    asked["max_output_tokens"] = MAX_TOKENS
    assert client.responses.create(**asked).output_text == answer
    events = client.responses.create(**asked, stream=True)
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(deltas) == answer
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": MAX_TOKENS}
    asked["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=serve.url, api_key="none", max_retries=0) as anthropics:
        (block,) = anthropics.messages.create(**asked).content
        assert block.type == "text" and block.text == answer
        events = anthropics.messages.create(**asked, stream=True)
        deltas = [each.delta for each in events if each.type == "content_block_delta"]
    assert "".join(each.text for each in deltas if each.type == "text_delta") == answer
    asked = {"model": MODEL, "messages": ASKED}
    asked["options"] = {"temperature": 0, "num_predict": MAX_TOKENS}
    with ollama.Client(host=serve.url, timeout=WAIT_TIMEOUT_S) as ollamas:
        assert ollamas.chat(**asked).message.content == answer
        parts = ollamas.chat(**asked, stream=True)
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
        killed.kill()
        events = list(stream)
    (error,) = (event for event in events if '"error"' in event)
    assert json.loads(error)["error"]["message"]
    assert events[-1] in (error, "[DONE]")
    wait_until(lambda: serve.chat().status_code == 200, "answers after its engine was killed")
    assert serve.find("engine").pid != killed.pid


def test_a_stop_leaves_nothing(serve: Serve) -> None:
    serve.stop()
