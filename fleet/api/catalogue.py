"""The catalogue: models, their aliases, and the assignments that follow from it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import FleetListView, FleetView, body_of, text_in
from fleet.api.shapes import AliasShape, CatalogueShape
from fleet.catalogue import SETTINGS, SettingValue
from fleet.models import Alias, CatalogueModel
from metering.api.problems import ProblemError


class CatalogueView(FleetListView):
    """Also what is not enabled. Fields as in the admin; a price is in micro-USD per million."""

    serializer_class = CatalogueShape
    queryset = CatalogueModel.objects.prefetch_related(
        "aliases", "load_measurements__neuron", "replicas__neuron"
    )

    @extend_schema(responses={201: CatalogueShape})
    def post(self, request: Request) -> Response:
        body = body_of(request, "name", *SETTINGS)
        name = text_in(body, "name")
        values = _settings(body)
        if values.get("source") is None:
            raise ProblemError(400, "invalid_value", "A source is needed.", param="source")
        model = services.catalogue_model_create(actor=self.actor, name=name, **values)
        return Response(self.get_serializer(model).data, status=201)


class CatalogueModelView(FleetView):
    serializer_class = CatalogueShape
    queryset = CatalogueModel.objects.none()

    def get(self, request: Request, name: str) -> Response:
        return Response(self.get_serializer(selectors.model_known(name)).data)

    def patch(self, request: Request, name: str) -> Response:
        """The fields that are given. What is loaded stays until it is reloaded."""
        model = selectors.model_known(name)
        values = _settings(body_of(request, *SETTINGS))
        model.assign(values)
        services.catalogue_model_update(actor=self.actor, model=model, changed_fields=list(values))
        return Response(self.get_serializer(selectors.model_known(name)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """With its aliases; what is loaded of it is unloaded. A base goes after its adapters."""
        services.catalogue_model_delete(actor=self.actor, model=selectors.model_known(name))
        return Response(status=204)


class AliasesView(FleetListView):
    serializer_class = AliasShape
    queryset = Alias.objects.select_related("model")
    filters = {"model": "model__name"}

    @extend_schema(responses={201: AliasShape})
    def post(self, request: Request) -> Response:
        body = body_of(request, "name", "model")
        name, model = text_in(body, "name"), selectors.model_known(text_in(body, "model"))
        alias = services.alias_create(actor=self.actor, name=name, model=model)
        return Response(self.get_serializer(alias).data, status=201)


class AliasView(FleetView):
    serializer_class = AliasShape
    queryset = Alias.objects.none()

    def get(self, request: Request, name: str) -> Response:
        return Response(self.get_serializer(_alias(name)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        services.alias_delete(actor=self.actor, alias=_alias(name))
        return Response(status=204)


def _alias(name: str) -> Alias:
    """Raises ``ProblemError``."""
    alias = Alias.objects.select_related("model").filter(name=name).first()
    if alias is None:
        raise ProblemError(404, "alias_not_found", f"There is no alias named {name!r}.")
    return alias


def _settings(body: dict[str, Any]) -> dict[str, SettingValue]:
    """As the catalogue has them. JSON has lists where it has tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in body.items()
        if name in SETTINGS
    }
