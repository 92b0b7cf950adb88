"""Writes to load jobs: start, advance, end, expire; and keeping pinned models loaded.

Every move is claimed by one conditional UPDATE on the status it starts from. Whoever changes no
row has lost the claim and does nothing.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.catalogue import CatalogueEntry
from fleet.errors import (
    BrokerUnavailableError,
    FleetError,
    ModelDisabledError,
    ModelPinnedError,
    ReplicaNotFoundError,
    UnknownModelError,
    UnknownNeuronError,
)
from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES, LoadJobStatus, NeuronStatus
from fleet.models import CatalogueModel, LoadJob, Neuron, Replica
from fleet.placement import Load, place
from fleet.services.load_measurements import load_measurement_record
from fleet.snapshot import FleetSnapshot
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.load import LoadFailure, LoadProgress, LoadReport
from metering.actor import CONTROL, Actor
from metering.services.audit import audit_entry_create

logger = logging.getLogger(__name__)

PICKUP_TIMEOUT = timedelta(seconds=neuron_client.LOAD_EXPIRES_S + 10)
SILENCE_TIMEOUT = timedelta(seconds=15)
"""How long a running job's neuron may be away, or not speak of the job, before it has failed."""
REPORTED_AT_EVERY = timedelta(seconds=5)

PINNED_BACKOFF_FIRST = timedelta(seconds=10)
PINNED_BACKOFF_MAX = timedelta(minutes=10)


def load_job_start(*, actor: Actor, model_name: str, neuron_name: str) -> LoadJob:
    """The active job for this model on this neuron: a new one, or the one that is there.

    The neuron is told once the transaction commits. Raises ``UnknownModelError``,
    ``ModelDisabledError``, ``UnknownNeuronError``.
    """
    model = _enabled_model(model_name)
    neuron = Neuron.objects.filter(name=neuron_name).first()
    if neuron is None:
        raise UnknownNeuronError(f"No neuron named {neuron_name!r} has reported yet")
    while True:
        if active := selectors.load_jobs_active().filter(model=model, neuron=neuron).first():
            return active
        try:
            return _load_job_create(actor, model, neuron)
        except IntegrityError:
            logger.info("another load job for %s on %s came first", model_name, neuron_name)


def replica_unload(*, actor: Actor, model_name: str, neuron_name: str) -> None:
    """Tells the neuron to drain and unload once the transaction commits, and cancels a load that
    is under way. Raises ``ReplicaNotFoundError``, ``ModelPinnedError``."""
    model = CatalogueModel.objects.filter(name=model_name).first()
    if model is not None and model.settings().is_kept_loaded:
        raise ModelPinnedError(f"{model_name} is pinned and would be loaded again: unpin it first")
    jobs = selectors.load_jobs_active().filter(model__name=model_name, neuron__name=neuron_name)
    replicas = Replica.objects.filter(model_name=model_name, neuron__name=neuron_name)
    with transaction.atomic():
        cancelled = [load_job_end(job=job, status=LoadJobStatus.CANCELLED) for job in jobs]
        if not any(cancelled) and not replicas.exists():
            raise ReplicaNotFoundError(f"{model_name} is not loaded on {neuron_name}")
        audit_entry_create(
            actor=actor,
            action="model.unload",
            object_id=model_name,
            detail={"neuron": neuron_name, "cancelled_loads": sum(cancelled)},
        )
        transaction.on_commit(
            partial(neuron_client.send_unload, neuron_name=neuron_name, model_name=model_name)
        )


def load_job_advance(*, job: LoadJob, state: ReplicaState, now: datetime) -> None:
    """Moves an active job to where its neuron's replica of the model says it is.

    A READY replica ends it whichever job loaded it; other words count only for their own job.
    """
    if state.status is ReplicaStatus.READY:
        if load_job_end(job=job, status=LoadJobStatus.SUCCEEDED) and state.report:
            _weights_measured(job.model, state.report)
            # Another job's replica may have been loaded from files that are no longer meant.
            if state.job_id == str(job.pk):
                load_measurement_record(model=job.model, neuron=job.neuron, report=state.report)
    elif state.job_id != str(job.pk):
        return
    elif state.status is ReplicaStatus.FAILED:
        failure = state.failure or LoadFailure(code="unknown", message="No reason was given")
        load_job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)
    elif state.status is ReplicaStatus.DRAINING:
        load_job_end(job=job, status=LoadJobStatus.CANCELLED)
    else:
        _load_job_progress(job, state.progress, now)


def load_job_end(
    *, job: LoadJob, status: LoadJobStatus, failure: LoadFailure | None = None
) -> bool:
    """Whether this call ended it; False when it had moved on meanwhile. Raises
    ``IllegalTransitionError``."""
    values: dict[str, Any] = {"finished_at": timezone.now()}
    if failure is not None:
        values |= {"failure_code": failure.code, "failure_message": failure.message}
    ended = _claim(job, status, values)
    if ended:
        logger.info("load job %s (%s): %s %s", job.pk, job, status, job.failure_message)
    return ended


