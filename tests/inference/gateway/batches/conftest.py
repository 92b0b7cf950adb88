"""A fleet that is idle, so that batches run; what their tests send and how long they wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import openai
import pytest_asyncio
from openai.types import Batch as OpenAIBatch

from inference.protocol.events import Event
from inference.protocol.generation import Submit
from tests.inference.gateway.bodies import PATIENCE_S
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, paris

T = TypeVar("T")
CHAT = "/v1/chat/completions"
KEYED = {"authorization": f"Bearer {KEY}"}
ENDS = ("completed", "failed", "expired", "cancelled")


@pytest_asyncio.fixture
async def idle_neuron(neuron: FakeNeuron) -> None:
    neuron.queue_depth = 0
    await neuron.beat()


def line(custom_id: str, url: str = CHAT, **body: Any) -> str:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": custom_id}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": asked})


async def begin(sdk: openai.AsyncOpenAI, *lines: str) -> OpenAIBatch:
    content = "\n".join(lines).encode()
    file = await sdk.files.create(file=("requests.jsonl", content), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"night": "1"},
    )


async def polled(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Asks until ``holds`` of the answer. Returns it."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(answer := await ask()):
            await asyncio.sleep(0.05)
    return answer


async def until_ended(sdk: openai.AsyncOpenAI, batch_id: str) -> OpenAIBatch:
    return await polled(lambda: sdk.batches.retrieve(batch_id), lambda one: one.status in ENDS)


def message(text: str) -> Any:
    turn = {"role": "user", "content": text}
    return {
        "custom_id": text.replace(" ", "-"),
        "params": {"model": "tiny", "max_tokens": 9, "messages": [turn]},
    }


async def results(sdk: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    content = (await sdk.files.content(file_id)).text
    return {one["custom_id"]: one for one in map(json.loads, content.splitlines())}


def counts(batch: OpenAIBatch) -> tuple[int, int, int]:
    """All of its requests, the completed and the failed."""
    found = batch.request_counts
    assert found is not None
    return found.total, found.completed, found.failed


async def picky(submit: Submit) -> AsyncIterator[list[Event]]:
    """Refuses requests that contain "refuse me"."""
    is_refused = "refuse me" in str(submit.request)
    async for events in (breaking("invalid_schema") if is_refused else paris)(submit):
        yield events
