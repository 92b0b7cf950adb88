"""Exports the catalogue as a models.toml, and imports one."""

from __future__ import annotations

from dataclasses import asdict

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import Call, FleetView, body_of, text_in
from fleet.models_toml import plan_import, read_document, write_document
from metering.api.problems import ProblemError


class ModelsTomlView(FleetView):
    pagination_class = None
    serializer_class = serializers.Serializer

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, call: Call) -> Response:
        return Response({"toml": write_document(selectors.catalogue_state())})

    @extend_schema(request=OpenApiTypes.OBJECT, responses=OpenApiTypes.OBJECT)
    def post(self, call: Call) -> Response:
        """``{"toml": "…", "apply": false, "prune": false, "seen": "…"}``. Without ``apply`` it
        returns the plan and the entries' ``problems``; while there are any, ``apply`` is refused.
        ``seen`` is the digest of that plan, and another one is refused."""
        body = body_of(call, "toml", "apply", "prune", "seen")
        document = read_document(text_in(body, "toml"))
        apply, prune = _flag(body.get("apply", False)), _flag(body.get("prune", False))
        seen = text_in(body, "seen") if body.get("seen") is not None else None
        if apply:
            plan = services.catalogue_import(
                actor=self.actor, document=document, prune=prune, seen=seen
            )
        else:
            plan = plan_import(document, selectors.catalogue_state(), prune=prune)
        return Response(
            {
                "lines": list(plan.lines()),
                "changes": not plan.is_empty,
                "problems": [asdict(problem) for problem in plan.problems],
                "applied": apply,
                "digest": plan.digest,
            }
        )


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ProblemError(400, "invalid_value", f"{value!r} is neither true nor false.")
    return value
