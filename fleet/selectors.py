"""Reads of the fleet's database. No writes, no Redis.

The catalogue is read as a whole and kept for a second in the process: a gateway asks for every
request. Services clear it at once in their own process; others see a change within that second.
"""

from __future__ import annotations

from django.db.models import Count, QuerySet

from fleet.catalogue import CatalogueEntry
from fleet.errors import ModelDisabledError, UnknownModelError, UnknownNeuronError
from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES, LoadJobKind, LoadJobStatus
from fleet.live.catalogue_cache import CatalogueCache
from fleet.models import Alias, CatalogueModel, Download, LoadJob, Neuron
from fleet.models_toml import CatalogueState
from metering.prices import Prices


def catalogue_find(name: str) -> CatalogueEntry | None:
    """The enabled model of that name or alias; ``None`` when there is none."""
    return catalogue_cache.current().by_any_name.get(name)


def catalogue_list() -> tuple[CatalogueEntry, ...]:
    """Enabled models, sorted by name."""
    return catalogue_cache.current().entries


def catalogue_by_name() -> dict[str, CatalogueEntry]:
    """Enabled models, without aliases. The same object until the catalogue is read again."""
    return catalogue_cache.current().by_name


def catalogue_prices(name: str) -> Prices | None:
    """Reads the prices of the model of that name, offered or not; ``None`` where it is not priced
    or not there. Not kept."""
    model = CatalogueModel.objects.filter(name=name).first()
    return None if model is None else model.settings().prices


def catalogue_state() -> CatalogueState:
    """Models, offered or not, and aliases: what an import starts from and an export writes. Not
    kept."""
    return CatalogueState(
        models={model.name: model.settings() for model in CatalogueModel.objects.all()},
        aliases=dict(Alias.objects.values_list("name", "model__name")),
    )


def catalogue_cache_clear() -> None:
    catalogue_cache.clear()


def model_known(name: str) -> CatalogueModel:
    """Offered or not. Raises ``UnknownModelError``."""
    model = CatalogueModel.objects.filter(name=name).first()
    if model is None:
        raise UnknownModelError(f"There is no model named {name!r} in the catalogue")
    return model


def adapter_names(base: str) -> list[str]:
    """Of the adapters of that model, offered or not."""
    adapters = CatalogueModel.objects.filter(base=base).order_by("name")
    return list(adapters.values_list("name", flat=True))


def model_enabled(name: str) -> CatalogueModel:
    """Raises ``UnknownModelError``, ``ModelDisabledError``."""
    model = model_known(name)
    if not model.settings().enabled:
        raise ModelDisabledError(f"{name} is in the catalogue but not enabled")
    return model


def neuron_known(name: str) -> Neuron:
    """Raises ``UnknownNeuronError``."""
    neuron = Neuron.objects.filter(name=name).first()
    if neuron is None:
        raise UnknownNeuronError(f"No neuron named {name!r} has reported yet")
    return neuron


def load_jobs_active() -> QuerySet[LoadJob]:
    """Pending and running, newest first, with their model, neuron and replacement."""
    return LoadJob.objects.filter(status__in=ACTIVE_LOAD_JOB_STATUSES).select_related(
        "model", "neuron", "replacement__neuron"
    )


def downloads_active() -> QuerySet[Download]:
    """Pending and running, newest first, with their neuron."""
    return Download.objects.filter(status__in=ACTIVE_LOAD_JOB_STATUSES).select_related("neuron")


def download_find(pk: str) -> Download | None:
    return Download.objects.select_related("neuron").filter(pk=pk).first()


def unload_job_is_active(model_name: str, neuron: Neuron) -> bool:
    unloads = LoadJob.objects.filter(kind=LoadJobKind.UNLOAD, status__in=ACTIVE_LOAD_JOB_STATUSES)
    return unloads.filter(model_name=model_name, neuron=neuron).exists()


def load_jobs_by_status() -> dict[str, int]:
    """How many load jobs have each status; 0 where none has."""
    counted = LoadJob.objects.values_list("status").annotate(Count("pk")).order_by()
    return dict.fromkeys(LoadJobStatus.values, 0) | dict(counted)


def _read_catalogue() -> tuple[CatalogueEntry, ...]:
    models = CatalogueModel.objects.filter(enabled=True).prefetch_related(
        "aliases", "load_measurements__neuron"
    )
    return tuple(model.entry() for model in models.order_by("name"))


catalogue_cache = CatalogueCache(_read_catalogue)
"""Of this process."""
