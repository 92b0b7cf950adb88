"""The original neuron's JSON, out of a heartbeat or a load job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.kinds import QUANTIZATION_OF_NAME
from fleet.models import LoadJob
from inference.protocol.heartbeat import (
    BuildInfo,
    DeviceInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
)
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import LoadReport
from inference.protocol.model_limit import ModelLimit, model_limit, with_text
from metering.api.problems import ProblemError

MIB = 1024**2
UNKNOWN_BUILD = BuildInfo(git_sha="unknown", git_sha_long="", git_dirty=False, build_timestamp="")
HARNESS = "helexa"
STATUSES = {ReplicaStatus.READY: "loaded", ReplicaStatus.RECOVERING: "recovering"}
"""Others are under way or gone; the activation path reports them."""
HAS_BEGUN = frozenset({ReplicaStatus.LOADING, ReplicaStatus.FAILED, *STATUSES})
PREFLIGHT_KINDS = {
    "download_failed": "repo_fetch_failed",
    "repo_fetch_failed": "repo_fetch_failed",
    "missing_file": "empty_repo",
    "quantization_not_found": "quant_not_found",
}
CUDA_CODES = frozenset({"cuda_unavailable"})


def version(heartbeat: NeuronHeartbeat) -> dict[str, Any]:
    return {
        "package_version": heartbeat.version,
        **msgspec.structs.asdict(heartbeat.build or UNKNOWN_BUILD),
        "features": [],
        "torch_version": heartbeat.host.torch_version or None,
    }


def discovery(heartbeat: NeuronHeartbeat) -> dict[str, Any]:
    cards, host = _cards(heartbeat), heartbeat.host
    limits = [_limit_of(state, state.report) for state in heartbeat.replicas if state.report]
    described: dict[str, Any] = {
        "hostname": host.hostname,
        "os": host.os,
        "kernel": host.kernel or "unknown",
        "devices": [
            {
                "index": card.index,
                "name": card.name,
                "vram_total_mb": card.total_memory_bytes // MIB,
                "compute_capability": card.compute_capability,
            }
            for card in cards
        ],
        "harnesses": [HARNESS],
        "max_prompt_tokens": max((limit.input for limit in limits), default=0),
    }
    optional = {
        "driver_version": cards[0].driver if cards else None,
        "cuda_version": host.cuda_version,
        "torch_cuda_version": host.torch_cuda_version,
        "cuda_unavailable_reason": host.cuda_unavailable,
    }
    return described | {name: value for name, value in optional.items() if value}


def health(heartbeat: NeuronHeartbeat, expected: Sequence[str] = ()) -> dict[str, Any]:
    """``expected``: models that are to be loaded on it, and of which it may know nothing yet."""

    def names(*statuses: ReplicaStatus) -> list[str]:
        return [state.model for state in heartbeat.replicas if state.status in statuses]

    # A neuron that has restarted recovers what it had: that is loaded again.
    loading = names(ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)
    known = {state.model for state in heartbeat.replicas if state.status in HAS_BEGUN}
    pending = [*loading[1:], *(name for name in expected if name not in known)]
    return {
        "uptime_secs": max(0, int(heartbeat.time_unix_s - heartbeat.started_unix_s)),
        "devices": [
            {
                "index": card.index,
                "vram_used_mb": (card.total_memory_bytes - card.free_memory_bytes) // MIB,
                "vram_free_mb": card.free_memory_bytes // MIB,
                "utilization_pct": card.utilization_percent,
                "temp_c": card.temperature_c,
            }
            for card in _cards(heartbeat)
        ],
        "activation": {
            "state": "pre_warming" if loading or pending else "ready",
            "pending": pending,
            "in_progress": loading[0] if loading else None,
            "completed": names(ReplicaStatus.READY),
            "failed": [
                {"model_id": state.model, "error": state.failure.message if state.failure else ""}
                for state in heartbeat.replicas
                if state.status is ReplicaStatus.FAILED
            ],
        },
        "models": [_load_of(state) for state in heartbeat.replicas if state.stats is not None],
    }


def models(heartbeat: NeuronHeartbeat) -> list[dict[str, Any]]:
    return [_model(heartbeat, state) for state in heartbeat.replicas if state.status in STATUSES]


def ensure_as_catalogued(
    body: dict[str, Any], entry: CatalogueEntry, harnesses: Sequence[str]
) -> None:
    """The catalogue decides how a model is loaded. Raises ``ProblemError`` for a field with another
    value."""
    harness, quant = body.get("harness"), body.get("quant")
    if harness is not None and harness not in harnesses:
        raise ProblemError(400, "wrong_harness", f"There is no harness {harness!r} here")
    if quant is not None and not _is_loaded_as(entry, str(quant)):
        detail = f"The catalogue loads {entry.name} otherwise than as {quant!r}: change it there"
        raise ProblemError(400, "other_quant", detail)
    if body.get("tensor_parallel") not in (None, entry.tensor_parallel):
        detail = f"In the catalogue {entry.name} is shared by {entry.tensor_parallel} ranks"
        raise ProblemError(400, "other_tensor_parallel", detail)


def device_names(body: dict[str, Any]) -> list[str]:
    """``[0, 1]`` as ``cuda:0`` and ``cuda:1``. Raises ``ProblemError``."""
    given = body.get("devices") or []
    if not isinstance(given, list) or not all(type(one) is int and one >= 0 for one in given):
        raise ProblemError(400, "invalid_value", "devices is to be a list of CUDA indices")
    return [f"cuda:{index}" for index in given]


def load_failure(
    job: LoadJob, entry: CatalogueEntry, failure: LoadFailure | None = None
) -> tuple[int, dict[str, Any]]:
    """The status and the body. ``failure``: the neuron's own words, where it still has them."""
    if job.failure_code in CUDA_CODES:
        return 503, {"error": job.failure_message, "code": "cuda_unavailable"}
    kind = PREFLIGHT_KINDS.get(job.failure_code)
    if kind is None:
        return 400, {"error": job.failure_message or f"loading {job} {job.status}"}
    error: dict[str, Any] = {"kind": kind, "model_id": entry.source, "cause": job.failure_message}
    known = failure or LoadFailure(code=job.failure_code, message=job.failure_message)
    if known.suggestion:
        error["suggestion"] = known.suggestion
    if kind == "quant_not_found":
        error["requested"] = entry.file
        error["available"] = [] if failure is None else failure.available
        if failure is not None and failure.nearest is not None:
            error["nearest"] = failure.nearest
    return 422, {"error": error}


