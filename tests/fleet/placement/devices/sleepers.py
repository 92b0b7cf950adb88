"""Models that sleep, on neurons with one card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.live.snapshot import NeuronView, ReplicaView
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import AsleepBytes, LoadReport
from tests.fleet.placement.fleets import GIB, card, entry, neuron, processor, replica

ASLEEP = ReplicaStatus.ASLEEP


def report(gib: float = 10, asleep_gib: float | None = 1, host_gib: float = 9) -> LoadReport:
    """Returns the report of a model that takes ``gib``, and ``asleep_gib`` of that while it sleeps;
    ``None``: it cannot."""
    asleep = None
    if asleep_gib is not None:
        asleep = AsleepBytes(device_bytes=int(asleep_gib * GIB), host_bytes=int(host_gib * GIB))
    return LoadReport(
        architecture="llama",
        device="cuda:0",
        dtype="bfloat16",
        num_parameters=1,
        weight_bytes=1,
        kv_bytes=1,
        num_kv_blocks=1,
        kv_block_tokens=32,
        context_tokens=32,
        vocab_size=8,
        quantization="",
        compiled="",
        load_seconds=10.0,
        tokenizer_dir="",
        actual_bytes=int(gib * GIB),
        asleep=asleep,
    )


def sleeping(model: str = "tiny", **changes: Any) -> ReplicaView:
    values: dict[str, Any] = {
        "gib": 1,
        "report": report(),
        "host_memory_bytes": 9 * GIB,
        "spec_digest": entry(model, 10).spec_digest(),
    }
    return replica(model, ASLEEP, **values | changes)


def host(name: str = "a", *holds: ReplicaView, free: float = 12, ram: float = 60) -> NeuronView:
    holds = tuple(replica_on(view, name) for view in holds)
    return neuron(name, card(free=free), processor(free=ram), holds=holds)


def replica_on(view: ReplicaView, name: str) -> ReplicaView:
    return replace(view, neuron=name)
