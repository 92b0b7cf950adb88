"""The bodies that tests of the gateway send where their words do not matter, scripts of a neuron,
and reading and waiting for what comes. ``more`` are further fields, or others in their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from inference.conversations import services
from inference.gateway.database import DatabaseThreads
from inference.gateway.request.answer_check import AnswerCheck
from inference.gateway.request.event_stream import RequestStream, RequestStreams
from inference.gateway.request.tokens import UsageCounter
from inference.protocol.events import (
    Accepted,
    Event,
    ReasoningDelta,
    Tokenized,
    TokensCounted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.protocol.generation import ChatInput, GenerationRequest, Submit, TextInput
from tests.inference.gateway.fake_neuron import (
    ACCEPTED,
    Script,
    breaking,
    deltas,
    ended,
    saying,
    then,
)

QUESTION = "What is the capital of France?"
PATIENCE_S = 60
RESPONSES = "/v1/responses"
counts = saying([TokensCounted(request_id="", prompt_tokens=42)])
tokenizes = saying(
    [Tokenized(request_id="", token_ids=[5, 6], context_tokens=100, text="Hi!", texts=["Hi", "!"])]
)
breaks = then(
    saying([ACCEPTED], *deltas("The")), breaking("engine_crashed", message="The engine crashed.")
)


def chat_body(*image_urls: str, **more: Any) -> dict[str, Any]:
    """A chat of one question, with images."""
    content: Any = QUESTION
    if image_urls:
        images = [{"type": "image_url", "image_url": {"url": url}} for url in image_urls]
        content = [{"type": "text", "text": QUESTION}, *images]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **more}


def responses_body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": QUESTION, **more}


def embeddings_body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": ["one", "two"], **more}


async def until(holds: Callable[[], object]) -> None:
    """Return once ``holds()`` is true. Raises ``TimeoutError`` after ``PATIENCE_S``."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def open_stream(streams: RequestStreams, request_id: str, neuron: str) -> RequestStream:
    """A request that ``neuron`` was sent, in its epoch ``e``; its answer may have any length."""
    request = GenerationRequest(model="tiny", input=TextInput(texts=["Hi"]))
    stream = RequestStream(
        request_id=request_id,
        neuron=neuron,
        epoch="e",
        model="tiny",
        first_token_timeout_s=60.0,
        abort=lambda: None,
        usage_counter=UsageCounter(),
        check=AnswerCheck(request, Usage(prompt_tokens=10**6, completion_tokens=10**6)),
    )
    streams.add(stream)
    return stream


TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]


calls_a_tool = saying(
    [Accepted(request_id="", prompt_tokens=20)],
    [ReasoningDelta(request_id="", text="It is", opens="<think>")],
    [ReasoningDelta(request_id="", text=" Paris.", closes="</think>")],
    [ToolCallStarted(request_id="", call_id="call_a", name="get_weather")],
    [ToolCallDelta(request_id="", arguments='{"city": "Paris"}')],
    ended(
        "tool_calls", prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=3
    ),
)


def gated(gate: asyncio.Event) -> Script:
    """Says "Pa", and "ris" once the gate is open."""

    async def opens(submit: Submit) -> AsyncIterator[list[Event]]:
        await gate.wait()
        yield []

    begun = saying([ACCEPTED, *deltas("Pa")[0]])
    rest = saying([*deltas("ris")[0], *ended(completion_tokens=2)])
    return then(then(begun, opens), rest)


def chat(frame: Any) -> ChatInput:
    assert isinstance(frame, Submit) and isinstance(frame.request.input, ChatInput)
    return frame.request.input


async def until_status(kept: DatabaseThreads, response_id: str, status: str) -> None:
    def found() -> str | None:
        record = services.response_find(response_id, account="anonymous")
        return record and record.status

    async with asyncio.timeout(60):
        while await kept.query(found) != status:
            await asyncio.sleep(0.02)
