"""Loads that placement decided, by a gateway or by the control: one at a time for each model.

Two gateways may decide on snapshots that differ by a heartbeat, and choose different neurons. So
the model's row is locked while it is looked whether a load of it is under way anywhere.
"""

from __future__ import annotations

from django.db import transaction

from fleet import selectors
from fleet.lifecycles import LEAVING_KINDS
from fleet.models import CatalogueModel, LoadJob
from fleet.placement import Load
from fleet.services.load_jobs import load_job_start
from metering.actor import Actor


def placed_load_start(*, actor: Actor, load: Load, may_be_one_more: bool = False) -> LoadJob:
    """The job of ``load``, or the one by which the model is being loaded somewhere already, unless
    it ``may_be_one_more`` than that. Raises as ``load_job_start``."""
    with transaction.atomic():
        CatalogueModel.objects.select_for_update().filter(name=load.model).first()
        loads = selectors.load_jobs_active().exclude(kind__in=LEAVING_KINDS)
        elsewhere = loads.filter(model_name=load.model).exclude(neuron__name=load.neuron)
        if not may_be_one_more and (active := elsewhere.first()):
            return active
        return load_job_start(
            actor=actor,
            model_name=load.model,
            neuron_name=load.neuron,
            devices=load.devices,
            evict=load.evict,
        )
