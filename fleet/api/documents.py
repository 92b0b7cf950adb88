"""The schema of ``/api/`` and a page to read it, whose script and style come with a package."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.access import FleetView
from helexa_site.pages import render_page


class Scheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """What each of our authentications has as its ``scheme``; ``None``: nothing to send."""

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
