"""Requests that are open, and neurons that write events into their streams."""

from __future__ import annotations

import pytest
import redis.asyncio

from inference.gateway.request.event_stream import RequestStreams
from inference.protocol import keys
from inference.protocol.events import EVENT_BATCH_FIELD, Event, EventBatch, encode_event_batch

GATEWAY = "g1"
GENEROUS_S = 60.0


class Writer:
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._numbers: dict[str, int] = {}

    async def write(self, neuron: str, *events: Event) -> str:
        number = self._numbers.get(neuron, 0)
        self._numbers[neuron] = number + 1
        batch = EventBatch(epoch="e", sequence_number=number, events=list(events))
        entry_id = await self._client.xadd(
            keys.events_key(neuron, GATEWAY), {EVENT_BATCH_FIELD: encode_event_batch(batch)}
        )
        return bytes(entry_id).decode()


class Faults(list[tuple[str, str]]):
    """What readers have found that no honest neuron writes."""

    def add(self, neuron: str, what: str, *, is_grave: bool = False) -> None:
        self.append((neuron, what))


@pytest.fixture
def writer(redis_client: redis.asyncio.Redis) -> Writer:
    return Writer(redis_client)


@pytest.fixture
def streams() -> RequestStreams:
    return RequestStreams()


@pytest.fixture
def faults() -> Faults:
    return Faults()
