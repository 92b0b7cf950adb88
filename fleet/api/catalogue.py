"""What the fleet offers: models, their plans, aliases, upstreams and their tests, models.toml."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import ObjectView, body_of, flag_in, text_in
from fleet.api.rows import RowShape, RowsView, assigned
from fleet.catalogue import SETTINGS
from fleet.live import reading as live
from fleet.model_plans import WHAT_LOADS_DO, Alternative, stage_plan
from fleet.models import Alias, CatalogueModel, Upstream
from fleet.models_toml import read_document
from fleet.models_toml_plan import plan_import, write_document
from fleet.nouns import ALIASES, MODELS, UPSTREAMS
from metering.api.problems import CONTENT_TYPE, ProblemError, invalid
from metering.api.schema import Problem


class CatalogueShape(RowShape):
    aliases = serializers.SerializerMethodField()
    spec_digest = serializers.SerializerMethodField()
    loaded_on = serializers.SerializerMethodField()

    class Meta:
        model = CatalogueModel
        exclude = ("id", "layer_costs", "unloaded_from")

    def get_aliases(self, model: CatalogueModel) -> list[str]:
        return sorted(alias.name for alias in model.aliases.all())

    def get_spec_digest(self, model: CatalogueModel) -> str:
        return model.entry().spec_digest()

    def get_loaded_on(self, model: CatalogueModel) -> list[str]:
        ready = [replica for replica in model.replicas.all() if replica.status == "ready"]
        return sorted(replica.neuron.name for replica in ready)


class AliasShape(RowShape):
    model = serializers.CharField(source="model.name")

    class Meta:
        model = Alias
        exclude = ("id",)


class Catalogue(RowsView):
    """Includes disabled models. Fields as in the admin; a price is in micro-USD per million."""

    noun = MODELS
    serializer_class = CatalogueShape
    permission_of = "fleet.cataloguemodel"
    queryset = CatalogueModel.objects.prefetch_related(
        "aliases", "load_measurements__neuron", "replicas__neuron"
    )

    def find(self, name: str) -> CatalogueModel:
        return selectors.model_known(name)

    def new_values(self, request: Request) -> dict[str, Any]:
        body = body_of(request, "name", *SETTINGS)
        values = {"name": text_in(body, "name"), **_settings(body)}
        if values.get("source") is None:
            raise invalid("source", "A source is needed.")
        return values

    def changed_values(self, request: Request) -> dict[str, Any]:
        return _settings(body_of(request, *SETTINGS))

    def add(self, values: dict[str, Any]) -> CatalogueModel:
        return services.catalogue_model_create(actor=self.actor, **values)

    def change(self, model: CatalogueModel, values: dict[str, Any]) -> CatalogueModel:
        """Changes the given fields. Loaded replicas keep their settings until they are reloaded."""
        model.assign(values)
        services.catalogue_model_update(actor=self.actor, model=model, changed_fields=list(values))
        return self.find(model.name)

    def remove(self, model: CatalogueModel) -> None:
        """Deletes the model with its aliases, and unloads its replicas. A base can only be deleted
        after its adapters."""
        services.catalogue_model_delete(actor=self.actor, model=model)


class Aliases(RowsView):
    noun = ALIASES
    serializer_class = AliasShape
    permission_of = "fleet.alias"
    queryset = Alias.objects.select_related("model")
    id_part = "<path:name>"

    def find(self, name: str) -> Alias:
        alias = Alias.objects.select_related("model").filter(name=name).first()
        if alias is None:
            raise ProblemError(404, "alias_not_found", f"There is no alias named {name!r}.")
        return alias

    def add(self, values: dict[str, Any]) -> Alias:
        model = selectors.model_known(values["model"])
        return services.alias_create(actor=self.actor, name=values["name"], model=model)

    def change(self, alias: Alias, values: dict[str, Any]) -> None:
        """Points the alias at another model; requests follow within a second."""
        values = {"model": selectors.model_known(values["model"])}
        services.alias_update(actor=self.actor, alias=alias, changed_fields=assigned(alias, values))

    def remove(self, alias: Alias) -> None:
        services.alias_delete(actor=self.actor, alias=alias)


def _settings(body: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in body.items()
        if name in SETTINGS
    }


class ModelsTomlView(ObjectView):
    def get(self, request: Request) -> Response:
        return Response({"toml": write_document(selectors.catalogue_state())})

    def post(self, request: Request) -> Response:
        """``{"toml": "…", "apply": false, "prune": false, "seen": "…"}``. Without ``apply`` it
        returns the plan and the entries' ``problems``; while there are any, ``apply`` is refused.
        ``seen`` is the digest of that plan, and another one is refused."""
        body = body_of(request, "toml", "apply", "prune", "seen")
        document = read_document(text_in(body, "toml"))
        apply, prune = flag_in(body, "apply"), flag_in(body, "prune")
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

    def to_representation(self, instance: Alternative) -> dict[str, Any]:
        return {**StagePlanShape(instance.plan).data, "words": instance.words}


class ModelPlanShape(serializers.Serializer[Any]):
    model = serializers.CharField()
    num_layers = serializers.IntegerField()
    weight_bytes = serializers.IntegerField(help_text="Of all weights, on their devices.")
    plan = StagePlanShape(allow_null=True)
    refusal = serializers.CharField(allow_null=True, help_text="What is missing where.")
    alternatives = AlternativeShape(many=True)
    note = serializers.CharField()


class ModelPlanView(ObjectView):
    """The plan of a model: the devices that would hold it, predictions from makers' figures, and
    its alternatives. Loads nothing; a model of the hub need not be downloaded."""

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
            "alternatives": planned.alternatives,
            "note": WHAT_LOADS_DO,
        }
        return Response(ModelPlanShape(found).data)


class UpstreamShape(RowShape):
    """Without its key."""

    has_key = serializers.BooleanField(read_only=True)
    models = serializers.JSONField(
        source="known_models", help_text="With the limits and prices that it named."
    )

    class Meta:
        model = Upstream
        exclude = ("id", "sealed_secret", "known_models")


class ProbeShape(serializers.Serializer[Any]):
    what = serializers.CharField()
    works = serializers.BooleanField(allow_null=True, help_text="null: it was not tested.")
    detail = serializers.CharField()


class ProbedShape(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="Which one was tested.")
    probes = ProbeShape(many=True)


class Upstreams(RowsView):
    """Endpoints of others that answer requests."""

    noun = UPSTREAMS
    serializer_class = UpstreamShape
    permission_of = "fleet.upstream"
    queryset = Upstream.objects.all()

    def find(self, name: str) -> Upstream:
        return selectors.upstream_known(name)

    def add(self, values: dict[str, Any]) -> Upstream:
        return services.upstream_create(actor=self.actor, **values)

    def change(self, upstream: Upstream, values: dict[str, Any]) -> None:
        """A URL of another host needs the key again. Requests follow within a second."""
        key = values.pop("key", None)
        fields = assigned(upstream, values)
        services.upstream_update(
            actor=self.actor, upstream=upstream, changed_fields=fields, key=key
        )

    def remove(self, upstream: Upstream) -> None:
        services.upstream_delete(actor=self.actor, upstream=upstream)

    @extend_schema(
        request=inline_serializer(
            "UpstreamTest",
            {
                "model": serializers.CharField(required=False),
                "paid": serializers.BooleanField(required=False),
            },
        ),
        responses={200: ProbedShape},
    )
    @action(detail=True, methods=["post"], serializer_class=ProbedShape)
    def test(self, request: Request, name: str) -> Response:
        """Sends it a few small requests, within a minute, and records the models that it lists.
        ``model``: the model to test; by default the first one that chats, by its name. ``paid``:
        also tries moderation, speech, transcription and image generation, which may cost money."""
        upstream = selectors.upstream_known(name)
        body = body_of(request, "model", "paid")
        model = text_in(body, "model") if "model" in body else ""
        probed = services.upstream_test(
            actor=self.actor, upstream=upstream, model=model, tries_paid=flag_in(body, "paid")
        )
        return Response(ProbedShape(probed).data)
