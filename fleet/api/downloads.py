"""Downloads: a model's files to a neuron without loading it, and the neurons' cached models."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import DRY_RUN, FleetListView, body_of, text_in, texts_in
from fleet.api.jobs import JobRows
from fleet.api.rows import DRY_RUN_PARAMETER, DryRunShape, is_dry, would_response
from fleet.api.shapes import CachedShape, DownloadShape
from fleet.catalogue import SETTINGS
from fleet.lifecycles import DownloadKind
from fleet.live.cached_models import cached_list
from fleet.models import Download
from fleet.nouns import DOWNLOADS
from metering.api.problems import ProblemError, ensure_one_of, invalid

STARTED = inline_serializer(
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
        request=STARTED,
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
        selectors.neuron_known(name)
        return self.list(self.request)


def _optional(body: dict[str, Any], name: str) -> str | None:
    return text_in(body, name) if body.get(name) not in (None, "") else None


def _refuse(body: dict[str, Any], name: str, detail: str) -> None:
    if name in body:
        raise invalid(name, detail)
