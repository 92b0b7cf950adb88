"""The heartbeat of a neuron without a model: one CPU and one replica that is ready."""

from __future__ import annotations

import os
import time

from fleet.live.load_orders import LoadOrders
from inference.protocol.engine import EngineStats
from inference.protocol.heartbeat import (
    PROTOCOL,
    DeviceInfo,
    HostInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
)
from inference.protocol.load_report import LoadReport

MEMORY_BYTES = 64 << 30
CONTEXT_TOKENS = 8192
BLOCK_TOKENS = 32
NUM_BLOCKS = 100_000


def heartbeat(
    *, name: str, epoch: str, model: str, started_unix_s: float, in_flight: int
) -> NeuronHeartbeat:
    now_s = time.time()
    return NeuronHeartbeat(
        name=name,
        epoch=epoch,
        version="benchmark",
        protocol=PROTOCOL,
        started_unix_s=started_unix_s,
        time_unix_s=now_s,
        host=HostInfo(
            hostname=name,
            os="linux",
            num_cores=1,
            total_memory_bytes=MEMORY_BYTES,
            free_memory_bytes=MEMORY_BYTES,
        ),
        devices=[
            DeviceInfo(
                index=0,
                kind="cpu",
                name="CPU",
                total_memory_bytes=MEMORY_BYTES,
                free_memory_bytes=MEMORY_BYTES,
            )
        ],
        replicas=[
            ReplicaState(
                model=model,
                job_id="benchmark",
                order=LoadOrders(os.environ["HELEXA_SECRET_KEY"]).order(neuron=name, model=model),
                status=ReplicaStatus.READY,
                since_unix_s=started_unix_s,
                report=_report(),
                capabilities=["chat", "completions"],
                stats=_stats(in_flight, now_s),
            )
        ],
    )


def _stats(in_flight: int, now_s: float) -> EngineStats:
    return EngineStats(
        in_flight=in_flight,
        queue_depth=0,
        kv_blocks_used=in_flight,
        kv_blocks_total=NUM_BLOCKS,
        decode_tokens_per_s=0.0,
        prefill_tokens_per_s=0.0,
        last_forward_unix_s=now_s,
    )


def _report() -> LoadReport:
    return LoadReport(
        architecture="none",
        device="cpu",
        dtype="none",
        num_parameters=0,
        weight_bytes=0,
        kv_bytes=0,
        num_kv_blocks=NUM_BLOCKS,
        kv_block_tokens=BLOCK_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        vocab_size=1,
        quantization="none",
        compiled="none",
        load_seconds=0.0,
        tokenizer_dir="",
    )