def _cards(heartbeat: NeuronHeartbeat) -> list[DeviceInfo]:
    return [device for device in heartbeat.devices if device.kind == "cuda"]


def _is_loaded_as(entry: CatalogueEntry, quant: str) -> bool:
    """Whether ``quant`` is the entry's file, its quantization, or the original's name of that."""
    name = quant.lower()
    of_original = QUANTIZATION_OF_NAME.get(name)
    return name == (entry.file or "").lower() or entry.quantization in (name, of_original)


def _load_of(state: ReplicaState) -> dict[str, Any]:
    assert state.stats is not None
    return {
        "id": state.model,
        "in_flight": state.stats.in_flight,
        "queue_depth": state.stats.queue_depth,
        "max_in_flight": state.max_in_flight,
        "max_queue_depth": state.max_queue_depth,
        "tok_s_prefill": state.stats.prefill_tokens_per_s,
        "tok_s_decode": state.stats.decode_tokens_per_s,
    }


def _model(heartbeat: NeuronHeartbeat, state: ReplicaState) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": state.model,
        "harness": HARNESS,
        "status": STATUSES[state.status],
        "devices": [
            int(device.removeprefix("cuda:"))
            for device in state.devices
            if device.startswith("cuda:")
        ],
        "vram_used_mb": None if state.memory_bytes is None else state.memory_bytes // MIB,
        "capabilities": list(with_text(state.capabilities)),
        "tool_call": "tool_call" in state.capabilities,
        "reasoning": "reasoning" in state.capabilities,
    }
    if state.report is not None:
        described["limit"] = asdict(_limit_of(state, state.report))
    return described


def _limit_of(state: ReplicaState, report: LoadReport) -> ModelLimit:
    return model_limit(
        report.context_tokens, state.max_output_tokens, only_reads=report.kind != "generation"
    )
