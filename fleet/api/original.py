"""The paths of the original system's neuron, per neuron, in its shapes: flat errors, loads that
answer when they have ended. The live ones read the neuron's last report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import ObjectView, body_of, problem_of, text_in
from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import is_outdated
from fleet.catalogue.kinds import QUANTIZATION_OF_NAME
from fleet.errors import FleetError, PlacementRefusedError, UnknownModelError
from fleet.lifecycles import LEAVING_KINDS, LoadJobStatus
from fleet.live import reading as live
from fleet.models import LoadJob
from fleet.placement import Load, place
from fleet.services.job_steps import wait_for_job
from inference.protocol.heartbeat import (
    DeviceInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
)
from inference.protocol.load_report import (
    LoadFailure,
    LoadReport,
    ModelLimit,
    model_limit,
    with_text,
)
from inference.version import Build
from metering.api.problems import ProblemError, note_refusal
from metering.api.schema import ROWS

LOAD_TIMEOUT_S = 3600.0
UNLOAD_TIMEOUT_S = 180.0
FLAT_REFUSALS = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"oneOf": [{"type": "string"}, {"type": "object"}]}},
}
HARNESSES = ("helexa", "candle")
"""``candle`` is the value in the original's configurations."""
MIB = 1024**2
HARNESS = "helexa"
STATUSES = {ReplicaStatus.READY: "loaded", ReplicaStatus.RECOVERING: "recovering"}
"""Other states are transitional; the activation path reports them."""
HAS_BEGUN = frozenset({ReplicaStatus.LOADING, ReplicaStatus.FAILED, *STATUSES})
PREFLIGHT_KINDS = {
    "download_failed": "repo_fetch_failed",
    "repo_fetch_failed": "repo_fetch_failed",
    "missing_file": "empty_repo",
    "quantization_not_found": "quant_not_found",
}
CUDA_UNAVAILABLE = "cuda_unavailable"


class OriginalView(ObjectView):
    flat_refusals = FLAT_REFUSALS

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, PlacementRefusedError):
            status = 503 if exc.code == CUDA_UNAVAILABLE else 400
            exc = ProblemError(status, exc.code, str(exc))
        elif isinstance(exc, FleetError):
            exc = problem_of(exc)
        if isinstance(exc, ProblemError):
            note_refusal(self.request, exc, exc)
            code = {"code": exc.code} if exc.code == CUDA_UNAVAILABLE else {}
            return Response({"error": exc.detail, **code}, status=exc.status)
        return super().handle_exception(exc)

    def heartbeat(self, name: str) -> NeuronHeartbeat:
        selectors.neuron_known(name)
        if (report := _report(name)) is None:
            raise ProblemError(503, "neuron_away", f"{name} is away")
        return report


def _report(name: str) -> NeuronHeartbeat | None:
    reports = live.read_live_fleet(live.redis_client()).reports
    return next((report.heartbeat for report in reports if report.name == name), None)


class ReportView(OriginalView):
    """``shape``: makes the answer from the neuron's last report."""

    shape: Callable[[NeuronHeartbeat], Any] | None = None

    def get(self, request: Request, name: str) -> Response:
        assert self.shape is not None, "PATHS has one for each"
        return Response(self.shape(self.heartbeat(name)))


class ModelsView(ReportView):
    @extend_schema(responses={200: ROWS})
    def get(self, request: Request, name: str) -> Response:
        return super().get(request, name)


class EndpointView(OriginalView):
    """Requests go through the gateway, whichever neuron has the model."""

    def get(self, request: Request, name: str, model: str) -> Response:
        entry = selectors.catalogue_find(model)
        model_name = model if entry is None else entry.name
        for state in self.heartbeat(name).replicas:
            if state.model == model_name and state.status is ReplicaStatus.READY:
                return Response({"url": self.request.build_absolute_uri("/").rstrip("/")})
        raise ProblemError(404, "model_not_found", f"{model} is not loaded on {name}")


