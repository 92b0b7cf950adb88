"""Load jobs, downloads and the neurons' cached models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from fleet import selectors, services
from fleet.api.access import DRY_RUN, FleetListView, FleetView, body_of, text_in, texts_in
from fleet.api.rows import (
    DRY_RUN_PARAMETER,
    DryRunShape,
    RowShape,
    RowsView,
    is_dry,
    would_response,
)
from fleet.catalogue import SETTINGS
from fleet.lifecycles import DownloadKind, LoadJobKind, LoadJobStatus
from fleet.models import Download, LoadJob
from fleet.nouns import DOWNLOADS, JOBS
from fleet.selectors import cached_list
from fleet.services.model_loads import EVERYWHERE, ON_NEURON
from metering.api.problems import ProblemError, ensure_one_of, invalid

STARTED = inline_serializer(
    "LoadJobStart",
    {
        "kind": serializers.ChoiceField(LoadJobKind.choices, default=LoadJobKind.LOAD),
        "model": serializers.CharField(),
        "neuron": serializers.CharField(
            required=False, help_text="Of a load: left out, it goes where it fits."
        ),
        "devices": serializers.ListField(child=serializers.CharField(), required=False),
    },
)


class LoadJobShape(RowShape):
    model = serializers.CharField(source="model_name")
    neuron = serializers.CharField(source="neuron.name")
    progress_fraction = serializers.FloatField(allow_null=True, help_text="0 to 1.")
    share = serializers.FloatField(
        allow_null=True, help_text="Of the whole load, by the last one there. 0 to 1."
    )
    eta_s = serializers.FloatField(
        allow_null=True, help_text="Seconds left, by the last load there, else by its rate."
    )

    class Meta:
        model = LoadJob
        exclude = (
            *("model_name", "stage_links", "may_divide", "stage_started_at"),
            *("engine_started_at", "expected_load_s"),
        )


class DownloadShape(RowShape):
    neuron = serializers.CharField(source="neuron.name")
    progress_fraction = serializers.FloatField(allow_null=True, help_text="0 to 1.")
    eta_s = serializers.FloatField(allow_null=True)

    class Meta:
        model = Download
        exclude = ("sha256",)


class FileShape(serializers.Serializer[Any]):
    name = serializers.CharField()
    num_bytes = serializers.IntegerField()


class CachedShape(serializers.Serializer[Any]):
    """One revision of one source on one neuron's disk."""

    neuron = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    revision = serializers.CharField()
    num_bytes = serializers.IntegerField()
    files = FileShape(many=True)
    used_by = serializers.ListField(child=serializers.CharField(), help_text="Models loaded of it.")
    models = serializers.ListField(
        child=serializers.CharField(),
        help_text="Of the catalogue, those that this is the source of.",
    )
    is_partial = serializers.BooleanField(help_text="Broken off; the next pull continues it.")
    missing = serializers.ListField(
        child=serializers.CharField(), help_text="Files that were wanted and are not whole."
    )
    wanted_bytes = serializers.IntegerField(help_text="Once nothing is missing; 0: nothing is.")
    partial_bytes = serializers.IntegerField(help_text="Of the missing files; not in num_bytes.")
    last_used_unix_s = serializers.FloatField(allow_null=True)
    disk_free_bytes = serializers.IntegerField()
    disk_total_bytes = serializers.IntegerField()


class EventStreamRenderer(JSONRenderer):
    """A renderer for clients that accept only event streams. Refusals are JSON all the same."""

    media_type = "text/event-stream"
    format = "sse"


