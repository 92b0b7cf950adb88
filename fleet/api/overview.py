"""The fleet at one look, and what should be loaded."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet import selectors
from fleet.api.access import Call, FleetListView, FleetView
from fleet.api.shapes import AssignmentShape
from fleet.models import CatalogueModel
from fleet.overview import fleet_overview
from fleet.placement.decisions import assignment_of


class OverviewView(FleetView):
    pagination_class = None
    serializer_class = serializers.Serializer

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def get(self, call: Call) -> Response:
        return Response(asdict(fleet_overview()))


class AssignmentsView(FleetListView):
    """Derived from the catalogue's enabled models: there is nothing to change here."""

    serializer_class = AssignmentShape
    queryset = CatalogueModel.objects.none()

    def filter_queryset(self, queryset: Any) -> Any:
        loadable = (one for one in selectors.catalogue_list() if one.upstream_model is None)
        return [asdict(assignment_of(entry)) for entry in loadable]
