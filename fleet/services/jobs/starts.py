"""A load job's first step: its row and its audit entry in one transaction, then the message.

The database holds one active load or reload for a model and neuron, and one active unload or sleep.
A request for an active job returns that job; a load with another spec replaces it.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import IntegrityError, transaction

from fleet import selectors
from fleet.lifecycles import LEAVING_KINDS, LoadJobKind, LoadJobStatus
from fleet.models import LoadJob
from fleet.placement.decisions import stage_evictions
from fleet.services.jobs.messages import spec_of
from fleet.services.jobs.moves import Send, load_job_end, load_job_send
from inference.protocol.load import spec_digest
from metering.actor import Actor
from metering.services.audit import audit_entry_create

logger = logging.getLogger(__name__)


def job_create(*, actor: Actor, job: LoadJob, send: Send | None) -> LoadJob:
    """The job that is under way and does the same, or ``job``, saved; ``send`` runs once the
    transaction commits. Raises ``UnknownNeuronError`` or ``UnknownModelError`` where one was
    removed meanwhile."""
    if job.kind not in LEAVING_KINDS:
        job.spec_digest = spec_digest(spec_of(job))
        if job.model is not None:
            job.expected_load_s = job.model.entry().last_load_s(job.neuron.name)
    job.requested_by = str(actor)[:150]
    while True:
        active = _active_beside(job)
        if active is not None and _does_the_same(active, job):
            return active
        try:
            with transaction.atomic():
                if active is not None:
                    load_job_end(job=active, status=LoadJobStatus.CANCELLED)
                job.save(force_insert=True)
                audit_entry_create(
                    actor=actor,
                    action=f"model.{job.kind}",
                    object_id=job.model_name,
                    detail=_detail(job),
                )
                if send is not None:
                    load_job_send(job=job, send=send)
            for neuron, model in (
                *((job.neuron.name, model) for model in job.evict),
                *stage_evictions(job.stage_specs),
            ):
                logger.warning("loading %s evicts %s from %s", job.model_name, model, neuron)
            return job
        except IntegrityError:
            logger.info("another %s job for %s came first, or what it names is gone", job.kind, job)
            job.neuron = selectors.neuron_known(job.neuron.name)
            if job.model is not None:
                job.model = selectors.model_known(job.model.name)


def _active_beside(job: LoadJob) -> LoadJob | None:
    """The one that the database allows no second beside."""
    active = selectors.load_jobs_active().filter(model_name=job.model_name, neuron=job.neuron)
    if job.kind in LEAVING_KINDS:
        return active.filter(kind__in=LEAVING_KINDS).first()
    return active.exclude(kind__in=LEAVING_KINDS).first()


def _does_the_same(active: LoadJob, job: LoadJob) -> bool:
    """Whether the active job does what the new one would. Not a load that was cancelled since or
    has another spec; not a sleep if the model shall be unloaded; not an unload if it shall
    sleep."""
    if job.kind in LEAVING_KINDS:
        return active.kind in (job.kind, LoadJobKind.UNLOAD)
    return active.spec_digest == job.spec_digest and not selectors.unload_job_is_active(
        job.model_name, job.neuron
    )


def _detail(job: LoadJob) -> dict[str, Any]:
    detail: dict[str, Any] = {"neuron": job.neuron.name, "load_job": str(job.pk)}
    if job.devices:
        detail["devices"] = job.devices
    if job.evict:
        detail["evict"] = job.evict
    if elsewhere := stage_evictions(job.stage_specs):
        detail["evict_elsewhere"] = [f"{model} on {neuron}" for neuron, model in elsewhere]
    return detail
