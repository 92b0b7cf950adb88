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
from tests.cases import each_case
from tests.inference.wire import answers
from tests.inference.wire.answers import MADE, USAGE, Part, R, randoms, said

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
PROMPT = {"model": "m", "prompt": "Hi", "stream": True}
WITH_USAGE = {"stream_options": {"include_usage": True}}


CHOICES = st.lists(
    answers.spoken(st.just("{}") | st.text(min_size=1, max_size=9)), min_size=1, max_size=3
)


def events_of_choices(answer: list[list[Part]], random: Random) -> list[protocol.Event]:
    """The choices' events, interleaved at random."""
    queues = [
        answers.events_of_choice(choice, random, index) for index, choice in enumerate(answer)
    ]
    events: list[protocol.Event] = [protocol.Accepted(request_id=R, prompt_tokens=1)]
    while any(queues):
        events.append(random.choice([queue for queue in queues if queue]).pop(0))
    return [*events, protocol.Finished(request_id=R, usage=USAGE)]


def frames_of(encoder: Any, events: list[protocol.Event]) -> list[Any]:
    stream = b"".join(encoder.encode(event) for event in events).decode()
    assert stream.endswith("data: [DONE]\n\n")
    data = [frame.removeprefix("data: ") for frame in stream.split("\n\n")[:-2]]
    return [json.loads(frame) for frame in data]


def as_the_sdk_sees_it(frames: list[Any]) -> Any:
    state = ChatCompletionStreamState()
    for frame in frames:
        state.handle_chunk(ChatCompletionChunk.model_validate(frame))
    return state.current_completion_snapshot.model_dump()


def essence(completion: Any) -> list[Any]:
    """The choices' content, without the difference between empty and absent."""
    found = []
    for choice in sorted(completion["choices"], key=lambda choice: choice["index"]):
        message = choice["message"]
        calls = [
            (call["id"], call["type"], call["function"]) for call in message.get("tool_calls") or []
        ]
        calls = [(*head, function["name"], function["arguments"]) for *head, function in calls]
        texts = [message.get(name) or "" for name in ("content", "reasoning_content")]
        head = choice["index"], choice["finish_reason"], message["role"]
        found.append((*head, *texts, calls))
    return found


def expected(answer: list[list[Part]], shown: str) -> list[Any]:
    expected = []
    for index, choice in enumerate(answer):
        calls = [
            (f"call_{index}_{number}", "function", "f", arguments)
            for number, arguments in enumerate(said(choice, "call"))
        ]
        thought, text = "".join(said(choice, "thought")), "".join(said(choice, "text"))
        if shown == "inline" and said(choice, "thought"):
            text = f"<think>{thought}</think>{text}"
        reasoning = thought if shown == "field" else ""
        expected.append((index, answers.ending(choice), "assistant", text, reasoning, calls))
    return expected


CONTEXTS = {"inline": RequestContext(headers={"x-include-thinking": "1"})}


def answered(
    parse: Any,
    body: dict[str, Any],
    context: RequestContext,
    answer: list[list[Part]],
    random: Random,
) -> tuple[list[Any], Any]:
    """The chunks and the body of one answer, which another interleaving does not change."""
    usage = random.random() < 0.5
    options = WITH_USAGE if usage else {}
    request = parse(json.dumps({**body, "n": len(answer), **options}).encode(), context)
    events, other_events = events_of_choices(answer, random), events_of_choices(answer, random)
    frames = frames_of(request.stream_encoder(**MADE), events)
    whole = answers.body_of(request.body_encoder(**MADE), events)
    assert whole == answers.body_of(request.body_encoder(**MADE), other_events)
    assert len(frames) <= len(events) + len(answer)
    _check_frames([*frames], whole, num_choices=len(answer), usage=usage)
    return frames, whole


@pytest.mark.parametrize("shown", ["hidden", "field", "inline"])
@given(answer=CHOICES, random=randoms)
def test_chat(shown: str, answer: list[list[Part]], random: Random) -> None:
    body = {**CHAT, "include_reasoning": shown == "field"}
    context = CONTEXTS.get(shown, RequestContext())
    frames, whole = answered(openai_chat.parse, body, context, answer, random)
    assert essence(whole) == expected(answer, shown)
    assert essence(as_the_sdk_sees_it(frames)) == expected(answer, shown)
    for choice, made in zip(whole["choices"], answer, strict=True):
        only_calls = said(made, "call") and not expected([made], shown)[0][3]
        assert (choice["message"]["content"] is None) == bool(only_calls)


@given(answer=CHOICES, random=randoms)
def test_completions(answer: list[list[Part]], random: Random) -> None:
    answer = [[part for part in choice if part[0] != "call"] for choice in answer]
    frames, whole = answered(openai_completions.parse, PROMPT, RequestContext(), answer, random)
    texts = [""] * len(answer)
    for choice in (choice for frame in frames for choice in frame["choices"]):
        texts[choice["index"]] += choice["text"]
    inline = [text for _, _, _, text, _, _ in expected(answer, "inline")]
    assert texts == [choice["text"] for choice in whole["choices"]] == inline


def _check_frames(frames: list[Any], whole: Any, *, num_choices: int, usage: bool) -> None:
    """Each choice ends once, with its last chunk; usage comes last, where it was asked for."""
    if usage:
        last = frames.pop()
        assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(("usage" in frame) == usage and not frame.get("usage") for frame in frames)
    reasons: dict[int, list[Any]] = {index: [] for index in range(num_choices)}
    for frame in frames:
        (choice,) = frame["choices"]
        reasons[choice["index"]].append(choice["finish_reason"])
    for index, reported in reasons.items():
        assert reported == [None] * (len(reported) - 1) + [whole["choices"][index]["finish_reason"]]


@each_case("asked", [{}, {"stream_options": {"include_usage": False}}, WITH_USAGE])
@each_case("always", [True, False])
def test_usage_comes_when_the_client_or_the_operator_wants_it(
    asked: dict[str, Any], always: bool
) -> None:
    context = RequestContext(always_include_usage=always)
    request = openai_chat.parse(json.dumps({**CHAT, **asked}).encode(), context)
    events = events_of_choices([[("text", "Paris")]], Random(1))
    usage = frames_of(request.stream_encoder(**MADE), events)[-1].get("usage")
    assert (usage is not None) == (always or asked == WITH_USAGE)
    assert usage is None or usage["prompt_tokens"] == 9
