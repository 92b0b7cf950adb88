"""The fleet's overview, engines' logs, settings, the audit and the version."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors
from fleet.api.access import (
    BOOLEANS,
    FleetListView,
    ObjectView,
    number_in,
)
from fleet.api.rows import RowShape, RowsView
from fleet.models import CatalogueModel
from fleet.neuron_client import DEFAULT_LINES, engine_log
from fleet.nouns import AUDIT, SETTINGS
from fleet.overview import fleet_overview
from helexa_site.pages import ENVIRONMENT, Row, rows_of
from inference.protocol.neuron_tasks import MAX_LOG_LINES
from inference.version import this_build, version_object
from metering.api.problems import ProblemError, ensure_one_of
from metering.models import AuditEntry
from metering.principal import Scope


class AuditShape(RowShape):
    class Meta:
        model = AuditEntry
        fields = "__all__"


class AssignmentShape(serializers.Serializer[Any]):
    """The models that should be loaded, by the catalogue."""

    model = serializers.CharField(source="name")
    neurons = serializers.ListField(
        child=serializers.CharField(),
        source="pinned_on",
        help_text="The neurons that it may run on; empty: any.",
    )
    min_replicas = serializers.IntegerField(source="effective_min_replicas")
    max_replicas = serializers.IntegerField(source="effective_max_replicas")
    priority = serializers.IntegerField(source="effective_priority")
    idle_ttl_s = serializers.IntegerField(allow_null=True)


class OverviewView(ObjectView):
    def get(self, request: Request) -> Response:
        return Response(asdict(fleet_overview()))


class AssignmentsView(FleetListView):
    """Derived from the catalogue's enabled models, so read-only."""

    serializer_class = AssignmentShape
    queryset = CatalogueModel.objects.none()

    def filter_queryset(self, queryset: Any) -> Any:
        return [one for one in selectors.catalogue_list() if one.upstream_model is None]


class AuditView(FleetListView):
    serializer_class = AuditShape
    queryset = AuditEntry.objects.all()
    filters = AUDIT.filters


class EngineLogView(ObjectView):
    """The last lines of an engine's log, also after it has ended, as long as its neuron has not."""

    filters = {"lines": ""}

    @extend_schema(parameters=[OpenApiParameter("lines", int, default=DEFAULT_LINES)])
    def get(self, request: Request, name: str, model: str) -> Response:
        num_lines = number_in(request, "lines", DEFAULT_LINES, 1, MAX_LOG_LINES)
        return Response(asdict(engine_log(name, model, num_lines)))


class SettingShape(serializers.Serializer[Any]):
    name = serializers.CharField(source="setting.name")
    value = serializers.CharField(help_text="As it is set; empty: it is not.")
    default = serializers.CharField(source="setting.on_page.default", help_text="In words.")
    meaning = serializers.CharField(source="setting.on_page.meaning")


class Settings(RowsView):
    """The settings, for superusers and keys with ``fleet:write``: addresses and paths of the host
    are among the values. Secrets are not shown."""

    noun = SETTINGS
    can = ()
    read_scope = Scope.FLEET_WRITE
    serializer_class = SettingShape
    queryset = AuditEntry.objects.none()

    def ensure_may(self, request: Request) -> None:
        if self.caller.username is not None and not request.user.is_superuser:
            raise ProblemError(403, "insufficient_scope", "Superusers alone see the settings.")
        super().ensure_may(request)

    def filter_queryset(self, queryset: Any) -> Any:
        wanted = self.request.query_params
        parts = [part.strip().upper() for part in wanted.get("name", "").split(",")]
        is_set = wanted.get("set")
        if is_set is not None:
            ensure_one_of(BOOLEANS, "set", is_set)
        return [
            row
            for row in rows_of(ENVIRONMENT)
            if is_set is None or BOOLEANS[is_set] == bool(row.value)
            if any(part in row.setting.name for part in parts)
        ]

    def find(self, name: str) -> Row:
        for row in rows_of(ENVIRONMENT):
            if row.setting.name == name:
                return row
        raise ProblemError(404, "setting_not_found", f"There is no setting named {name!r}.")


class VersionView(ObjectView):
    """The gateway's version, for callers who may read the fleet: versions help an attacker."""

    def get(self, request: Request) -> Response:
        return Response(version_object(this_build()))
