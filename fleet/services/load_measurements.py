"""Records of a model beside its settings: its loads' memory, its prefill speed by neuron, where it
stays unloaded. A speed is written when it has changed by a tenth, so requests cost few writes and
an idle fleet none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from fleet import selectors
from fleet.models import CatalogueModel, LoadMeasurement, Neuron
from inference.loading.model_costs import unpacked
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.load_report import LoadReport, PackedCosts

logger = logging.getLogger(__name__)

NEWS = 0.1
"""The relative change of a speed that is written."""


def load_measurement_record(
    *,
    model: CatalogueModel,
    neuron: Neuron,
    report: LoadReport,
    capabilities: Sequence[str] = (),
) -> None:
    """Skips engines that did not measure their memory, and models of several stages."""
    if report.actual_bytes == 0 or report.stages:
        return
    kv_slots = report.num_kv_blocks * report.kv_block_tokens
    values = {
        "device_kind": report.device.partition(":")[0],
        "load_bytes": report.actual_bytes - report.kv_bytes - report.adapter_bytes,
        "process_bytes": report.process_bytes,
        "kv_token_bytes": report.kv_bytes // kv_slots if kv_slots else 0,
        "memory_correction_bytes": report.memory_correction_bytes,
        "load_s": report.load_seconds,
        "context_tokens": report.context_tokens,
        "capabilities": list(capabilities),
    }
    # From another device of that neuron, with another speed.
    elsewhere = LoadMeasurement.objects.filter(model=model, neuron=neuron)
    elsewhere.exclude(device_kind=values["device_kind"]).delete()
    LoadMeasurement.objects.update_or_create(model=model, neuron=neuron, defaults=values)
    catalogue_changed()


def load_need_record(
    *, model: CatalogueModel, neuron: Neuron, device: str, needed_bytes: int
) -> None:
    """Records a need that no load has measured yet. A later, larger need replaces it."""
    load_bytes = max(0, needed_bytes - (model.entry().kv_memory_bytes or 0))
    reported: dict[str, Any] = {
        "device_kind": device.partition(":")[0],
        "process_bytes": 0,
        "kv_token_bytes": 0,
        "memory_correction_bytes": 0,
    }
    row, is_new = LoadMeasurement.objects.get_or_create(
        model=model, neuron=neuron, defaults=reported | {"load_bytes": load_bytes}
    )
    smaller = LoadMeasurement.objects.filter(pk=row.pk, load_bytes__lt=load_bytes, **reported)
    if is_new or smaller.update(load_bytes=load_bytes):
        catalogue_changed()


def weight_bytes_record(*, model: CatalogueModel, weight_bytes: int) -> None:
    rows = CatalogueModel.objects.filter(pk=model.pk)
    if rows.exclude(weight_bytes=weight_bytes).update(weight_bytes=weight_bytes):
        catalogue_changed()


def layer_costs_record(*, model: CatalogueModel, costs: PackedCosts) -> None:
    """Impossible costs are logged and ignored: neurons report them."""
    try:
        unpacked(costs)
    except ValueError as error:
        logger.warning("the layers of %s are not planned: %s", model.name, error)
        return
    stored = msgspec.to_builtins(costs)
    if model.layer_costs != stored:
        CatalogueModel.objects.filter(pk=model.pk).update(layer_costs=stored)
        catalogue_changed()


def prefill_averages_record(*, neuron: Neuron, states: list[ReplicaState]) -> None:
    """A speed is compared with the stored one, else with the load's, where the average began."""
    live = {state.model: state for state in states if state.status is ReplicaStatus.READY}
    rows = LoadMeasurement.objects.filter(neuron=neuron, model__name__in=live)
    for row in rows.select_related("model"):
        state = live[row.model.name]
        speed = None if state.stats is None else state.stats.prefill_speed
        if speed is None or state.report is None:
            continue
        known, tokens = row.prefill_speed or state.report.prefill_speed, state.report.context_tokens
        if known and abs(speed.prompt_s(tokens) / known.prompt_s(tokens) - 1) >= NEWS:
            LoadMeasurement.objects.filter(pk=row.pk).update(
                prefill_token_s=speed.token_s,
                prefill_growth_s=speed.growth_s,
                prefill_window_tokens=speed.window_tokens,
                measured_at=timezone.now(),
            )
            catalogue_changed()


def load_measurements_forget(*, model: CatalogueModel) -> None:
    LoadMeasurement.objects.filter(model=model).delete()


def model_keep_unloaded(*, model_name: str, neuron_name: str) -> None:
    model = CatalogueModel.objects.filter(name=model_name).first()
    if model is None or not model.settings().is_kept_loaded:
        return
    if neuron_name not in model.unloaded_from:
        _write(model, [*model.unloaded_from, neuron_name])


def kept_unloaded_forget(*, model_name: str) -> None:
    for model in CatalogueModel.objects.filter(name=model_name).exclude(unloaded_from=[]):
        _write(model, [])


def kept_unloaded_forget_neuron(*, neuron_name: str) -> None:
    for model in CatalogueModel.objects.exclude(unloaded_from=[]):
        if neuron_name in model.unloaded_from:
            _write(model, [name for name in model.unloaded_from if name != neuron_name])


def _write(model: CatalogueModel, neuron_names: list[str]) -> None:
    CatalogueModel.objects.filter(pk=model.pk).update(unloaded_from=neuron_names)
    catalogue_changed()


def catalogue_changed() -> None:
    """Clears the cache now, for reads inside this transaction; and after the commit, because
    another thread may have read the old rows in between."""
    selectors.catalogue_cache_clear()
    transaction.on_commit(selectors.catalogue_cache_clear)
