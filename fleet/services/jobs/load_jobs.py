"""Load jobs: load and unload a model on a neuron, cancel a job, expire abandoned ones.

``steps`` has their rows, ``moves`` their progress, ``reloads`` the reloads, ``model_loads`` the
loads decided by placement.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.errors import (
    JobCannotBeCancelledError,
    ModelPinnedError,
    PlacementRefusedError,
    ReplicaNotFoundError,
    ServedByUpstreamError,
)
from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LEAVING_KINDS,
    LoadJobKind,
    LoadJobStatus,
)
from fleet.models import CatalogueModel, LoadJob, Neuron, Replica
from fleet.placement import Load
from fleet.services.jobs.load_measurements import kept_unloaded_forget, model_keep_unloaded
from fleet.services.jobs.stage_orders import spans_neurons, stage_load_call_off, stage_orders
from fleet.services.jobs.steps import (
    job_abandoned,
    job_create,
    job_end,
    job_send,
    jobs_fail,
    send_load,
    send_unload,
)
from inference.protocol.keys import TASK_DROP_ADAPTER
from inference.protocol.load import StageSpec
from inference.protocol.load_progress import LoadFailure
from metering.audit import Actor, audit_entry_create

logger = logging.getLogger(__name__)

SILENCE_TIMEOUT = timedelta(seconds=15)
"""A job fails when its neuron has reported it, and does not for this long."""
LOST = LoadFailure(code="load_lost", message="The neuron no longer reports this job")


def load_job_start(
    *,
    actor: Actor,
    model_name: str,
    neuron_name: str,
    devices: Sequence[str] = (),
    stages: Sequence[StageSpec] = (),
    predicted_tokens_per_s: float | None = None,
    may_divide: bool = False,
    evict: Sequence[str] = (),
) -> LoadJob:
    """The active job for this model on this neuron: a new one, or one that loads the same.
    ``stages``: its layers' division over the devices; ``predicted_tokens_per_s``: of one request,
    by their plan; stages on other neurons are ordered first. ``may_divide``: placement chose the
    devices, so a model that turns out too large for one may lie on several. ``evict``: models to
    unload there first.

    The message is sent once the transaction commits; the neuron replaces a replica with another
    spec. Raises ``UnknownModelError``, ``ModelDisabledError``, ``UnknownNeuronError``,
    ``PlacementRefusedError``, ``ServedByUpstreamError``.
    """
    model, neuron = selectors.model_enabled(model_name), selectors.neuron_known(neuron_name)
    if (base := model.settings().base) is not None:
        raise PlacementRefusedError(f"{model.name} is an adapter: it is loaded beside {base}")
    if model.entry().upstream_model is not None:
        raise ServedByUpstreamError(model.name)
    kept_unloaded_forget(model_name=model.name)
    job = LoadJob(
        kind=LoadJobKind.LOAD,
        model=model,
        model_name=model.name,
        neuron=neuron,
        devices=list(devices),
        stages=msgspec.to_builtins(list(stages)),
        predicted_tokens_per_s=predicted_tokens_per_s,
        may_divide=may_divide,
        evict=list(evict),
    )
    send = stage_orders(job) if spans_neurons(stages) else send_load
    return job_create(actor=actor, job=job, send=send)


def decided_load_start(*, actor: Actor, load: Load, may_divide: bool = False) -> LoadJob:
    """The job of a load that placement decided. Raises as ``load_job_start``."""
    return load_job_start(
        actor=actor,
        model_name=load.model,
        neuron_name=load.neuron,
        devices=load.devices,
        stages=load.stages,
        predicted_tokens_per_s=load.predicted_tokens_per_s,
        may_divide=may_divide,
        evict=load.evict,
    )


def unload_job_start(
    *,
    actor: Actor,
    model_name: str,
    neuron_name: str,
    is_planned: bool = False,
    at_once: bool = False,
) -> LoadJob:
    """The active unload of this model on this neuron, new or existing. The neuron drains the
    replica, or cancels its load; that load's job ends with it, or at once where it waits for stages
    of other neurons. Works for models that the catalogue no longer has. An adapter is removed from
    its base's engine once no request uses it. ``is_planned``: by the control, which may unload a
    pinned model's surplus replica, or one outside ``pinned_on``. ``at_once``: cancels its requests,
    also those that an active unload waits for.

    Raises ``UnknownNeuronError``, ``ReplicaNotFoundError``, ``ModelPinnedError``.
    """
    model = CatalogueModel.objects.filter(name=model_name).first()
    if not is_planned:
        check_not_kept(model, "loaded", neuron_name)
    neuron = selectors.neuron_known(neuron_name)
    if neuron not in _neurons_with(model_name):
        raise ReplicaNotFoundError(f"{model_name} is not loaded on {neuron_name}")
    job = LoadJob(kind=LoadJobKind.UNLOAD, model=model, model_name=model_name, neuron=neuron)
    if model is not None and (base := model.settings().base) is not None:
        drop = partial(neuron_client.send, TASK_DROP_ADAPTER, neuron_name, base, model_name)
        return job_create(actor=actor, job=job, send=lambda _: drop())
    jobs = selectors.load_jobs_active().filter(model_name=model_name, neuron=neuron)
    for load in jobs.exclude(stage_links=""):
        stage_load_call_off(job=load)  # its neuron has not received it yet
    send = partial(send_unload, at_once=at_once)
    active = job_create(actor=actor, job=job, send=send)
    if at_once and active is not job:
        job_send(job=active, send=send)
    return active


def model_unload_to_stay(*, actor: Actor, model_name: str, neuron_name: str) -> LoadJob:
    """Also unloads a model that is kept loaded, which stays unloaded until it is wanted again.
    Raises ``UnknownNeuronError``, ``ReplicaNotFoundError``."""
    with transaction.atomic():
        job = unload_job_start(
            actor=actor, model_name=model_name, neuron_name=neuron_name, is_planned=True
        )
        model_keep_unloaded(model_name=model_name, neuron_name=neuron_name)
    return job


def model_unload_everywhere(*, actor: Actor, model_name: str) -> list[LoadJob]:
    """Unloads on each neuron that has or is loading the model, also after its removal from the
    catalogue. Raises ``ModelPinnedError``."""
    return [
        unload_job_start(actor=actor, model_name=model_name, neuron_name=neuron.name)
        for neuron in _neurons_with(model_name)
    ]


def check_not_kept(model: CatalogueModel | None, word: str, neuron_name: str = "") -> None:
    """``word``: what would be done with it again at once. Raises ``ModelPinnedError``."""
    if model is None or not model.settings().is_kept_loaded:
        return
    pinned_on = model.settings().pinned_on
    if not neuron_name or not pinned_on or neuron_name in pinned_on:
        fix = "unpin it" if model.settings().pinned else "set its least number of replicas to 0"
        raise ModelPinnedError(f"{model.name} would be {word} again at once: {fix} first")


def _neurons_with(model_name: str) -> list[Neuron]:
    """The neurons that have or are loading it; of an adapter those whose base has it."""
    model = CatalogueModel.objects.filter(name=model_name).first()
    if model is not None and (base := model.settings().base) is not None:
        bases = Replica.objects.filter(model_name=base).select_related("neuron")
        return [replica.neuron for replica in bases if model_name in replica.adapters]
    found = Neuron.objects.filter(
        Q(replicas__model_name=model_name)
        | Q(load_jobs__model_name=model_name, load_jobs__status__in=ACTIVE_LOAD_JOB_STATUSES)
    )
    return list(found.distinct())


def load_job_cancel(*, actor: Actor, job: LoadJob) -> LoadJob:
    """The unload that ends it, there or of its replacement elsewhere. A reload that waits for its
    turn ends at once, and is itself returned. Raises ``JobCannotBeCancelledError``,
    ``ModelPinnedError``."""
    if not job.is_active:
        raise JobCannotBeCancelledError(f"{job} has ended: it {job.status}")
    if job.kind in LEAVING_KINDS:
        word = "An unload" if job.kind == LoadJobKind.UNLOAD else "A sleep"
        raise JobCannotBeCancelledError(f"{word} cannot be called back: load the model again")
    if job.replacement is None:
        return unload_job_start(actor=actor, model_name=job.model_name, neuron_name=job.neuron.name)
    if job.replacement.kind != LoadJobKind.RELOAD:
        return load_job_cancel(actor=actor, job=job.replacement)
    with transaction.atomic():
        if job_end(job=job, status=LoadJobStatus.CANCELLED):
            audit_entry_create(
                actor=actor,
                action="load_job.cancel",
                object_id=job.model_name,
                detail={"neuron": job.neuron.name, "load_job": str(job.pk)},
            )
    return job


def load_jobs_expire(*, now: datetime | None = None) -> int:
    """Fails the active jobs that no neuron works on. Returns their number."""
    now = now or timezone.now()
    return jobs_fail((job, _abandoned(job, now)) for job in selectors.load_jobs_active())


def _abandoned(job: LoadJob, now: datetime) -> LoadFailure | None:
    """A reload waits for its replacement however long that takes."""
    waits = job.replacement is not None and job.status == LoadJobStatus.PENDING
    failure = job_abandoned(job, job.neuron, "job", now=now, silence=SILENCE_TIMEOUT, lost=LOST)
    return failure if failure is None or not waits or failure.code == "neuron_away" else None
