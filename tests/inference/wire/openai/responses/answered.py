"""Requests of the Responses dialect, and the frames of their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses.events import ResponseStreamEncoder

MADE = {"request_id": "r", "clock": lambda: 1}


def parse(**more: Any) -> openai_responses.ResponsesRequest:
    return openai_responses.parse(json.dumps({"model": "m", "input": "Hi", **more}).encode())


def events_of(answer: list[tuple[str, list[str]]], *, whole: bool) -> Iterator[Event]:
    """``whole``: each part as one delta."""
    yield Accepted(request_id="r", prompt_tokens=1)
    for number, (kind, given_texts) in enumerate(answer):
        texts = ["".join(given_texts)] if whole else given_texts
        if kind == "call":
            yield ToolCallStarted(
                request_id="r", call_id=f"call_{number}", name="f", call_index=number
            )
            for text in texts:
                yield ToolCallDelta(request_id="r", arguments=text, call_index=number)
        elif kind == "thought":
            for text in texts:
                yield ReasoningDelta(request_id="r", text=text)
            yield ReasoningDelta(request_id="r", text="", closes="</think>")
        else:
            for text in texts:
                yield Delta(request_id="r", text=text)
    yield ChoiceFinished(request_id="r", reason="stop")
    yield Finished(request_id="r", usage=Usage(prompt_tokens=1, completion_tokens=1))


def frames(stream: bytes) -> list[dict[str, Any]]:
    read = []
    for frame in stream.decode().split("\n\n")[:-1]:
        name, data = re.fullmatch("event: (.*)\ndata: (.*)", frame).groups()  # type: ignore[union-attr]
        value = json.loads(data)
        assert value["type"] == name
        read.append(value)
    return read


def streamed(encoder: ResponseStreamEncoder, events: Iterator[Event]) -> list[dict[str, Any]]:
    return frames(b"".join(encoder.encode(event) for event in events))
