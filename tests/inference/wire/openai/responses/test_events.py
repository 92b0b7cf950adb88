"""The end of a large answer comes in parts: no turn of a gateway's loop encodes all of it."""

from __future__ import annotations

import json

import pytest

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    TextLogprob,
    Usage,
)
from inference.wire.openai.responses import events as openai_responses_events
from inference.wire.openai.responses.events import ResponseBodyEncoder, ResponseStreamEncoder
from inference.wire.openai.responses.output import AnswerSettings

SETTINGS = AnswerSettings(
    echo={}, members={}, summarises=False, carries_reasoning=False, background=False
)
TOKEN = TextLogprob(token="a", token_bytes=b"a", logprob=-0.1, top=[("a", b"a", -0.1)])
END = ChoiceFinished(request_id="r", reason="stop")
EVENTS: list[Event] = [
    Accepted(request_id="r", prompt_tokens=3),
    *[Delta(request_id="r", text="a", logprobs=[TOKEN])] * 20,
    Delta(request_id="r", text="", logprobs=[TOKEN]),
]
FINISHED = Finished(request_id="r", usage=Usage(prompt_tokens=3, completion_tokens=21))


def encoder() -> ResponseStreamEncoder:
    made = ResponseStreamEncoder(SETTINGS, "0" * 32, lambda: 1)
    for event in EVENTS:
        made.encode(event)
    return made


def test_the_events_that_end_an_item_are_parts_of_their_own() -> None:
    whole, parted = encoder(), encoder()
    parts = list(parted.parts(END))
    assert b"".join(parts) == whole.encode(END)
    kinds = [part.partition(b"\n")[0].removeprefix(b"event: response.") for part in parts]
    assert kinds == [
        b"output_text.delta",
        b"output_text.done",
        b"content_part.done",
        b"output_item.done",
    ]
    assert parted.encode(FINISHED) == whole.encode(FINISHED)


def test_a_body_writes_no_events_that_end_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    named_frame = openai_responses_events.named_frame

    def noted(kind: str, fields: dict[str, object], number: int) -> bytes:
        written.append(kind)
        return named_frame(kind, fields, number)

    monkeypatch.setattr(openai_responses_events, "named_frame", noted)
    body = ResponseBodyEncoder(SETTINGS, "0" * 32, lambda: 1)
    for event in (*EVENTS, END):
        assert body.encode(event) == b""
    response = json.loads(body.encode(FINISHED))
    assert not [kind for kind in written if kind.endswith(".done")]
    (part,) = response["output"][0]["content"]
    assert (part["text"], len(part["logprobs"])) == ("a" * 20, 21)
    streamed = encoder()
    streamed.encode(END)
    assert body.next_number == streamed.next_number + 1
