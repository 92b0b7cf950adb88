"""Placement's effects, without Redis: snapshots are given, loads are counted."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.gateway.request.event_stream import RequestStreams
from inference.gateway.request.place import MAX_HINTS, Placer, routing_hint
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    EmbeddingRequest,
    GenerationRequest,
    TextInput,
    TokensInput,
)
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.errors import ApiError
from tests.cases import each_case
from tests.fleet.conftest import device
from tests.inference.gateway.bodies import open_stream
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue

MAX_WAITING = 1000
CPU = device(total_memory_bytes=8 << 30, free_memory_bytes=4 << 30)


READY, LOADING = ReplicaStatus.READY, ReplicaStatus.LOADING
DOCUMENT = "words of a long document " * 100


def fleet(**statuses: ReplicaStatus | None) -> FleetSnapshot:
    """Neurons by name, and the state of ``tiny`` on each."""
    neurons = []
    for name, status in statuses.items():
        replica = {"neuron": name, "model": "tiny", "job_id": "j", "status_age_s": 1.0}
        replicas = (ReplicaView(**replica, status=status),) if status else ()  # type: ignore[arg-type]
        view = NeuronView(name=name, epoch="e", version="0", devices=(CPU,), replicas=replicas)
        neurons.append(view)
    return FleetSnapshot(neurons=tuple(neurons))


@pytest.fixture
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.gateway.request.place.LOOK_INTERVAL_S", 0.001)


async def refused(placer: Placer) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        await placer.find_place(ENTRY, deadline_s=soon_s())
    return refusal.value


def placer_of(
    streams: RequestStreams,
    catalogue: FakeCatalogue,
    *snapshots: FleetSnapshot,
    max_waiting: int = MAX_WAITING,
) -> Placer:
    remaining = list(snapshots)

    async def read() -> FleetSnapshot:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return Placer(catalogue, read, streams, max_waiting=max_waiting)


def soon_s() -> float:
    return asyncio.get_running_loop().time() + 60


async def test_a_burst_between_two_heartbeats_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.gateway.request.place.HEARTBEAT_INTERVAL_S", 60.0)
    both = fleet(ant=READY, bee=READY)
    streams = RequestStreams()
    placer = placer_of(streams, FakeCatalogue(), both)
    chosen: Counter[str] = Counter()
    for index in range(10):
        place = await placer.find_place(ENTRY, deadline_s=soon_s())
        chosen[place.replica.neuron] += 1
        open_stream(streams, str(index), place.replica.neuron)
    assert chosen == {"ant": 5, "bee": 5}
    for stream in streams:
        stream.end()


@pytest.mark.usefixtures("quick_rounds")
async def test_those_who_wait_ask_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.gateway.request.place.LOAD_REPEAT_S", 60.0)
    num_waiting, num_rounds = 100, 20
    num_looks = 0

    async def read() -> FleetSnapshot:
        nonlocal num_looks
        num_looks += 1
        return fleet(ant=READY if num_looks >= num_waiting + num_rounds else None)

    catalogue, order = FakeCatalogue(), list[int]()
    placer = Placer(catalogue, read, RequestStreams(), max_waiting=MAX_WAITING)

    async def wait(number: int) -> None:
        assert (await placer.find_place(ENTRY, deadline_s=soon_s())).was_cold
        order.append(number)

    await asyncio.gather(*(wait(number) for number in range(num_waiting)))
    assert num_looks == num_waiting + num_rounds + num_waiting
    assert order == list(range(num_waiting)), "first come, first served"
    assert catalogue.loads == [("tiny", "ant")]
    assert placer.num_waiting == 0


async def test_no_more_may_wait_than_are_allowed() -> None:
    placer = placer_of(RequestStreams(), FakeCatalogue(), fleet(ant=LOADING), max_waiting=2)
    waiting = [
        asyncio.create_task(placer.find_place(ENTRY, deadline_s=soon_s() + 60)) for _ in range(2)
    ]
    while placer.num_waiting < 2:
        await asyncio.sleep(0)
    refusal = await refused(placer)
    assert (refusal.status, refusal.code) == (503, "queue_full")
    assert "HELEXA_MAX_WAITING_REQUESTS" in refusal.message
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert placer.num_waiting == 0


@pytest.mark.usefixtures("quick_rounds")
async def test_who_waits_is_placed_by_the_entry_as_it_is_now() -> None:
    """The request came before the model's size was known; its first load has measured it."""
    catalogue, streams = FakeCatalogue(), RequestStreams()
    catalogue.listed = [replace(ENTRY, weight_bytes=CPU.total_memory_bytes + 1)]
    loading = fleet(ant=LOADING)
    placer = placer_of(streams, catalogue, loading, loading, fleet(ant=None))
    assert (await refused(placer)).code == "exceeds_device"
    assert catalogue.loads == []
    placer = placer_of(streams, catalogue, fleet(ant=ReplicaStatus.FAILED))
    refusal = await refused(placer)
    assert (refusal.status, refusal.code, bool(refusal.retry_after_s)) == (503, "load_failed", True)


