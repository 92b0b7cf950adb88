"""However a text is cut into deltas, streams and bodies say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.events import Accepted, ChoiceFinished, Delta, Event, Finished, Usage
from inference.wire import openai_chat, openai_completions

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
PROMPT = {"model": "m", "prompt": "Hi"}
MADE = {"request_id": "r", "created_unix_s": 1}

pieces = st.lists(st.text(max_size=6), max_size=8)


def events_of(texts: list[str]) -> list[Event]:
    usage = Usage(prompt_tokens=1, completion_tokens=len(texts))
    return [
        Accepted(request_id="r", prompt_tokens=1),
        *(Delta(request_id="r", text=text) for text in texts),
        ChoiceFinished(request_id="r", reason="stop"),
        Finished(request_id="r", usage=usage),
    ]


def frames_of(encoder: Any, events: list[Event]) -> list[Any]:
    stream = b"".join(encoder.encode(event) for event in events).decode()
    assert stream.endswith("data: [DONE]\n\n")
    data = [frame.removeprefix("data: ") for frame in stream.split("\n\n")[:-2]]
    return [json.loads(frame) for frame in data]


@pytest.mark.parametrize("usage", [True, False])
@given(texts=pieces)
def test_chat(texts: list[str], usage: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": usage}}
    request = openai_chat.parse(json.dumps({**CHAT, **options}).encode())
    events = events_of(texts)
    frames = frames_of(request.stream_encoder(**MADE), events)
    choices = [frame["choices"][0] for frame in frames if frame["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    streamed = "".join(choice["delta"].get("content", "") for choice in choices)
    (body,) = filter(None, map(request.body_encoder(**MADE).encode, events))
    whole = json.loads(body)
    assert streamed == whole["choices"][0]["message"]["content"] == "".join(texts)
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "stop"
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert len(choices) <= len(texts) + 2
    if usage:
        assert frames[-1]["usage"] == whole["usage"]
        assert frames[-1]["choices"] == []


@given(texts=pieces)
def test_completions(texts: list[str]) -> None:
    request = openai_completions.parse(json.dumps({**PROMPT, "stream": True}).encode())
    events = events_of(texts)
    frames = frames_of(request.stream_encoder(**MADE), events)
    (body,) = filter(None, map(request.body_encoder(**MADE).encode, events))
    streamed = "".join(frame["choices"][0]["text"] for frame in frames)
    assert streamed == json.loads(body)["choices"][0]["text"] == "".join(texts)