class JobRows(RowsView):
    serializer_class: Any
    queryset: QuerySet[Any]
    can = ("add",)
    id_part = "<uuid:pk>"

    def find(self, pk: Any) -> Any:
        found = self.queryset.filter(pk=pk).first()
        if found is None:
            word = self.noun.word
            raise ProblemError(404, f"{word}_not_found", f"There is no such {word}.")
        return found

    def accepted(self, row: Any) -> Response:
        """A job whose message the broker did not accept has failed by now."""
        if row.status == LoadJobStatus.FAILED:
            raise ProblemError(503, row.failure_code, row.failure_message)
        return Response(self.shown(row), status=202)

    @extend_schema(responses={(200, "text/event-stream"): OpenApiTypes.STR})
    @action(detail=True, renderer_classes=(JSONRenderer, EventStreamRenderer))
    def events(self, request: Request, pk: Any) -> Any:
        """Server-sent events, each with the row as it is then; the last one is of its end."""
        stream = job_events(partial(self._look, self.find(pk).pk))
        response = StreamingHttpResponse(stream, content_type="text/event-stream")
        response["Cache-Control"] = "no-store"
        response["X-Accel-Buffering"] = "no"
        return response

    def _look(self, pk: Any) -> dict[str, Any] | None:
        row = self.queryset.filter(pk=pk).first()
        return None if row is None else dict(self.serializer_class(row).data)


class Jobs(JobRows):
    """Newest first."""

    noun = JOBS
    serializer_class = LoadJobShape
    queryset = LoadJob.objects.select_related("neuron", "model", "replacement__neuron")

    @extend_schema(request=STARTED, responses={202: LoadJobShape})
    def create(self, request: Request) -> Response:
        body = body_of(request, "kind", "model", "neuron", "devices")
        kind, model = body.get("kind", LoadJobKind.LOAD.value), text_in(body, "model")
        ensure_one_of(LoadJobKind.values, "kind", kind)
        values: dict[str, Any] = {"model_name": model}
        if kind != LoadJobKind.LOAD or "neuron" in body or "devices" in body:
            values["neuron_name"] = text_in(body, "neuron")
        if kind == LoadJobKind.LOAD:
            values["devices"] = texts_in(body, "devices")
        elif "devices" in body:
            raise invalid("devices", "Only a load has devices.")
        return self.accepted(ON_NEURON[kind](actor=self.actor, **values))

    @extend_schema(request=None, responses={202: LoadJobShape})
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: Any) -> Response:
        """The answer is the unload that ends it."""
        body_of(request)
        return self.accepted(services.load_job_cancel(actor=self.actor, job=self.find(pk)))


class ModelJobsView(FleetView):
    """``POST /api/catalogue/{name}/load``, ``…/unload``, ``…/reload``, ``…/sleep`` and ``…/wake``:
    of a model, on one neuron, or left out: a load goes where it fits, the others everywhere."""

    serializer_class = LoadJobShape
    queryset = LoadJob.objects.none()
    kind = ""

    @extend_schema(
        request=inline_serializer("ModelJob", {"neuron": serializers.CharField(required=False)}),
        responses={202: inline_serializer("ModelJobs", {"data": LoadJobShape(many=True)})},
    )
    def post(self, request: Request, name: str) -> Response:
        body = body_of(request, "neuron")
        neuron = text_in(body, "neuron") if "neuron" in body else None
        jobs = self._start(name, neuron)
        if jobs and all(job.status == LoadJobStatus.FAILED for job in jobs):
            raise ProblemError(503, jobs[0].failure_code, jobs[0].failure_message)
        shown = self.get_serializer(jobs, many=True).data
        return Response({"data": shown}, status=202)

    def _start(self, name: str, neuron: str | None) -> list[LoadJob]:
        if neuron is not None:
            start = ON_NEURON[self.kind]
            return [start(actor=self.actor, model_name=name, neuron_name=neuron)]
        if self.kind == "load":
            return [services.model_load_start(actor=self.actor, model_name=name)]
        jobs = EVERYWHERE[self.kind](actor=self.actor, model_name=name)
        if not jobs:  # a model that is not loaded needs no job
            selectors.model_known(name)
        return jobs


LOOK_EVERY_S = 0.5
COMMENT_EVERY_S = 15.0


async def job_events(
    look: Callable[[], dict[str, Any] | None], *, look_every_s: float = LOOK_EVERY_S
) -> AsyncIterator[bytes]:
    """``look`` returns ``None`` once the job's row is gone; the events end then too."""
    sent, quiet_s = "", 0.0
    while True:
        job = await sync_to_async(look)()
        if job is None:
            yield b"event: gone\ndata: {}\n\n"
            return
        data = json.dumps(job, cls=JSONEncoder)
        if data != sent:
            sent, quiet_s = data, 0.0
            yield f"event: {job['status']}\ndata: {data}\n\n".encode()
        if job["finished_at"] is not None:
            return
        if quiet_s >= COMMENT_EVERY_S:
            quiet_s = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(look_every_s)
        quiet_s += look_every_s


