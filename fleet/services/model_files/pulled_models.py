"""Models that clients have pulled by their source: each is offered once its files are here."""

from __future__ import annotations

from itertools import chain, count

from django.db import transaction

from fleet.catalogue import check_alias_name
from fleet.catalogue.rules import MAX_NAME_LENGTH
from fleet.errors import CatalogueValueError
from fleet.hub.offers import expected_vram_mb
from fleet.models import Alias, CatalogueModel
from fleet.models_toml.values import name_of_id
from fleet.services.offers.catalogue import alias_create, catalogue_model_create
from metering.actor import Actor

ROOM_FOR_A_NUMBER = 4


def pulled_model_offer(
    *, actor: Actor, source: str, file: str | None, called: str, num_bytes: int
) -> CatalogueModel:
    """The model of the catalogue that has these files, a new one where none has. ``called`` is an
    alias of it, where that name is free and can be one. ``num_bytes``: what the files take; 0:
    unknown. One that the operator has disabled stays so. Raises ``CatalogueValueError``."""
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
    """``qwen3-0.6b-q8_0``: the repository's with the quant, and a number where that is taken."""
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
