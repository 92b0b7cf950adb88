"""The catalogue: models, their aliases, and the assignments that follow from it."""

from __future__ import annotations

from typing import Any

from fleet import selectors, services
from fleet.api.access import Call, body_of, text_in
from fleet.api.rows import RowsView, assigned
from fleet.api.shapes import AliasShape, CatalogueShape
from fleet.catalogue import SETTINGS
from fleet.models import Alias, CatalogueModel
from fleet.nouns.of_fleet import ALIASES, MODELS
from metering.api.problems import ProblemError


class Catalogue(RowsView):
    """Includes disabled models. Fields as in the admin; a price is in micro-USD per million."""

    noun = MODELS
    serializer_class = CatalogueShape
    permission_of = "fleet.cataloguemodel"
    queryset = CatalogueModel.objects.prefetch_related(
        "aliases", "load_measurements__neuron", "replicas__neuron"
    )
    filters = {"enabled": "enabled", "pinned": "pinned", "base": "base", "source": "source"}

    def find(self, name: str) -> CatalogueModel:  # type: ignore[override]
        return selectors.model_known(name)

    def new_values(self, call: Call) -> dict[str, Any]:
        """Raises ``ProblemError``."""
        body = body_of(call, "name", *SETTINGS)
        values = {"name": text_in(body, "name"), **_settings(body)}
        if values.get("source") is None:
            raise ProblemError(400, "invalid_value", "A source is needed.", param="source")
        return values

    def changed_values(self, call: Call) -> dict[str, Any]:
        return _settings(body_of(call, *SETTINGS))

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
    filters = {"model": "model__name"}
    id_part = "<path:name>"

    def find(self, name: str) -> Alias:  # type: ignore[override]
        """Raises ``ProblemError``."""
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
    """Returns the body's settings as the catalogue has them: JSON has lists where it has tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in body.items()
        if name in SETTINGS
    }
