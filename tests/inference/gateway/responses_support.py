"""What tests of the Responses API share: requests, scripts of a neuron, and reading what comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from inference.conversations import selectors
from inference.gateway.database import DatabaseThreads
from inference.protocol.events import (
    Accepted,
    Event,
    ReasoningDelta,
    Tokenized,
    TokensCounted,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.protocol.generation import ChatInput, Submit
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.fake_neuron import (
    ACCEPTED,
    Script,
    breaking,
    deltas,
    ended,
    saying,
    then,
)

RESPONSES = "/v1/responses"
TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]


counts = saying([TokensCounted(request_id="", prompt_tokens=42)])
tokenizes = saying(
    [Tokenized(request_id="", token_ids=[5, 6], context_tokens=100, text="Hi!", texts=["Hi", "!"])]
)
calls_a_tool = saying(
    [Accepted(request_id="", prompt_tokens=20)],
    [ReasoningDelta(request_id="", text="It is", opens="<think>")],
    [ReasoningDelta(request_id="", text=" Paris.", closes="</think>")],
    [ToolCallStarted(request_id="", call_id="call_a", name="get_weather")],
    [ToolCallDelta(request_id="", arguments='{"city": "Paris"}')],
    ended(
        "tool_calls",
        prompt_tokens=20,
        completion_tokens=9,
        cached_tokens=16,
        reasoning_tokens=3,
    ),
)
breaks = then(
    saying([ACCEPTED], *deltas("The")), breaking("engine_crashed", message="The engine crashed.")
)


def gated(gate: asyncio.Event) -> Script:
    """Says "Pa", and "ris" once the gate is open."""

    async def opens(submit: Submit) -> AsyncIterator[list[Event]]:
        await gate.wait()
        yield []

    begun = saying([ACCEPTED, *deltas("Pa")[0]])
    rest = saying([*deltas("ris")[0], *ended(completion_tokens=2)])
    return then(then(begun, opens), rest)


def events(answer: Exchange) -> list[dict[str, Any]]:
    frames = answer.body.decode().split("\n\n")[:-1]
    data = [frame.partition("data: ")[2] for frame in frames if frame[0] != ":"]
    return [json.loads(item) for item in data]


def chat(frame: Any) -> ChatInput:
    assert isinstance(frame, Submit) and isinstance(frame.request.input, ChatInput)
    return frame.request.input


async def until_status(kept: DatabaseThreads, response_id: str, status: str) -> None:
    async with asyncio.timeout(60):
        while await kept.query(lambda: stored_status(response_id)) != status:
            await asyncio.sleep(0.02)


def stored_status(response_id: str) -> str | None:
    record = selectors.response_find(response_id, account="anonymous")
    return None if record is None else record.status
