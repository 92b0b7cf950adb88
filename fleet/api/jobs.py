"""Load jobs: their history, their progress, and starting them."""

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
from fleet.api.access import FleetView, body_of, text_in, texts_in
from fleet.api.rows import RowsView
from fleet.api.shapes import LoadJobShape
from fleet.lifecycles import LoadJobKind, LoadJobStatus
from fleet.models import LoadJob
from fleet.nouns import JOBS
from fleet.services.jobs.model_loads import EVERYWHERE, ON_NEURON
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


class EventStreamRenderer(JSONRenderer):
    """A renderer for clients that accept only event streams. Refusals are JSON all the same."""

    media_type = "text/event-stream"
    format = "sse"


class JobRows(RowsView):
    """Rows of jobs."""

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
    """``look``: reads the job, ``None``: its row is gone. Ends with the job, also then."""
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
