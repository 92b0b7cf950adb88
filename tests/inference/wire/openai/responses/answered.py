"""Requests of the Responses dialect, and the frames of their answers."""

from __future__ import annotations

import json
import re
from typing import Any

from inference.protocol.events import (
    Event,
)
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses.events import ResponseStreamEncoder
from tests.inference.wire.answers import folded


def parse(**more: Any) -> openai_responses.ResponsesRequest:
    return openai_responses.parse(json.dumps({"model": "m", "input": "Hi", **more}).encode())


def frames(stream: bytes) -> list[dict[str, Any]]:
    read = []
    for frame in stream.decode().split("\n\n")[:-1]:
        name, data = re.fullmatch("event: (.*)\ndata: (.*)", frame).groups()  # type: ignore[union-attr]
        value = json.loads(data)
        assert value["type"] == name
        read.append(value)
    return read


def streamed(encoder: ResponseStreamEncoder, events: list[Event]) -> list[dict[str, Any]]:
    return frames(folded(encoder, events))
