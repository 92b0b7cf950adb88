"""The catalogue: models, their aliases, and the assignments that follow from it."""

from __future__ import annotations

from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.response import Response

from fleet import selectors, services
from fleet.api.access import Call, FleetListView, FleetView, body_of, text_in
from fleet.api.removal import removal_schema, removed
from fleet.api.shapes import AliasShape, CatalogueShape
from fleet.catalogue import SETTINGS, SettingValue
from fleet.models import Alias, CatalogueModel
from fleet.nouns.bodies import change_schema, changed_row, new_row, new_schema
from fleet.nouns.of_fleet import ALIASES
from metering.api.problems import ProblemError


class CatalogueView(FleetListView):
    """Includes disabled models. Fields as in the admin; a price is in micro-USD per million."""

    serializer_class = CatalogueShape
    permission_of = "fleet.cataloguemodel"
    queryset = CatalogueModel.objects.prefetch_related(
        "aliases", "load_measurements__neuron", "replicas__neuron"
    )
    filters = {"enabled": "enabled", "pinned": "pinned", "base": "base", "source": "source"}

    @extend_schema(responses={201: CatalogueShape})
    def post(self, call: Call) -> Response:
        body = body_of(call, "name", *SETTINGS)
        name = text_in(body, "name")
        values = _settings(body)
        if values.get("source") is None:
            raise ProblemError(400, "invalid_value", "A source is needed.", param="source")
        model = services.catalogue_model_create(actor=self.actor, name=name, **values)
        return Response(self.get_serializer(model).data, status=201)


class CatalogueModelView(FleetView):
    serializer_class = CatalogueShape
    permission_of = "fleet.cataloguemodel"
    queryset = CatalogueModel.objects.none()

    def get(self, call: Call, name: str) -> Response:
        return Response(self.get_serializer(selectors.model_known(name)).data)

    def patch(self, call: Call, name: str) -> Response:
        """Changes the given fields. Loaded replicas keep their settings until they are reloaded."""
        model = selectors.model_known(name)
        values = _settings(body_of(call, *SETTINGS))
        model.assign(values)
        services.catalogue_model_update(actor=self.actor, model=model, changed_fields=list(values))
        return Response(self.get_serializer(selectors.model_known(name)).data)

    @removal_schema
    def delete(self, call: Call, name: str) -> Response:
        """Deletes the model with its aliases, and unloads its replicas. A base can only be deleted
        after its adapters."""
        model = selectors.model_known(name)
        remove = partial(services.catalogue_model_delete, actor=self.actor, model=model)
        return removed(call, self.actor, remove)


class AliasesView(FleetListView):
    serializer_class = AliasShape
    permission_of = "fleet.alias"
    queryset = Alias.objects.select_related("model")
    filters = {"model": "model__name"}

    @extend_schema(request=new_schema("AliasStart", ALIASES), responses={201: AliasShape})
    def post(self, call: Call) -> Response:
        body = new_row(call, ALIASES)
        model = selectors.model_known(body["model"])
        alias = services.alias_create(actor=self.actor, name=body["name"], model=model)
        return Response(self.get_serializer(alias).data, status=201)


class AliasView(FleetView):
    serializer_class = AliasShape
    permission_of = "fleet.alias"
    queryset = Alias.objects.none()

    def get(self, call: Call, name: str) -> Response:
        return Response(self.get_serializer(_alias(name)).data)

    @extend_schema(request=change_schema("AliasChange", ALIASES))
    def patch(self, call: Call, name: str) -> Response:
        """Points the alias at another model; requests follow within a second."""
        alias, changed = _alias(name), changed_row(call, ALIASES)
        if "model" in changed:
            alias.model = selectors.model_known(changed["model"])
        services.alias_update(actor=self.actor, alias=alias, changed_fields=list(changed))
        return Response(self.get_serializer(alias).data)

    @removal_schema
    def delete(self, call: Call, name: str) -> Response:
        remove = partial(services.alias_delete, actor=self.actor, alias=_alias(name))
        return removed(call, self.actor, remove)


def _alias(name: str) -> Alias:
    """Raises ``ProblemError``."""
    alias = Alias.objects.select_related("model").filter(name=name).first()
    if alias is None:
        raise ProblemError(404, "alias_not_found", f"There is no alias named {name!r}.")
    return alias


def _settings(body: dict[str, Any]) -> dict[str, SettingValue]:
    """Returns the body's settings as the catalogue has them: JSON has lists where it has tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in body.items()
        if name in SETTINGS
    }
