"""However an answer is cut into events, streams and bodies have the same content.

An answer is drawn whole, then cut and its choices interleaved at random. The streams are put
together by the openai package, so they hold what a client of it gets to see.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from inference.protocol import events as protocol
from inference.wire.dialect import RequestContext
from inference.wire.openai import chat as openai_chat
from inference.wire.openai import completions as openai_completions
from tests.inference.wire import answers
from tests.inference.wire.answers import MADE, USAGE, Part, R, randoms, said

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
PROMPT = {"model": "m", "prompt": "Hi", "stream": True}
ARGUMENTS = st.just("{}") | st.text(min_size=1, max_size=9)
CHOICES = st.lists(answers.spoken(ARGUMENTS), min_size=1, max_size=3)


def answered(
    parse: Any, body: dict[str, Any], context: RequestContext, answer: list[list[Part]], random: Any
) -> tuple[list[Any], Any]:
    """The chunks and the body of one answer, its choices interleaved. Each choice ends once, with
    its last chunk; usage comes last, where the client or the operator wants it."""
    asked = random.choice([None, False, True])
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}
    request = parse(json.dumps({**body, "n": len(answer), **options}).encode(), context)
    queues = [answers.events_of_choice(one, random, index) for index, one in enumerate(answer)]
    events: list[protocol.Event] = [protocol.Accepted(request_id=R, prompt_tokens=9)]
    while any(queues):
        events.append(random.choice([queue for queue in queues if queue]).pop(0))
    events.append(protocol.Finished(request_id=R, usage=USAGE))
    *stream, done, rest = answers.folded(request.stream_encoder(**MADE), events).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    frames = [json.loads(frame.removeprefix(b"data: ")) for frame in stream]
    assert len(frames) <= len(events) + len(answer)
    whole = answers.body_of(request.body_encoder(**MADE), events)
    has_usage = bool(asked) or context.always_include_usage
    if has_usage:
        last = frames.pop()
        assert (last["choices"], last["usage"]) == ([], whole["usage"])
        assert last["usage"]["prompt_tokens"] == 9
    assert all(("usage" in frame) == has_usage and not frame.get("usage") for frame in frames)
    for choice in whole["choices"]:
        parts = [one for frame in frames for one in frame["choices"]]
        ends = [one["finish_reason"] for one in parts if one["index"] == choice["index"]]
        assert ends == [None] * (len(ends) - 1) + [choice["finish_reason"]]
    return frames, whole


def essence(completion: Any) -> list[Any]:
    """The choices' content, without the difference between empty and absent."""
    found = []
    for choice in sorted(completion["choices"], key=lambda choice: choice["index"]):
        message = choice["message"]
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        texts = [message.get(name) or "" for name in ("content", "reasoning_content")]
        found.append((choice["finish_reason"], message["role"], *texts, calls))
    return found


@pytest.mark.parametrize("shown", ["hidden", "field", "inline"])
@given(answer=CHOICES, random=randoms)
def test_chat(shown: str, answer: list[list[Part]], random: Random) -> None:
    expected = []
    for index, choice in enumerate(answer):
        calls = [
            (f"call_{index}_{number}", "f", arguments)
            for number, arguments in enumerate(said(choice, "call"))
        ]
        thought, text = "".join(said(choice, "thought")), "".join(said(choice, "text"))
        if shown == "inline" and said(choice, "thought"):
            text = f"<think>{thought}</think>{text}"
        reasoning = thought if shown == "field" else ""
        expected.append((answers.ending(choice), "assistant", text, reasoning, calls))
    body = {**CHAT, "include_reasoning": shown == "field"}
    headers = {"x-include-thinking": "1"} if shown == "inline" else {}
    context = RequestContext(headers=headers, always_include_usage=shown == "hidden")
    frames, whole = answered(openai_chat.parse, body, context, answer, random)
    state = ChatCompletionStreamState()
    for frame in frames:
        state.handle_chunk(ChatCompletionChunk.model_validate(frame))
    assert essence(whole) == essence(state.current_completion_snapshot.model_dump()) == expected
    for choice, (_, _, text, _, calls) in zip(whole["choices"], expected, strict=True):
        assert (choice["message"]["content"] is None) == bool(calls and not text)


@given(answer=CHOICES, random=randoms)
def test_completions(answer: list[list[Part]], random: Random) -> None:
    answer = [[part for part in choice if part[0] != "call"] for choice in answer]
    frames, whole = answered(openai_completions.parse, PROMPT, RequestContext(), answer, random)
    texts = [""] * len(answer)
    for choice in (choice for frame in frames for choice in frame["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    for text, choice in zip(texts, answer, strict=True):
        thoughts = "".join(f"<think>{one}</think>" for one in said(choice, "thought"))
        assert text == thoughts + "".join(said(choice, "text"))
