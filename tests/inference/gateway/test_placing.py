"""Placement's effects, without Redis: snapshots are given, loads are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from fleet.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.gateway.placing import Placer
from inference.gateway.streams import RequestStream, RequestStreams
from inference.gateway.tally import Tally
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus
from inference.wire.errors import ApiError
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue

CPU = DeviceInfo(
    index=0, kind="cpu", name="CPU", total_memory_bytes=8 << 30, free_memory_bytes=4 << 30
)


def neuron(name: str, status: ReplicaStatus | None) -> NeuronView:
    replicas: tuple[ReplicaView, ...] = ()
    if status is not None:
        replicas = (
            ReplicaView(neuron=name, model="tiny", job_id="j", status=status, status_age_s=1.0),
        )
    return NeuronView(name=name, epoch="e", version="0", devices=(CPU,), replicas=replicas)


def placer_of(
    streams: RequestStreams, catalogue: FakeCatalogue, *snapshots: FleetSnapshot
) -> Placer:
    remaining = list(snapshots)

    async def read() -> FleetSnapshot:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return Placer(catalogue, read, streams)


def soon_s() -> float:
    return asyncio.get_running_loop().time() + 5


async def test_a_burst_between_two_heartbeats_spreads() -> None:
    both = FleetSnapshot(
        neurons=(neuron("ant", ReplicaStatus.READY), neuron("bee", ReplicaStatus.READY))
    )
    streams = RequestStreams()
    placer = placer_of(streams, FakeCatalogue(), both)
    chosen: Counter[str] = Counter()
    for index in range(10):
        place = await placer.find_place(ENTRY, deadline_s=soon_s())
        chosen[place.neuron] += 1
        streams.add(
            RequestStream(
                request_id=str(index),
                neuron=place.neuron,
                epoch=place.epoch,
                model=place.model,
                first_token_timeout_s=60,
                abort=lambda: None,
                tally=Tally(),
            )
        )
    assert chosen == {"ant": 5, "bee": 5}
    for stream in streams:
        stream.end()


async def test_a_load_is_asked_for_once_however_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.gateway.placing.POLL_INTERVAL_S", 0.001)
    empty = FleetSnapshot(neurons=(neuron("ant", None),))
    ready = FleetSnapshot(neurons=(neuron("ant", ReplicaStatus.READY),))
    catalogue = FakeCatalogue()
    placer = placer_of(RequestStreams(), catalogue, *[empty] * 12, ready)
    places = await asyncio.gather(
        *(placer.find_place(ENTRY, deadline_s=soon_s()) for _ in range(4))
    )
    assert {place.neuron for place in places} == {"ant"}
    assert catalogue.loads == [("tiny", "ant")]


@pytest.mark.parametrize(
    ("snapshot", "code"),
    [
        (FleetSnapshot(neurons=()), "no_neuron"),
        (FleetSnapshot(neurons=(neuron("ant", ReplicaStatus.FAILED),)), "load_failed"),
    ],
)
async def test_refusals(snapshot: FleetSnapshot, code: str) -> None:
    placer = placer_of(RequestStreams(), FakeCatalogue(), snapshot)
    with pytest.raises(ApiError) as refused:
        await placer.find_place(ENTRY, deadline_s=soon_s())
    assert (refused.value.status, refused.value.code) == (503, code)
    assert refused.value.retry_after_s


async def test_waiting_ends_with_the_deadline() -> None:
    loading: Any = FleetSnapshot(neurons=(neuron("ant", ReplicaStatus.LOADING),))
    placer = placer_of(RequestStreams(), FakeCatalogue(), loading)
    with pytest.raises(ApiError) as refused:
        await placer.find_place(ENTRY, deadline_s=asyncio.get_running_loop().time() + 0.05)
    assert refused.value.code == "model_loading"
