"""Pinned models that were unloaded through the original's path, and stay so.

The original loads its ``default_models`` when a neuron starts and no later: an unloaded model comes
back with a load, with a request for it, or with its neuron's next start. Until then such a model
counts as one with a replica less to keep.
"""

from __future__ import annotations

from fleet.models import CatalogueModel
from fleet.services.offers.catalogue_cache import catalogue_changed


def model_keep_unloaded(*, model_name: str, neuron_name: str) -> None:
    """The control does not load the model again for its own sake."""
    model = CatalogueModel.objects.filter(name=model_name).first()
    if model is None or not model.settings().is_kept_loaded:
        return
    if neuron_name not in model.unloaded_from:
        _write(model, [*model.unloaded_from, neuron_name])


def kept_unloaded_forget(*, model_name: str) -> None:
    """The model is wanted again, or stayed loaded."""
    for model in CatalogueModel.objects.filter(name=model_name).exclude(unloaded_from=[]):
        _write(model, [])


def kept_unloaded_forget_neuron(*, neuron_name: str) -> None:
    """Forget them: the neuron has restarted."""
    for model in CatalogueModel.objects.exclude(unloaded_from=[]):
        if neuron_name in model.unloaded_from:
            _write(model, [name for name in model.unloaded_from if name != neuron_name])


def _write(model: CatalogueModel, neuron_names: list[str]) -> None:
    CatalogueModel.objects.filter(pk=model.pk).update(unloaded_from=neuron_names)
    catalogue_changed()
