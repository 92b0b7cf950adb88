"""Load jobs and downloads step by step: a row and its message are made together.

    job_create ─▶ PENDING ─▶ RUNNING ─▶ SUCCEEDED, FAILED, CANCELLED
       └─▶ message, once the transaction commits

One conditional UPDATE on the old status claims a step; a caller that changes no row does nothing.
A request for an active job returns that job; a load with another spec replaces it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.errors import BrokerUnavailableError
from fleet.lifecycles import (
    LEAVING_KINDS,
    LoadJobKind,
    LoadJobStatus,
    NeuronStatus,
    ensure_transition,
)
from fleet.live.reports import load_orders
from fleet.live.snapshot import BEFORE_ENGINE
from fleet.models import Download, LoadJob, Neuron, Replica
from fleet.models.job import Job
from fleet.placement.decisions import stage_evictions
from inference.protocol import keys
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_report import LOADED, LoadFailure, LoadProgress
from metering.audit import Actor, audit_entry_create

logger = logging.getLogger(__name__)

AnyJob = TypeVar("AnyJob", bound=Job)
Send = Callable[[LoadJob], None]
"""Sends a job's message. Raises ``BrokerUnavailableError``, like those below."""

REPORTED_AT_EVERY = timedelta(seconds=5)
PICKUP_TIMEOUT = timedelta(seconds=neuron_client.EXPIRES_S + 10)
AWAY_TIMEOUT = timedelta(seconds=15)
POLL_EVERY_S = 0.5
NO_REASON = LoadFailure(code="unknown", message="No reason was given")
NOT_SENT = LoadFailure(
    code=BrokerUnavailableError.code,
    message="Redis did not take the task: nothing was sent to the neuron",
)


def job_abandoned(
    job: Job, neuron: Neuron, what: str, *, now: datetime, silence: timedelta, lost: LoadFailure
) -> LoadFailure | None:
    """``None``: a neuron works on the job. A reported job is ``lost`` after ``silence``."""
    if neuron.status == NeuronStatus.AWAY and neuron.status_since < now - AWAY_TIMEOUT:
        was_away = neuron.status_since < job.created_at
        when = f"was away when the {what} began" if was_away else f"went away during the {what}"
        return LoadFailure(code="neuron_away", message=f"{neuron.name} {when}")
    if job.reported_at is not None:
        return lost if job.reported_at < now - silence else None
    if job.created_at < now - PICKUP_TIMEOUT:
        return LoadFailure(code="not_picked_up", message=f"The neuron did not take up the {what}")
    return None


def jobs_fail(failures: Iterable[tuple[Job, LoadFailure | None]]) -> int:
    return sum(
        job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)
        for job, failure in failures
        if failure is not None
    )


def job_claim(*, job: Job, status: LoadJobStatus, values: Mapping[str, Any]) -> bool:
    """Raises ``IllegalTransitionError``."""
    ensure_transition(LoadJobStatus(job.status), status)
    same = type(job)._default_manager.filter(pk=job.pk, status=job.status)
    claimed = same.update(status=status, **values)
    if claimed:
        for name, value in {"status": status, **values}.items():
            setattr(job, name, value)
    return claimed == 1


def job_report(
    *, job: Job, values: Mapping[str, Any], now: datetime, is_running: bool = True
) -> None:
    if is_running and job.status == LoadJobStatus.PENDING:
        values = {**values, "started_at": now, "reported_at": now}
        job_claim(job=job, status=LoadJobStatus.RUNNING, values=values)
    elif values or job.reported_at is None or now - job.reported_at >= REPORTED_AT_EVERY:
        same = type(job)._default_manager.filter(pk=job.pk, status=job.status)
        same.update(reported_at=now, **values)


def send_load(job: LoadJob) -> None:
    neuron_client.send(keys.TASK_LOAD_MODEL, job.neuron.name, spec_of(job))


def send_unload(job: LoadJob, *, at_once: bool = False) -> None:
    arguments = (job.model_name, True) if at_once else (job.model_name,)
    neuron_client.send(keys.TASK_UNLOAD_MODEL, job.neuron.name, *arguments)


def send_reload(job: LoadJob) -> None:
    """A neuron replaces only a replica with another spec: one with the same is unloaded first."""
    replica = Replica.objects.filter(model_name=job.model_name, neuron=job.neuron).first()
    if replica is None or replica.spec_digest in ("", job.spec_digest):
        send_unload(job)
    send_load(job)


def spec_of(job: LoadJob) -> LoadSpec:
    assert job.model is not None, "a load is of a model in the catalogue"
    entry = job.model.entry()
    spec = entry.load_spec(job_id=str(job.pk), neuron=job.neuron.name)
    return msgspec.structs.replace(
        spec,
        devices=list(job.devices) or ([] if entry.device == "auto" else [entry.device]),
        stages=job.stage_specs,
        predicted_tokens_per_s=job.predicted_tokens_per_s,
        evict=list(job.evict),
        order=load_orders().order(neuron=job.neuron.name, model=job.model_name),
    )


