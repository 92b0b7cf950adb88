"""What an operator should know of a model that has just been saved or deleted."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Max
from django.template.defaultfilters import filesizeformat

from fleet.models import CatalogueModel, Device, Neuron, Replica
from fleet.outdated import is_outdated


def outdated_replicas(model: CatalogueModel) -> list[Replica]:
    """Loaded by another spec than the catalogue has now. Reads the replicas with their neurons, the
    aliases and the measurements (prefetch them when looking at many)."""
    replicas = list(model.replicas.all())
    if not replicas:
        return []
    entry = model.entry()
    return [replica for replica in replicas if is_outdated(replica.spec_digest, entry)]


def saved_remarks(model: CatalogueModel) -> Iterator[str]:
    for replica in outdated_replicas(model):
        yield (
            f"{model.name} on {replica.neuron.name} is outdated: it serves as it was loaded until "
            "it is reloaded. Choose it in the list, then the action Reload what is outdated"
        )
    settings = model.settings()
    known = set(Neuron.objects.values_list("name", flat=True))
    for name in settings.pinned_on:
        if name not in known:
            yield f"No neuron named {name} has joined yet"
    largest_bytes = Device.objects.aggregate(largest=Max("total_memory_bytes"))["largest"]
    if settings.kv_memory_bytes and largest_bytes and settings.kv_memory_bytes > largest_bytes:
        yield (
            f"{filesizeformat(settings.kv_memory_bytes)} of KV memory is more than any device has "
            f"({filesizeformat(largest_bytes)}): loads will be refused"
        )


def deleted_remark(model: CatalogueModel) -> str | None:
    """To be asked before it is deleted."""
    neurons = [replica.neuron.name for replica in model.replicas.all()]
    if not neurons:
        return None
    return f"It leaves the memory of {', '.join(neurons)}"
