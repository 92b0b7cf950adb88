"""What tests of the Responses API share: requests, scripts of a neuron, and reading what comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from inference.conversations import selectors
from inference.gateway.database import DatabaseThreads
from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Failed,
    Failure,
    Finished,
    ReasoningDelta,
    Tokenized,
    TokensCounted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.protocol.generation import ChatInput, Submit
from tests.inference.gateway.asgi_client import Exchange

RESPONSES = "/v1/responses"
TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]


async def counts(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [TokensCounted(request_id=submit.request_id, prompt_tokens=42)]


async def tokenizes(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [
        Tokenized(
            request_id=submit.request_id,
            token_ids=[5, 6],
            context_tokens=100,
            text="Hi!",
            texts=["Hi", "!"],
        )
    ]


async def calls_a_tool(submit: Submit) -> AsyncIterator[list[Event]]:
    rid = submit.request_id
    yield [Accepted(request_id=rid, prompt_tokens=20)]
    yield [ReasoningDelta(request_id=rid, text="It is", opens="<think>")]
    yield [ReasoningDelta(request_id=rid, text=" Paris.", closes="</think>")]
    yield [ToolCallStarted(request_id=rid, call_id="call_a", name="get_weather")]
    yield [ToolCallDelta(request_id=rid, arguments='{"city": "Paris"}')]
    usage = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=3)
    yield [
        ChoiceFinished(request_id=rid, reason="tool_calls"),
        Finished(request_id=rid, usage=usage),
    ]


async def breaks(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    yield [Delta(request_id=submit.request_id, text="The")]
    failure = Failure(code="engine_crashed", message="The engine crashed.")
    yield [Failed(request_id=submit.request_id, failure=failure)]


async def cut_short(submit: Submit) -> AsyncIterator[list[Event]]:
    """An answer that reached its token limit."""
    rid = submit.request_id
    yield [Accepted(request_id=rid, prompt_tokens=7)]
    for word in ("The", " capital", " of"):
        yield [Delta(request_id=rid, text=word)]
    yield [
        ChoiceFinished(request_id=rid, reason="length"),
        Finished(request_id=rid, usage=Usage(prompt_tokens=7, completion_tokens=3)),
    ]


def gated(gate: asyncio.Event) -> Callable[[Submit], AsyncIterator[list[Event]]]:
    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        rid = submit.request_id
        yield [Accepted(request_id=rid, prompt_tokens=7), Delta(request_id=rid, text="Pa")]
        await gate.wait()
        usage = Usage(prompt_tokens=7, completion_tokens=2)
        yield [
            Delta(request_id=rid, text="ris"),
            ChoiceFinished(request_id=rid, reason="stop"),
            Finished(request_id=rid, usage=usage),
        ]

    return script


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
