"""Reports of processes, each second: a neuron's heartbeat, and the models that a gateway waits for.

A stage that a neuron holds for an engine of another neuron is no replica: no request goes to it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from inference.protocol.engine import EngineStats
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadReport
from inference.version import Build


class HeldStageStatus(StrEnum):
    LOADING = "loading"
    """Fetches files, waits for other loads, reserves memory."""
    LISTENING = "listening"
    """Waits for its engine or reads its weights."""
    READY = "ready"
    FAILED = "failed"
    """Forgotten after a while, or when it is ordered again."""


HELD_STAGE_TRANSITIONS = {
    HeldStageStatus.LOADING: {HeldStageStatus.LISTENING, HeldStageStatus.FAILED},
    HeldStageStatus.LISTENING: {HeldStageStatus.READY, HeldStageStatus.FAILED},
    HeldStageStatus.READY: set[HeldStageStatus](),
    HeldStageStatus.FAILED: set[HeldStageStatus](),
}


class LoadState(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    job_id: str
    """A held stage names the load job of the whole model."""
    order: str = ""
    since_unix_s: float
    spec_digest: str = ""
    memory_bytes: int | None = None
    """The most that it may allocate; ``None`` until measured. Asleep: the memory that it uses."""
    progress: LoadProgress | None = None
    failure: LoadFailure | None = None


class HeldStage(LoadState, frozen=True, kw_only=True):
    engine_neuron: str
    index: int
    num_stages: int
    layers: tuple[int, int]
    device: str
    status: HeldStageStatus
    address: str = ""


class ReplicaStatus(StrEnum):
    LOADING = "loading"
    READY = "ready"
    RECOVERING = "recovering"
    """The engine died; the neuron loads it again from its spec."""
    DRAINING = "draining"
    ASLEEP = "asleep"
    """Its weights are in the host's memory."""
    FAILED = "failed"


_S = ReplicaStatus
REPLICA_TRANSITIONS = {
    _S.LOADING: {_S.READY, _S.FAILED, _S.DRAINING, _S.ASLEEP},
    _S.READY: {_S.RECOVERING, _S.DRAINING},
    _S.RECOVERING: {_S.READY, _S.FAILED, _S.DRAINING},
    _S.DRAINING: {_S.FAILED, _S.ASLEEP},
    _S.ASLEEP: {_S.LOADING, _S.DRAINING},
    _S.FAILED: {_S.LOADING, _S.DRAINING},
}


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    kind: Literal["cpu", "cuda"]
    name: str
    total_memory_bytes: int
    free_memory_bytes: int
    """Neither allocated nor reserved, within the operator's limit."""
    compute_capability: str | None = None
    driver: str | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    reserved_bytes: int = 0
    """Reserved but not allocated yet; not in the free memory."""
    has_host_memory: bool = False
    """Unified memory."""
    installed_memory_bytes: int | None = None
    """Set where the operator's limit (``HELEXA_MEMORY_LIMIT``) is less."""


def device_name(device: DeviceInfo) -> str:
    """A host's CPUs are one device, ``cpu``."""
    return "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    hostname: str
    os: str
    num_cores: int
    total_memory_bytes: int
    free_memory_bytes: int
    kernel: str = ""
    problems: list[str] = []
    """Sentences for people: a driver/library mismatch, no permission …"""
    cuda_unavailable: str = ""
    """Why its cards cannot be used; empty without cards."""
    cuda_version: str = ""
    torch_version: str = ""
    torch_cuda_version: str = ""


Capability = Literal[
    "chat",
    "completions",
    "logprobs",
    "structured_output",
    "tool_call",
    "vision",
    "reasoning",
    "embeddings",
    "rerank",
]


class SleepRefusal(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    failure: LoadFailure
    at_unix_s: float


class ReplicaState(LoadState, frozen=True, kw_only=True):
    status: ReplicaStatus
    devices: list[str] = []
    host_memory_bytes: int = 0
    """A sleeping model's weights, beside ``memory_bytes``."""
    engine_since_unix_s: float | None = None
    stage_since_unix_s: float | None = None
    report: LoadReport | None = None
    capabilities: list[Capability] = []
    max_output_tokens: int | None = None
    max_in_flight: int | None = None
    max_queue_depth: int | None = None
    sleep_refusal: SleepRefusal | None = None
    stats: EngineStats | None = None
    num_restarts: int = 0
    num_failed_loads: int = 0
    """Consecutive failures of this spec, that of a FAILED replica included."""
    is_unchanged: bool = False
    """Nothing has changed that could make a FAILED replica's next load succeed."""
    last_used_unix_s: float | None = None


PROTOCOL = 3
"""Version of the Redis protocol between gateways and neurons. Raised by a change that an older
build on the other side would not understand."""


class NeuronHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    epoch: str
    version: str
    protocol: int = 1
    """Older neurons do not send it."""
    build: Build | None = None
    started_unix_s: float
    time_unix_s: float
    host: HostInfo
    devices: list[DeviceInfo]
    replicas: list[ReplicaState]
    is_leaving: bool = False
    thread_problems: list[str] = []
    is_ready: bool = True
    """``False``: a thread that its requests need has died or hangs and could not be replaced."""
    stage_host: str = ""
    """Other neurons' engines connect here; empty: no stages."""
    stages: list[HeldStage] = []


encode_heartbeat = msgspec.json.Encoder().encode
decode_heartbeat = msgspec.json.Decoder(NeuronHeartbeat).decode


class WaitingModel(msgspec.Struct, frozen=True, kw_only=True):
    num_requests: int
    oldest_s: float


class WaitingReport(msgspec.Struct, frozen=True, kw_only=True):
    beat: int
    models: dict[str, WaitingModel] = {}


encode_waiting_report = msgspec.json.Encoder().encode
decode_waiting_report = msgspec.json.Decoder(WaitingReport).decode