class LoadView(OriginalView):
    def post(self, request: Request, name: str) -> Response:
        body = body_of(request, "model_id", "harness", "quant", "tensor_parallel", "devices")
        entry = selectors.catalogue_find(text_in(body, "model_id"))
        if entry is None:
            raise UnknownModelError(f"{body['model_id']!r} is not in the catalogue: add it first")
        ensure_as_catalogued(body, entry)
        for state in self.heartbeat(name).replicas:
            is_ready = (state.model, state.status) == (entry.name, ReplicaStatus.READY)
            if is_ready and not is_outdated(state.spec_digest, entry):
                raise ProblemError(400, "already_loaded", f"{entry.name} is already loaded")
        # Idle models may be evicted for it unless the caller named devices.
        job = services.model_load_start(
            actor=self.actor,
            model_name=entry.name,
            neuron_name=name,
            devices=device_names(body),
        )
        wait_for_job(job, timeout_s=LOAD_TIMEOUT_S)
        if job.status == LoadJobStatus.SUCCEEDED:
            return Response({"status": "loaded"})
        states = [] if (report := _report(name)) is None else report.replicas
        failures = [state.failure for state in states if state.job_id == str(job.pk)]
        status, error = load_failure(job, entry, next(iter(failures), None))
        return Response(error, status=status)


class UnloadView(OriginalView):
    """Unloads a model, also a pinned one. It stays unloaded until it is loaded or requested, or its
    neuron restarts, as in the original."""

    def post(self, request: Request, name: str) -> Response:
        body = body_of(request, "model_id")
        model = text_in(body, "model_id")
        entry = selectors.catalogue_find(model)
        model_name = model if entry is None else entry.name
        try:
            job = services.model_unload_to_stay(
                actor=self.actor, model_name=model_name, neuron_name=name
            )
        except FleetError as error:
            raise ProblemError(404, error.code, str(error)) from error
        wait_for_job(job, timeout_s=UNLOAD_TIMEOUT_S)
        if job.status == LoadJobStatus.SUCCEEDED:
            return Response({"status": "unloaded"})
        services.kept_unloaded_forget(model_name=model_name)
        why = job.failure_message or f"unloading {job} {job.status}"
        raise ProblemError(404, "unload_failed", why)


def version(heartbeat: NeuronHeartbeat) -> dict[str, Any]:
    return {
        "package_version": heartbeat.version,
        **asdict(heartbeat.build or Build()),
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


def health(heartbeat: NeuronHeartbeat) -> dict[str, Any]:
    def names(*statuses: ReplicaStatus) -> list[str]:
        return [state.model for state in heartbeat.replicas if state.status in statuses]

    # A restarted neuron recovers its models by loading them again.
    loading = names(ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)
    known = {state.model for state in heartbeat.replicas if state.status in HAS_BEGUN}
    pending = [*loading[1:], *(name for name in _expected(heartbeat.name) if name not in known)]
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


def ensure_as_catalogued(body: dict[str, Any], entry: CatalogueEntry) -> None:
    """Raises ``ProblemError``: the catalogue decides how a model is loaded."""
    harness, quant = body.get("harness"), body.get("quant")
    if harness is not None and harness not in HARNESSES:
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
    """Returns the status and the body. ``failure``: as the neuron reports it, if it still does."""
    if job.failure_code == CUDA_UNAVAILABLE:
        return 503, {"error": job.failure_message, "code": CUDA_UNAVAILABLE}
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


def _expected(name: str) -> list[str]:
    """Models ordered already, or kept loaded and placed here by the control's next tick."""
    jobs = selectors.load_jobs_active().exclude(kind__in=LEAVING_KINDS)
    ordered = list(jobs.filter(neuron__name=name).values_list("model_name", flat=True))
    catalogue = selectors.catalogue_by_name()
    snapshot = live.read_snapshot_sync(live.redis_client())
    kept = [
        entry.name
        for entry in catalogue.values()
        if entry.is_kept_loaded
        and entry.base is None
        and isinstance(decision := place(entry, snapshot, catalogue=catalogue), Load)
        and decision.neuron == name
    ]
    return list(dict.fromkeys([*ordered, *kept]))


PATHS = {
    "version": ReportView.as_view(shape=version),
    "discovery": ReportView.as_view(shape=discovery),
    "health": ReportView.as_view(shape=health),
    "models": ModelsView.as_view(shape=models),
    "models/<path:model>/endpoint": EndpointView.as_view(),
    "models/load": LoadView.as_view(),
    "models/unload": UnloadView.as_view(),
}