def job_create(*, actor: Actor, job: LoadJob, send: Send | None) -> LoadJob:
    """The active job that does the same, or ``job``, saved. Raises ``UnknownNeuronError`` or
    ``UnknownModelError`` where one was removed meanwhile."""
    if job.kind not in LEAVING_KINDS:
        job.spec_digest = spec_digest(spec_of(job))
        if job.model is not None:
            job.expected_load_s = job.model.entry().last_load_s(job.neuron.name)
    job.requested_by = actor[:150]
    while True:
        active = _active_beside(job)
        if active is not None and _does_the_same(active, job):
            return active
        try:
            with transaction.atomic():
                if active is not None:
                    job_end(job=active, status=LoadJobStatus.CANCELLED)
                job.save(force_insert=True)
                audit_entry_create(
                    actor=actor,
                    action=f"model.{job.kind}",
                    object_id=job.model_name,
                    detail=_detail(job),
                )
                if send is not None:
                    job_send(job=job, send=send)
            here = [(job.neuron.name, model) for model in job.evict]
            for neuron, model in [*here, *stage_evictions(job.stage_specs)]:
                logger.warning("loading %s evicts %s from %s", job.model_name, model, neuron)
            return job
        except IntegrityError:
            logger.info("another %s job for %s came first, or what it names is gone", job.kind, job)
            job.neuron = selectors.neuron_known(job.neuron.name)
            if job.model is not None:
                job.model = selectors.model_known(job.model.name)


def _active_beside(job: LoadJob) -> LoadJob | None:
    active = selectors.load_jobs_active().filter(model_name=job.model_name, neuron=job.neuron)
    leaving = Q(kind__in=LEAVING_KINDS)
    return active.filter(leaving if job.kind in LEAVING_KINDS else ~leaving).first()


def _does_the_same(active: LoadJob, job: LoadJob) -> bool:
    """A load that was cancelled since does not count, nor a sleep for an unload, or the reverse."""
    if job.kind in LEAVING_KINDS:
        return active.kind in (job.kind, LoadJobKind.UNLOAD)
    return active.spec_digest == job.spec_digest and not selectors.unload_job_is_active(
        job.model_name, job.neuron
    )


def _detail(job: LoadJob) -> dict[str, Any]:
    elsewhere = stage_evictions(job.stage_specs)
    detail = {
        "neuron": job.neuron.name,
        "load_job": str(job.pk),
        "devices": job.devices,
        "evict": job.evict,
        "evict_elsewhere": [f"{model} on {neuron}" for neuron, model in elsewhere],
    }
    return {name: value for name, value in detail.items() if value}


def job_end(
    *,
    job: Job,
    status: LoadJobStatus,
    failure: LoadFailure | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """``False``: it had moved on meanwhile. Raises ``IllegalTransitionError``."""
    now = timezone.now()
    changes: dict[str, Any] = {**(values or {}), "finished_at": now}
    if isinstance(job, LoadJob):
        changes["stage_links"] = ""
        if status == LoadJobStatus.SUCCEEDED and job.kind not in LEAVING_KINDS:
            changes |= _progress_values(job, LOADED, now)
    elif isinstance(job, Download) and job.cancel_wanted_at and status == LoadJobStatus.FAILED:
        status, failure = LoadJobStatus.CANCELLED, None
    if failure is not None:
        changes |= {"failure_code": failure.code, "failure_message": failure.message}
    ended = job_claim(job=job, status=status, values=changes)
    if ended:
        logger.info("job %s (%s): %s %s", job.pk, job, status, job.failure_message)
    return ended


def job_send(*, job: AnyJob, send: Callable[[AnyJob], None]) -> None:
    """Sends once the transaction commits: a control that is deposed, or whose database fails, has
    sent nothing. A job whose message the broker does not accept has failed."""
    transaction.on_commit(partial(_send_or_fail, job, send), robust=True)


def _send_or_fail(job: AnyJob, send: Callable[[AnyJob], None]) -> None:
    try:
        send(job)
    except BrokerUnavailableError as error:
        logger.warning("job %s (%s) could not be sent: %s", job.pk, job, error)
        job_end(job=job, status=LoadJobStatus.FAILED, failure=NOT_SENT)


def load_job_progress(
    *, job: LoadJob, progress: LoadProgress | None, now: datetime, detail: str = ""
) -> None:
    """``detail``: in words, where its neuron reports none."""
    values = {} if progress is None else _progress_values(job, progress, now)
    if detail and detail != job.progress_detail:
        values["progress_detail"] = detail
    job_report(job=job, values=values, now=now)


def _progress_values(job: LoadJob, progress: LoadProgress, now: datetime) -> dict[str, Any]:
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
        if progress.stage in BEFORE_ENGINE:
            changed["engine_started_at"] = None
        elif job.engine_started_at is None:
            changed["engine_started_at"] = now
    return changed


def wait_for_job(
    job: LoadJob,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Refreshes ``job``. ``False``: it has not ended by then."""
    deadline_s = clock() + timeout_s
    while job.is_active:
        if clock() >= deadline_s:
            return False
        sleep(POLL_EVERY_S)
        job.refresh_from_db()
    return True
