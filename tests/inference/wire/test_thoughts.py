"""Where clients of each dialect see thoughts: hidden, shown or cut off, streamed or whole.

The model thinks although nobody wants it to, as one does whose template opens the block itself.
"""

from __future__ import annotations

import json
from typing import Any

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ReasoningDelta,
    Usage,
)
from inference.wire.dialect import RequestContext
from inference.wire.upstream.answer_events import LinesReader, SseReader
from inference.wire.upstream.chat import ChatEvents
from inference.wire.upstream.messages_events import MessagesEvents
from inference.wire.upstream.ollama import OllamaEvents
from tests.cases import each_case
from tests.inference.wire.answers import content_of, events_read, folded, frames
from tests.inference.wire.golden import CREATED_UNIX_S, DIALECTS, REQUEST_ID

TURNS = {"model": "m", "messages": [{"role": "user", "content": "2+2?"}]}
BODIES: dict[str, dict[str, Any]] = {
    "anthropic_messages": TURNS | {"max_tokens": 2000},
    "ollama_chat": TURNS,
    "ollama_generate": {"model": "m", "prompt": "2+2?"},
    "openai_chat": TURNS,
    "openai_responses": {"model": "m", "input": "2+2?"},
}
ENABLED = {"type": "enabled", "budget_tokens": 1024}
THOUGHT, ANSWER = "2+2 is 4.", "It is 4."
HIDDEN, SHOWN = "", THOUGHT

OPENS = ReasoningDelta(request_id=REQUEST_ID, text="2+2", opens="<think>")
CLOSES = ReasoningDelta(request_id=REQUEST_ID, text=" is 4.", closes="</think>")
CUT_OFF = ReasoningDelta(request_id=REQUEST_ID, text=" is 4.", missing_close="</think>")


def _events(*between: Event) -> list[Event]:
    usage = Usage(prompt_tokens=3, completion_tokens=9, reasoning_tokens=6)
    is_whole = any(isinstance(one, Delta) for one in between)
    return [
        Accepted(request_id=REQUEST_ID, prompt_tokens=3),
        *between,
        ChoiceFinished(request_id=REQUEST_ID, reason="stop" if is_whole else "length"),
        Finished(request_id=REQUEST_ID, usage=usage),
    ]


READERS = {
    "anthropic_messages": (MessagesEvents, SseReader),
    "ollama_chat": (OllamaEvents, LinesReader),
    "ollama_generate": (OllamaEvents, LinesReader),
    "openai_chat": (ChatEvents, SseReader),
}


def _seen(dialect: str, sent: bytes, *, is_streamed: bool) -> tuple[str, str]:
    """Thought and answer."""
    if dialect == "openai_responses":
        last = frames(sent)[-1]["response"] if is_streamed else json.loads(sent)
        texts = {item["type"]: item["content"][0]["text"] for item in last["output"]}
        return texts.get("reasoning", ""), texts.get("message", "")
    reader_of, make_frames = READERS[dialect]
    found = content_of(events_read(reader_of, make_frames().feed(sent) if is_streamed else [sent]))
    return found.reasoning, found.text


def _answer(dialect: str, body: dict[str, Any], events: list[Event], **headers: str) -> bytes:
    parse, _ = DIALECTS[dialect]
    request = parse(json.dumps(body).encode(), RequestContext(headers=headers))
    make = request.stream_encoder if body["stream"] else request.body_encoder
    return folded(make(request_id=REQUEST_ID, clock=lambda: CREATED_UNIX_S), events)


@each_case("is_streamed", [False, True])
@each_case(
    ("dialect", "fields", "thought"),
    [
        *[
            ("anthropic_messages", fields, HIDDEN)
            for fields in (
                {},
                {"thinking": {"type": "disabled"}},
                {"thinking": ENABLED | {"display": "omitted"}},
            )
        ],
        ("anthropic_messages", {"thinking": ENABLED}, SHOWN),
        *[
            (
                dialect,
                {} if think is None else {"think": think},
                HIDDEN if think is False else SHOWN,
            )
            for dialect in ("ollama_chat", "ollama_generate")
            for think in (None, False, True, "low")
        ],
        ("openai_chat", {"reasoning_effort": "high"}, HIDDEN),
        ("openai_chat", {"include_reasoning": False}, HIDDEN),
        ("openai_chat", {"include_reasoning": True, "reasoning_effort": "none"}, SHOWN),
        ("openai_responses", {}, SHOWN),
        ("openai_responses", {"reasoning": {"effort": "none"}}, SHOWN),
    ],
)
def test_a_thought_is_where_its_client_wants_it(
    dialect: str, fields: dict[str, Any], thought: str, is_streamed: bool
) -> None:
    body = BODIES[dialect] | fields | {"stream": is_streamed}
    whole = _events(OPENS, CLOSES, Delta(request_id=REQUEST_ID, text=ANSWER))
    for events, answer in ((whole, ANSWER), (_events(OPENS, CUT_OFF), "")):
        sent = _answer(dialect, body, events)
        assert _seen(dialect, sent, is_streamed=is_streamed) == (thought, answer)
        if thought == HIDDEN:
            assert THOUGHT not in sent.decode() and "is 4.</" not in sent.decode()


@each_case("is_streamed", [False, True])
@each_case("last", [CLOSES, CUT_OFF])
def test_an_inline_thought_has_both_markers(last: Event, is_streamed: bool) -> None:
    body = TURNS | {"stream": is_streamed}
    sent = _answer("openai_chat", body, _events(OPENS, last), **{"x-include-thinking": "true"})
    seen = _seen("openai_chat", sent, is_streamed=is_streamed)
    assert seen == ("", f"<think>{THOUGHT}</think>")
