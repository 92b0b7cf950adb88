"""A fleet as its neurons would report it: heartbeats, recorded as the control records them."""

from __future__ import annotations

import time

from inference.protocol import keys
from inference.protocol.engine import EngineStats
from inference.protocol.heartbeat import (
    PROTOCOL,
    DeviceInfo,
    HostInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
    encode_heartbeat,
)
from inference.version import VERSION

GIB = 1024**3
NUM_CARDS = 4


def make_fleet(*, num_neurons: int, num_replicas: int) -> None:
    """Needs Django to be set up, and its database to be there."""
    from fleet import services
    from fleet.live import reading as live
    from fleet.live.load_orders import load_orders
    from metering.actor import COMMAND

    per_neuron = -(-num_replicas // num_neurons)
    for number in range(per_neuron):
        services.catalogue_model_create(
            actor=COMMAND, name=f"model-{number}", source=f"pypi:model-{number}"
        )
    client = live.redis_client()
    now_s = time.time()
    left = num_replicas
    for number in range(num_neurons):
        name = f"neuron-{number:03d}"
        replicas = [
            _replica(index, now_s, load_orders().order(neuron=name, model=f"model-{index}"))
            for index in range(min(per_neuron, left))
        ]
        beat = _heartbeat(name, replicas, now_s)
        left -= len(beat.replicas)
        services.heartbeat_record(heartbeat=beat)
        client.zadd(keys.NEURONS, {beat.name: now_s})
        client.set(keys.heartbeat_key(beat.name), encode_heartbeat(beat))


def _heartbeat(name: str, replicas: list[ReplicaState], now_s: float) -> NeuronHeartbeat:
    host = HostInfo(
        hostname=name,
        os="Linux",
        num_cores=32,
        total_memory_bytes=128 * GIB,
        free_memory_bytes=64 * GIB,
    )
    return NeuronHeartbeat(
        name=name,
        epoch="one",
        version=VERSION,
        protocol=PROTOCOL,
        started_unix_s=now_s - 3600,
        time_unix_s=now_s,
        host=host,
        devices=[_card(index) for index in range(NUM_CARDS)],
        replicas=replicas,
    )


def _card(index: int) -> DeviceInfo:
    return DeviceInfo(
        index=index,
        kind="cuda",
        name="NVIDIA GeForce RTX 3090",
        total_memory_bytes=24 * GIB,
        free_memory_bytes=4 * GIB,
        utilization_percent=50,
        temperature_c=60,
        power_w=250.0,
    )


def _replica(number: int, now_s: float, order: str) -> ReplicaState:
    stats = EngineStats(
        in_flight=number % 5,
        queue_depth=0,
        kv_blocks_used=number,
        kv_blocks_total=1000,
        decode_tokens_per_s=40.0,
        prefill_tokens_per_s=900.0,
        last_forward_unix_s=now_s,
    )
    return ReplicaState(
        model=f"model-{number}",
        job_id="one",
        order=order,
        status=ReplicaStatus.READY,
        since_unix_s=now_s - 600,
        devices=[f"cuda:{number % NUM_CARDS}"],
        memory_bytes=7 * GIB,
        stats=stats,
    )
