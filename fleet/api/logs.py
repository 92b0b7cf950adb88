"""The last lines that the engine of a model wrote on a neuron."""

from __future__ import annotations

from dataclasses import asdict

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet.api.access import Call, FleetView
from fleet.live.engine_logs import DEFAULT_LINES, engine_log
from inference.protocol.engine_logs import MAX_LINES
from metering.api.problems import ProblemError


class EngineLogView(FleetView):
    """The last lines of an engine's log, also after it has ended, as long as its neuron has not."""

    pagination_class = None
    serializer_class = serializers.Serializer
    filters = {"lines": ""}

    @extend_schema(
        parameters=[OpenApiParameter("lines", int, default=DEFAULT_LINES)],
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, call: Call, name: str, model: str) -> Response:
        log = engine_log(name, model, _num_lines(call))
        return Response(asdict(log))


def _num_lines(call: Call) -> int:
    """Raises ``ProblemError``."""
    text = call.query_params.get("lines", str(DEFAULT_LINES))
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LINES))
    num_lines = int(text) if is_number else 0
    if not 1 <= num_lines <= MAX_LINES:
        detail = f"'lines' is to be a number from 1 to {MAX_LINES}."
        raise ProblemError(400, "invalid_value", detail, param="lines")
    return num_lines