def load_jobs_expire(*, now: datetime | None = None) -> int:
    """Fails the active jobs that nobody is working on; returns how many."""
    now = now or timezone.now()
    return (
        _expire(
            Q(neuron__status=NeuronStatus.AWAY, neuron__status_since__lt=now - SILENCE_TIMEOUT),
            LoadFailure(code="neuron_away", message="The neuron went away during the load"),
        )
        + _expire(
            Q(status=LoadJobStatus.RUNNING, reported_at__lt=now - SILENCE_TIMEOUT),
            LoadFailure(code="load_lost", message="The neuron no longer reports this load"),
        )
        + _expire(
            Q(status=LoadJobStatus.PENDING, created_at__lt=now - PICKUP_TIMEOUT),
            LoadFailure(code="not_picked_up", message="The neuron did not take up the load"),
        )
    )


def pinned_models_reconcile(*, snapshot: FleetSnapshot) -> list[LoadJob]:
    """Starts a load for each pinned model that is nowhere and could be somewhere; returns the
    jobs. After failures it waits: 10 s, doubling to 10 min."""
    started = []
    for entry in selectors.catalogue_pinned():
        decision = place(entry, snapshot)
        if not isinstance(decision, Load) or not _pinned_load_is_due(entry):
            continue
        try:
            started.append(
                load_job_start(
                    actor=CONTROL, model_name=decision.model, neuron_name=decision.neuron
                )
            )
        except FleetError as error:  # a neuron seen before it was recorded: the next tick has it
            logger.info("pinned model %s cannot be loaded yet: %s", entry.name, error)
    return started


def _enabled_model(name: str) -> CatalogueModel:
    model = CatalogueModel.objects.filter(name=name).first()
    if model is None:
        raise UnknownModelError(f"There is no model named {name!r} in the catalogue")
    if not model.settings().enabled:
        raise ModelDisabledError(f"{name} is in the catalogue but not enabled")
    return model


def _load_job_create(actor: Actor, model: CatalogueModel, neuron: Neuron) -> LoadJob:
    """Raises ``IntegrityError`` when another active job is there."""
    with transaction.atomic():
        job = LoadJob.objects.create(model=model, neuron=neuron, requested_by=str(actor)[:150])
        audit_entry_create(
            actor=actor,
            action="model.load",
            object_id=model.name,
            detail={"neuron": neuron.name, "load_job": str(job.pk)},
        )
        transaction.on_commit(partial(_load_job_send, job))
    return job


def _load_job_send(job: LoadJob) -> None:
    spec = job.model.entry().load_spec(job_id=str(job.pk), neuron=job.neuron.name)
    try:
        neuron_client.send_load(neuron_name=job.neuron.name, spec=spec)
    except BrokerUnavailableError as error:
        logger.warning("load job %s could not be sent: %s", job.pk, error)
        failure = LoadFailure(code="broker_away", message="Redis did not take the load task")
        load_job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)


def _claim(job: LoadJob, status: LoadJobStatus, values: dict[str, Any]) -> bool:
    job.ensure_may_become(status)
    claimed = LoadJob.objects.filter(pk=job.pk, status=job.status).update(status=status, **values)
    if claimed:
        for name, value in {"status": status, **values}.items():
            setattr(job, name, value)
    return claimed == 1


def _load_job_progress(job: LoadJob, progress: LoadProgress | None, now: datetime) -> None:
    values = _progress_values(job, progress, now)
    if job.status == LoadJobStatus.PENDING:
        _claim(job, LoadJobStatus.RUNNING, {"started_at": now, "reported_at": now, **values})
    elif values or job.reported_at is None or now - job.reported_at >= REPORTED_AT_EVERY:
        LoadJob.objects.filter(pk=job.pk, status=job.status).update(reported_at=now, **values)


def _progress_values(job: LoadJob, progress: LoadProgress | None, now: datetime) -> dict[str, Any]:
    """The columns that changed; empty when none did."""
    if progress is None:
        return {}
    values: dict[str, Any] = {
        "stage": progress.stage.value,
        "progress_done": progress.done,
        "progress_total": progress.total,
        "progress_unit": progress.unit,
        "progress_detail": progress.detail,
    }
    changed = {name: value for name, value in values.items() if getattr(job, name) != value}
    if "stage" in changed:
        changed["stage_started_at"] = now
    return changed


def _weights_measured(model: CatalogueModel, report: LoadReport) -> None:
    changed = (
        CatalogueModel.objects.filter(pk=model.pk)
        .exclude(weight_bytes=report.weight_bytes)
        .update(weight_bytes=report.weight_bytes)
    )
    if changed:
        selectors.catalogue_cache_clear()


def _expire(condition: Q, failure: LoadFailure) -> int:
    jobs = selectors.load_jobs_active().filter(condition)
    return sum(load_job_end(job=job, status=LoadJobStatus.FAILED, failure=failure) for job in jobs)


def _pinned_load_is_due(entry: CatalogueEntry) -> bool:
    """False while a job is active anywhere, and for a while after each failure in a row."""
    newest = LoadJob.objects.filter(model__name=entry.name).order_by("-created_at")[:8]
    num_failures = 0
    for job in newest:
        if job.status in ACTIVE_LOAD_JOB_STATUSES:
            return False
        if job.status != LoadJobStatus.FAILED:
            break
        num_failures += 1
    if num_failures == 0 or newest[0].finished_at is None:
        return True
    wait = min(PINNED_BACKOFF_FIRST * 2 ** (num_failures - 1), PINNED_BACKOFF_MAX)
    return bool(timezone.now() - newest[0].finished_at >= wait)
