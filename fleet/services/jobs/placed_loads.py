"""Starts loads that placement decided, in a gateway or in the control plane: one at a time for each
model.

Two gateways may decide on snapshots that differ by a heartbeat, and choose different neurons. So
the model's row is locked while it is looked whether a load of it is under way anywhere. What leaves
for a load moves to where memory is free (``fleet.placement.devices.moves``); both jobs' notes name
it.
"""

from __future__ import annotations

import logging

from django.db import transaction

from fleet import selectors
from fleet.errors import FleetError
from fleet.lifecycles import LEAVING_KINDS
from fleet.live import reading as live
from fleet.models import CatalogueModel, LoadJob
from fleet.placement import Load
from fleet.placement.devices.moves import moves_for
from fleet.services.hosts.neurons import neuron_models_to_restore_add
from fleet.services.jobs.load_jobs import load_job_start
from metering.actor import Actor

logger = logging.getLogger(__name__)


def placed_load_start(*, actor: Actor, load: Load, may_be_one_more: bool = False) -> LoadJob:
    """The job of ``load``, or the one by which the model is being loaded somewhere already, unless
    it ``may_be_one_more`` than that. Raises as ``load_job_start``."""
    moves = _moves_of(load)
    with transaction.atomic():
        CatalogueModel.objects.select_for_update().filter(name=load.model).first()
        loads = selectors.load_jobs_active().exclude(kind__in=LEAVING_KINDS)
        elsewhere = loads.filter(model_name=load.model).exclude(neuron__name=load.neuron)
        if not may_be_one_more and (active := elsewhere.first()):
            return active
        job = load_job_start(
            actor=actor,
            model_name=load.model,
            neuron_name=load.neuron,
            devices=load.devices,
            stages=load.stages,
            predicted_tokens_per_s=load.predicted_tokens_per_s,
            may_divide=not load.stages,
            evict=load.evict,
        )
    if moves and not job.note:
        _start_moves(actor, moves, load, job)
    return job


def _moves_of(load: Load) -> tuple[Load, ...]:
    """They are decided before the load is sent: what it evicts may leave at once, and is then no
    longer seen as idle."""
    if not load.evictions:
        return ()
    try:
        snapshot = live.read_snapshot_sync(live.redis_client())
    except FleetError as error:
        logger.warning("nothing moves for %s on %s: %s", load.model, load.neuron, error)
        return ()
    return moves_for(load, snapshot, selectors.catalogue_by_name())


def _start_moves(actor: Actor, moves: tuple[Load, ...], load: Load, job: LoadJob) -> None:
    """Start them. A refused move is dropped: the model is loaded again at its next request."""
    try:
        for move in moves:
            left = [neuron for neuron, model in load.evictions if model == move.model]
            if move.neuron in left:  # one neuron has a model once: after it has left
                neuron_models_to_restore_add(neuron_name=move.neuron, model_names=[move.model])
                devices = ", ".join(move.devices)
                _note(job, f"{move.model} makes room and moves to {devices} of {move.neuron}")
                continue
            moved = load_job_start(
                actor=actor,
                model_name=move.model,
                neuron_name=move.neuron,
                devices=move.devices,
                stages=move.stages,
                predicted_tokens_per_s=move.predicted_tokens_per_s,
            )
            _note(moved, f"Moves from {left[0]}, where {load.model} needs its room")
            _note(job, f"{move.model} makes room and moves to {move.neuron}")
    except FleetError as error:
        logger.warning("nothing moves for %s on %s: %s", load.model, load.neuron, error)


def _note(job: LoadJob, words: str) -> None:
    job.note = f"{job.note}; {words}" if job.note else words
    LoadJob.objects.filter(pk=job.pk).update(note=job.note)