def prefixes(request: GenerationRequest, model: str = "tiny", salt: str = "") -> tuple[bytes, ...]:
    return routing_hint(request, model=model, salt=salt).prefixes


def hints(*contents: str, model: str = "tiny", salt: str = "me") -> tuple[bytes, ...]:
    """Returns the hints of a system prompt, then turns of the user and the model."""
    roles: tuple[Any, ...] = ("system", *("user", "assistant") * len(contents))
    messages = [
        ChatMessage(role=role, content=content)
        for role, content in zip(roles, contents, strict=False)
    ]
    return prefixes(GenerationRequest(model=model, input=ChatInput(messages=messages)), model, salt)


@each_case("longer", ["", "x" * 5000], ids=["short", "long"])
def test_all_turns_of_a_conversation_share_the_first_hint(longer: str) -> None:
    turns = [f"{longer}words {number}" for number in range(40)]
    of_turns = [hints(*turns[:length]) for length in range(2, 40, 2)]
    assert len({found[0] for found in of_turns}) == 1
    for shorter, longer_one in itertools.pairwise(of_turns):
        assert longer_one[: len(shorter)] == shorter
    assert len(of_turns[-1]) == MAX_HINTS


@each_case(
    ("one", "other", "num_shared"),
    [
        (hints("system", "hello"), hints("system", "goodbye"), 0),
        (hints("system", "hello"), hints("other system", "hello"), 0),
        (hints("system", "hello"), hints("system", "hello", salt="you"), 0),
        (hints("system", "hello"), hints("system", "hello", model="other"), 0),
        (hints("s", "hello", "hi", "one"), hints("s", "hello", "hi", "two"), 1),
        (hints("s", DOCUMENT + "What is it?"), hints("s", DOCUMENT + "Who wrote it?"), 1),
        (hints("s", DOCUMENT), hints("other system", DOCUMENT), 0),
        (hints("s", DOCUMENT), hints("s", "Another " + DOCUMENT), 0),
        (hints("s", DOCUMENT + "a?"), hints("s", DOCUMENT + "a?", "a text", "And who?"), 2),
    ],
)
def test_shared_hints(one: tuple[bytes, ...], other: tuple[bytes, ...], num_shared: int) -> None:
    same = [mine == others for mine, others in zip(one, other, strict=False)]
    assert same[: num_shared + 1] == ([True] * num_shared + [False])[: len(same)]


@each_case("length", [0, 10, 5_000, 500_000])
def test_texts_and_tokens(length: int) -> None:
    text = GenerationRequest(model="tiny", input=TextInput(texts=["x" * length]))
    tokens = GenerationRequest(model="tiny", input=TokensInput(prompts=[[7] * length]))
    longer = GenerationRequest(model="tiny", input=TextInput(texts=["x" * (length + 2000)]))
    for request in (text, tokens):
        assert 1 <= len(prefixes(request)) <= MAX_HINTS
    assert length <= 1024 or prefixes(longer)[0] == prefixes(text)[0]
    vectors = EmbeddingRequest(model="tiny", input=TextInput(texts=["a"]))
    assert routing_hint(vectors, model="tiny", salt="").prefixes == ()