PULL_OR_DELETE = inline_serializer(
    "DownloadStart",
    {
        "kind": serializers.ChoiceField(DownloadKind.choices, default=DownloadKind.PULL),
        "source": serializers.CharField(required=False, help_text="This, or a model."),
        "model": serializers.CharField(
            required=False, help_text="Of the catalogue: what a load of it would fetch."
        ),
        "file": serializers.CharField(required=False, help_text=SETTINGS["file"].help_text),
        "revision": serializers.CharField(
            required=False, allow_blank=True, help_text=SETTINGS["revision"].help_text
        ),
        "neuron": serializers.CharField(
            required=False, help_text="Of a pull: left out, where its disk has room."
        ),
        "files": serializers.ListField(
            child=serializers.CharField(),
            required=False,
            help_text="Of a deletion: these alone, by the names that the cache has.",
        ),
    },
)


class Downloads(JobRows):
    """Newest first, deletions too."""

    noun = DOWNLOADS
    serializer_class = DownloadShape
    queryset: QuerySet[Download] = Download.objects.select_related("neuron")
    post_removes = True

    @extend_schema(
        parameters=[DRY_RUN_PARAMETER],
        request=PULL_OR_DELETE,
        responses={202: DownloadShape, 200: DryRunShape},
    )
    def create(self, request: Request) -> Response:
        """A pull that is already running is answered with itself. One that was cancelled or broken
        off is resumed by the next."""
        known = ("kind", "source", "model", "file", "revision", "neuron", "files")
        body = body_of(request, *known)
        kind = body.get("kind", DownloadKind.PULL.value)
        if kind == DownloadKind.PULL.value:
            if DRY_RUN in request.query_params:
                detail = "Only a deletion has a dry run."
                raise ProblemError(400, "unknown_parameter", detail, param=DRY_RUN)
            _refuse(body, "files", "Only a deletion is of some files.")
            return self.accepted(self._pull(body))
        ensure_one_of(DownloadKind.values, "kind", kind)
        for name in ("model", "file"):
            _refuse(body, name, "A deletion names its source, its revision and its files.")
        delete = partial(
            services.download_delete_start,
            actor=self.actor,
            neuron_name=text_in(body, "neuron"),
            source=text_in(body, "source"),
            revision=_optional(body, "revision") or "",
            files=texts_in(body, "files"),
        )
        return would_response(self.actor, delete) if is_dry(request) else self.accepted(delete())

    def _pull(self, body: dict[str, Any]) -> Download:
        neuron = _optional(body, "neuron")
        if "model" not in body:
            return services.download_start(
                actor=self.actor,
                source=text_in(body, "source"),
                file=_optional(body, "file"),
                revision=_optional(body, "revision"),
                neuron_name=neuron,
            )
        for name in ("source", "file", "revision"):
            _refuse(body, name, "The catalogue sets it for a model.")
        return services.model_download_start(
            actor=self.actor, model_name=text_in(body, "model"), neuron_name=neuron
        )

    @extend_schema(request=None, responses={202: DownloadShape})
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: Any) -> Response:
        """The download ends when its neuron has ended it. The bytes that came so far stay."""
        body_of(request)
        return self.accepted(services.download_cancel(actor=self.actor, download=self.find(pk)))


class CachedView(FleetListView):
    """Downloaded models by the neurons' present reports."""

    serializer_class = CachedShape
    queryset = Download.objects.none()

    def filter_queryset(self, queryset: Any) -> Any:
        return cached_list(self.kwargs.get("name"))


class NeuronCachedView(CachedView):
    """The same of one neuron."""

    @extend_schema(operation_id="neurons_cached_list")
    def get(self, request: Request, name: str) -> Response:  # type: ignore[override]
        return self.list(self.request)


def _optional(body: dict[str, Any], name: str) -> str | None:
    return text_in(body, name) if body.get(name) not in (None, "") else None


def _refuse(body: dict[str, Any], name: str, detail: str) -> None:
    if name in body:
        raise invalid(name, detail)
