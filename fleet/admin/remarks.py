"""Notes for the operator on a model that has just been saved."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Max

from fleet import selectors
from fleet.catalogue import CatalogueSettings
from fleet.catalogue.outdated import is_outdated
from fleet.management.sizes import size_text
from fleet.models import CatalogueModel, Device, Neuron, Replica
from fleet.overview.selector import fleet_overview

QUANTISED = ("q4", "q5", "q6", "q8", "fp8")
"""Quantised while loading: it needs less memory than its files."""


def outdated_replicas(model: CatalogueModel) -> list[Replica]:
    """Replicas loaded by another spec than the catalogue's present one. Reads the replicas with
    their neurons, the aliases and the measurements (prefetch them for many)."""
    replicas = list(model.replicas.all())
    if not replicas:
        return []
    entry = model.entry()
    return [replica for replica in replicas if is_outdated(replica.spec_digest, entry)]


def saved_remarks(model: CatalogueModel) -> Iterator[str]:
    if no_host := no_host_remark(model):
        yield no_host
    for replica in outdated_replicas(model):
        yield (
            f"{model.name} on {replica.neuron.name} is outdated: it serves as it was loaded until "
            "it is reloaded"
        )
    settings = model.settings()
    for replica in model.replicas.all():
        if settings.pinned_on and replica.neuron.name not in settings.pinned_on:
            yield (
                f"{model.name} moves from {replica.neuron.name} once it can be loaded on "
                f"{' or '.join(settings.pinned_on)}"
            )
        elif _is_on_another_kind(settings, replica):
            yield (
                f"{model.name} stays on {replica.neuron.name} until it is unloaded there, although "
                f"its device is {settings.device}"
            )
    if not settings.enabled and (adapters := selectors.adapter_names(model.name)):
        yield f"Its adapters are not offered either: {', '.join(adapters)}"
    known = set(Neuron.objects.values_list("name", flat=True))
    for name in settings.pinned_on:
        if name not in known:
            yield f"No neuron named {name} has joined yet"
    if settings.vram_mb and settings.quantization in QUANTISED and model.weight_bytes is None:
        yield (
            f"Placement expects it to take {settings.vram_mb:,} MiB until it was loaded once: make "
            f"sure that this is its size in {settings.quantization}"
        )
    largest_bytes = Device.objects.aggregate(largest=Max("total_memory_bytes"))["largest"]
    if settings.kv_memory_bytes and largest_bytes and settings.kv_memory_bytes > largest_bytes:
        yield (
            f"{size_text(settings.kv_memory_bytes)} of KV memory is more than any device has "
            f"({size_text(largest_bytes)}): loads will be refused"
        )


def no_host_remark(model: CatalogueModel) -> str:
    """Returns a sentence that no host of the fleet can run it, with the reason; empty where one
    can."""
    lines = fleet_overview().models
    why = next((line.no_host for line in lines if line.name == model.name), "")
    return f"No host can run {model.name}: {why}" if why else ""


def _is_on_another_kind(settings: CatalogueSettings, replica: Replica) -> bool:
    is_elsewhere = any(not name.startswith(settings.device) for name in replica.devices)
    return settings.device != "auto" and is_elsewhere
