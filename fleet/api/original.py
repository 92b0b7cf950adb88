"""The paths of the original system's neuron, per neuron, in its shapes: flat errors, loads that
answer when they are through. The live ones read the neuron's last report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api import original_shapes as shapes
from fleet.api.access import Call, FleetView, body_of, problem_of, text_in
from fleet.catalogue.outdated import is_outdated
from fleet.errors import FleetError, PlacementRefusedError, UnknownModelError
from fleet.lifecycles import LEAVING_KINDS, LoadJobStatus
from fleet.live import reading as live
from fleet.models import LoadJob
from fleet.placement import Load, place
from fleet.services.jobs.steps import wait_for_job
from inference.protocol.heartbeat import NeuronHeartbeat, ReplicaStatus
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


@extend_schema(responses={200: OpenApiTypes.OBJECT})
class OriginalView(FleetView):
    pagination_class = None
    flat_refusals = FLAT_REFUSALS
    serializer_class = serializers.Serializer

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, FleetError):
            exc = problem_of(exc)
        if isinstance(exc, ProblemError):
            note_refusal(self.request, exc, exc)
            code = {"code": exc.code} if exc.code in shapes.CUDA_CODES else {}
            return Response({"error": exc.detail, **code}, status=exc.status)
        return super().handle_exception(exc)

    def heartbeat(self, name: str) -> NeuronHeartbeat:
        """Raises ``UnknownNeuronError``, ``SnapshotUnavailableError``, ``ProblemError``."""
        selectors.neuron_known(name)
        if (report := _report(name)) is None:
            raise ProblemError(503, "neuron_away", f"{name} is away")
        return report


def _report(name: str) -> NeuronHeartbeat | None:
    """The neuron's last report. Raises ``SnapshotUnavailableError``."""
    reports = live.read_live_fleet(live.redis_client()).reports
    return next((report.heartbeat for report in reports if report.name == name), None)


class ReportView(OriginalView):
    """``shape``: the answer out of the neuron's last report."""

    shape: Callable[[NeuronHeartbeat], Any] | None = None

    def get(self, call: Call, name: str) -> Response:
        assert self.shape is not None, "PATHS has one for each"
        return Response(self.shape(self.heartbeat(name)))


class ModelsView(ReportView):
    @extend_schema(responses={200: ROWS})
    def get(self, call: Call, name: str) -> Response:
        return super().get(call, name)


def _health(heartbeat: NeuronHeartbeat) -> dict[str, Any]:
    return shapes.health(heartbeat, _expected(heartbeat.name))


def _expected(name: str) -> list[str]:
    """The models that this neuron is to load: ordered already, or kept loaded and placed here once
    the control looks. Raises ``SnapshotUnavailableError``."""
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


class EndpointView(OriginalView):
    """Requests go through the gateway, whichever neuron has the model."""

    def get(self, call: Call, name: str, model: str) -> Response:
        entry = selectors.catalogue_find(model)
        model_name = model if entry is None else entry.name
        for state in self.heartbeat(name).replicas:
            if state.model == model_name and state.status is ReplicaStatus.READY:
                return Response({"url": self.request.build_absolute_uri("/").rstrip("/")})
        raise ProblemError(404, "model_not_found", f"{model} is not loaded on {name}")


class LoadView(OriginalView):
    @extend_schema(request=OpenApiTypes.OBJECT)
    def post(self, call: Call, name: str) -> Response:
        body = body_of(call, "model_id", "harness", "quant", "tensor_parallel", "devices")
        entry = selectors.catalogue_find(text_in(body, "model_id"))
        if entry is None:
            raise UnknownModelError(f"{body['model_id']!r} is not in the catalogue: add it first")
        shapes.ensure_as_catalogued(body, entry, HARNESSES)
        selectors.neuron_known(name)
        for state in self.heartbeat(name).replicas:
            is_ready = (state.model, state.status) == (entry.name, ReplicaStatus.READY)
            if is_ready and not is_outdated(state.spec_digest, entry):
                raise ProblemError(400, "already_loaded", f"{entry.name} is already loaded")
        job = self._start(entry.name, name, shapes.device_names(body))
        wait_for_job(job, timeout_s=LOAD_TIMEOUT_S)
        if job.status == LoadJobStatus.SUCCEEDED:
            return Response({"status": "loaded"})
        states = [] if (report := _report(name)) is None else report.replicas
        failures = [state.failure for state in states if state.job_id == str(job.pk)]
        status, error = shapes.load_failure(job, entry, next(iter(failures), None))
        return Response(error, status=status)

    def _start(self, model: str, neuron: str, devices: list[str]) -> LoadJob:
        """Start the load. Idle models may leave for it unless the caller named devices."""
        try:
            return services.model_load_start(
                actor=self.actor, model_name=model, neuron_name=neuron, devices=devices
            )
        except PlacementRefusedError as error:
            status = 503 if error.code in shapes.CUDA_CODES else 400
            raise ProblemError(status, error.code, str(error)) from error


class UnloadView(OriginalView):
    """Unloads a model, also a pinned one. It stays unloaded until it is loaded or requested, or its
    neuron restarts, as in the original."""

    @extend_schema(request=OpenApiTypes.OBJECT)
    def post(self, call: Call, name: str) -> Response:
        body = body_of(call, "model_id")
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


PATHS = {
    "version": ReportView.as_view(shape=shapes.version),
    "discovery": ReportView.as_view(shape=shapes.discovery),
    "health": ReportView.as_view(shape=_health),
    "models": ModelsView.as_view(shape=shapes.models),
    "models/<path:model>/endpoint": EndpointView.as_view(),
    "models/load": LoadView.as_view(),
    "models/unload": UnloadView.as_view(),
}
"""Each path below ``neurons/{name}/``, and what answers it."""
