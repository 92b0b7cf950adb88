"""Imports a models.toml in one transaction, by the services for single changes."""

from __future__ import annotations

from django.db import transaction

from fleet import selectors
from fleet.errors import CatalogueChangedError
from fleet.models import Alias, CatalogueModel
from fleet.models_toml import Document, ModelsTomlError
from fleet.models_toml_plan import Change, Plan, plan_import
from fleet.services.catalogue import (
    alias_create,
    alias_delete,
    alias_update,
    catalogue_model_create,
    catalogue_model_delete,
    catalogue_model_update,
)
from fleet.services.upstreams import upstream_create, upstream_delete, upstream_update
from metering.audit import Actor


def catalogue_import(
    *, actor: Actor, document: Document, prune: bool = False, seen: str | None = None
) -> Plan:
    """``seen``: the digest of the confirmed plan. Raises ``ModelsTomlError``,
    ``CatalogueValueError``, and ``CatalogueChangedError`` where the plan differs from the confirmed
    one; then nothing has changed."""
    with transaction.atomic():
        plan = plan_import(document, selectors.catalogue_state(), prune=prune)
        if seen not in (None, plan.digest):
            raise CatalogueChangedError("The catalogue has changed meanwhile: look again")
        if plan.problems:
            raise ModelsTomlError(*plan.problems)
        _apply(actor, plan)
    return plan


def _apply(actor: Actor, plan: Plan) -> None:
    """Names are freed before they are used again, and a base exists as long as its adapters. An
    upstream exists as long as its models; it joins the network before them, and leaves it after
    them."""
    for change in plan.upstreams:
        if not _is_after_models(change):
            _upstream_set(actor, change)
    for change in plan.aliases:
        if change.action == "remove":
            alias_delete(actor=actor, alias=Alias.objects.get(name=change.name))
    kept = [change for change in plan.models if change.action != "remove"]
    for change in sorted(kept, key=lambda one: one.values.get("base") is not None):
        _model_set(actor, change)
    leaving = [change.name for change in plan.models if change.action == "remove"]
    for model in CatalogueModel.objects.filter(name__in=leaving).order_by("-base", "name"):
        catalogue_model_delete(actor=actor, model=model)
    for change in plan.aliases:
        if change.action != "remove":
            _alias_set(actor, change.name, CatalogueModel.objects.get(name=change.model))
    for change in filter(_is_after_models, plan.upstreams):
        if change.action == "remove":
            upstream_delete(actor=actor, upstream=selectors.upstream_known(change.name))
        else:
            _upstream_set(actor, change)


def _is_after_models(change: Change) -> bool:
    """A new upstream exists before the models that name it."""
    leaves = change.action == "change" and change.values.get("leaves_network", False)
    return change.action == "remove" or leaves


def _upstream_set(actor: Actor, change: Change) -> None:
    if change.action == "add":
        upstream_create(actor=actor, name=change.name, **change.values)
        return
    upstream = selectors.upstream_known(change.name)
    for name, value in change.values.items():
        setattr(upstream, name, value)
    upstream_update(actor=actor, upstream=upstream, changed_fields=[*change.values])


def _model_set(actor: Actor, change: Change) -> None:
    if change.action == "add":
        catalogue_model_create(actor=actor, name=change.name, **change.values)
        return
    model = CatalogueModel.objects.get(name=change.name)
    model.assign(change.values)
    catalogue_model_update(actor=actor, model=model, changed_fields=[*change.values])


def _alias_set(actor: Actor, name: str, model: CatalogueModel) -> None:
    alias = Alias.objects.filter(name=name).first()
    if alias is None:
        alias_create(actor=actor, name=name, model=model)
        return
    alias.model = model
    alias_update(actor=actor, alias=alias, changed_fields=["model"])
