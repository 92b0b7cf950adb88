"""The plan of a catalogue model's stages, without a load."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors
from fleet.api.access import FleetView
from fleet.live import reading as live
from fleet.overview.stage_plans import WHAT_LOADS_DO, stage_plan
from fleet.placement.stages import StagePlan
from metering.api.problems import CONTENT_TYPE
from metering.api.schema import Problem


class StageShape(serializers.Serializer[Any]):
    neuron = serializers.CharField()
    device = serializers.CharField()
    first_layer = serializers.IntegerField()
    last_layer = serializers.IntegerField(help_text="The one after its last layer.")
    weight_bytes = serializers.IntegerField()
    kv_bytes = serializers.IntegerField()
    beside_bytes = serializers.IntegerField(help_text="Its process and a step's activations.")
    free_bytes = serializers.IntegerField(help_text="On the device, as reported.")


class StagePlanShape(serializers.Serializer[Any]):
    stages = StageShape(many=True)
    num_blocks = serializers.IntegerField(help_text="Of keys and values, on every stage.")
    kv_tokens = serializers.IntegerField(help_text="That the blocks hold.")
    tokens_per_s = serializers.FloatField(help_text="Predicted, of one request.")
    tokens_per_s_of_16 = serializers.FloatField(
        source="tokens_per_s_of_many", help_text="Predicted, of 16 requests together."
    )
    num_running = serializers.IntegerField(help_text="How many of the 16 run at once.")


class AlternativeShape(StagePlanShape):
    words = serializers.CharField()


class ModelPlanShape(serializers.Serializer[Any]):
    model = serializers.CharField()
    num_layers = serializers.IntegerField()
    weight_bytes = serializers.IntegerField(help_text="Of all weights, on their devices.")
    plan = StagePlanShape(allow_null=True)
    refusal = serializers.CharField(allow_null=True, help_text="What is missing where.")
    alternatives = AlternativeShape(many=True)
    note = serializers.CharField()


class ModelPlanView(FleetView):
    """The plan of a model: the devices that would hold it, predictions from makers' figures, and
    its alternatives. Loads nothing; a model of the hub need not be downloaded."""

    pagination_class = None
    serializer_class = ModelPlanShape

    @extend_schema(
        responses={
            200: ModelPlanShape,
            (409, CONTENT_TYPE): OpenApiResponse(Problem, description="no plan can be made of it"),
        }
    )
    def get(self, request: Request, name: str) -> Response:
        entry = selectors.model_known(name).entry()
        snapshot = live.read_snapshot_sync(live.redis_client())
        planned = stage_plan(entry, snapshot)
        found = {
            "model": name,
            "num_layers": len(planned.costs.layers),
            "weight_bytes": planned.costs.weight_bytes.cuda,
            "plan": planned.plan,
            "refusal": planned.refusal.words if planned.refusal else None,
            "alternatives": [
                _shown(one.plan) | {"words": one.words} for one in planned.alternatives
            ],
            "note": WHAT_LOADS_DO,
        }
        return Response(ModelPlanShape(found).data)


def _shown(plan: StagePlan) -> dict[str, Any]:
    return {
        "stages": plan.stages,
        "num_blocks": plan.num_blocks,
        "kv_tokens": plan.kv_tokens,
        "tokens_per_s": plan.tokens_per_s,
        "tokens_per_s_of_many": plan.tokens_per_s_of_many,
        "num_running": plan.num_running,
    }
