"""What the gateway was built from."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet.api.access import Call, FleetView
from inference.build import this_build, version_object


class VersionView(FleetView):
    """The gateway's version, for callers who may read the fleet: versions help an attacker."""

    pagination_class = None
    serializer_class = serializers.Serializer

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def get(self, call: Call) -> Response:
        return Response(version_object(this_build()))
