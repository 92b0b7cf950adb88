"""The fleet's paths under ``/api/``, their schema and the page that shows it."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase
from django.urls import path
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api import original
from fleet.api.access import FleetView
from fleet.api.catalogue import Aliases, Catalogue, ModelPlanView, ModelsTomlView, Upstreams
from fleet.api.hub import HubRepositoryView, HubSearchView
from fleet.api.jobs import CachedView, Downloads, Jobs, ModelJobsView, NeuronCachedView
from fleet.api.neurons import DevicesView, Invitations, Neurons, PolicyView, ReplicasView
from fleet.api.overview import (
    AssignmentsView,
    AuditView,
    EngineLogView,
    OverviewView,
    Settings,
)
from helexa_site.pages import render_page


class Scheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The ``scheme`` of each of our authentications; ``None``: a client sends nothing."""

    target_class = "metering.api.authentication.Authentication"
    match_subclasses = True

    @property
    def name(self) -> Any:  # type: ignore[override]
        return [] if self.target.scheme is None else self.target.scheme[0]

    def get_security_definition(self, auto_schema: Any) -> Any:
        return [] if self.target.scheme is None else self.target.scheme[1]

    def get_security_requirement(self, auto_schema: Any) -> Any:
        return [] if self.target.scheme is None else super().get_security_requirement(auto_schema)


class DocumentView(FleetView):
    """Refusals are JSON, neither a page nor YAML."""

    def handle_exception(self, exc: Exception) -> Response:
        self.request.accepted_renderer = JSONRenderer()
        self.request.accepted_media_type = JSONRenderer.media_type
        return super().handle_exception(exc)


class SchemaView(DocumentView, SpectacularAPIView):
    """OpenAPI 3, for callers who may read the fleet."""

    renderer_classes = SpectacularAPIView.renderer_classes
    pagination_class = None
    filter_backends = ()
    filters = {"lang": "", "version": ""}


class DocumentsView(DocumentView, SpectacularSwaggerSplitView):
    """A page in the shell of all others. Its script is a separate answer, ``?script``: no page runs
    inline scripts."""

    renderer_classes = SpectacularSwaggerSplitView.renderer_classes
    url_name = "api-schema"
    pagination_class = None
    filter_backends = ()
    filters = {"lang": "", "script": "", "version": ""}

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        answer: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]
        if "script" in request.GET:
            return answer
        context = {**answer.data, "base_url": request.build_absolute_uri("/api")}
        return render_page(
            request._request, "pages/fleet_api.html", title="Fleet API", context=context
        )


NOUNS = (Neurons, Invitations, Catalogue, Aliases, Upstreams, Jobs, Downloads, Settings)
urlpatterns = [
    *(one for noun in NOUNS for one in noun.urls()),
    path("overview", OverviewView.as_view()),
    path("neurons/<str:name>/cached", NeuronCachedView.as_view()),
    path("neurons/<str:name>/models/<path:model>/logs", EngineLogView.as_view()),
    *(path(f"neurons/<str:name>/{tail}", view) for tail, view in original.PATHS.items()),
    path("policy", PolicyView.as_view()),
    path("devices", DevicesView.as_view()),
    path("replicas", ReplicasView.as_view()),
    path("assignments", AssignmentsView.as_view()),
    path("catalogue/<str:name>/plan", ModelPlanView.as_view()),
    *(
        path(f"catalogue/<str:name>/{kind}", ModelJobsView.as_view(kind=kind))
        for kind in ("load", "reload", "sleep", "unload", "wake")
    ),
    path("hub", HubSearchView.as_view()),
    path("hub/<str:owner>/<str:name>", HubRepositoryView.as_view()),
    path("models.toml", ModelsTomlView.as_view()),
    path("cached", CachedView.as_view()),
    path("audit", AuditView.as_view()),
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("docs", DocumentsView.as_view(), name="api-docs"),
]
