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
from helexa_site.web.pages import render_page


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "metering.api.authentication.KeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "An API key of helexa."}


class PersonScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "metering.api.authentication.PersonAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}


class AnonymousScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Nothing to send."""

    target_class = "metering.api.authentication.AnonymousAuthentication"
    name: list[str] = []

    def get_security_definition(self, auto_schema: Any) -> list[Any]:
        return []

    def get_security_requirement(self, auto_schema: Any) -> list[Any]:
        return []


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
