"""Injecting a fault in a neuron that allows it, to see the fleet recover."""

from __future__ import annotations

import msgspec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet import services
from fleet.api.access import Call, FleetView, body_of, text_in
from fleet.errors import DrillOrderError
from fleet.models import Neuron
from metering.api.problems import ProblemError


class DrillView(FleetView):
    """``kill-engine``, ``stall-engine`` and ``fail-load`` of a ``model``, or ``drop-link``; how
    many ``seconds`` it lasts, where it does. Answers once the order is sent."""

    serializer_class = serializers.Serializer
    queryset = Neuron.objects.none()
    pagination_class = None

    def permission(self, method: str) -> str | None:
        return "fleet.change_neuron"

    @extend_schema(request=OpenApiTypes.OBJECT, responses={202: OpenApiTypes.OBJECT})
    def post(self, call: Call, name: str) -> Response:
        body = body_of(call, "fault", "model", "seconds")
        seconds = body.get("seconds")
        if seconds is not None and type(seconds) is not int:
            raise ProblemError(
                400, "invalid_value", "'seconds' is to be a whole number.", param="seconds"
            )
        try:
            order = services.fault_inject(
                actor=self.actor,
                neuron_name=name,
                fault=text_in(body, "fault"),
                model_name=text_in(body, "model") if body.get("model") is not None else None,
                lasts_s=seconds,
            )
        except DrillOrderError as error:
            raise ProblemError(400, error.code, str(error), param=error.field) from error
        sent = {"neuron": name, **msgspec.to_builtins(order)}
        sent["seconds"] = sent.pop("lasts_s")
        return Response(sent, status=202)
