"""Moves load jobs along their lifecycle, by their neurons' reports.

    the neuron reports     load, reload in place    unload, and a reload       sleep
                                                    that is ready elsewhere
    its job's replica:
      loading              progress
      ready                SUCCEEDED                a reload begins to unload
      draining             CANCELLED, by an unload  progress                   progress
      asleep               SUCCEEDED                                           SUCCEEDED
      failed               divided, or FAILED
      woken in vain        FAILED
      sleep was refused                                                        FAILED
    a newer job's replica                           SUCCEEDED                  CANCELLED
    no replica                                      SUCCEEDED                  FAILED

A load also ends with a replica that another job loaded by the same spec. A reload waits for its
replacement: one on another neuron, or that it is its turn.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
from django.db import transaction

from fleet import selectors
from fleet.lifecycles import LEAVING_KINDS, LoadJobKind, LoadJobStatus
from fleet.live.snapshot import FleetSnapshot
from fleet.models import LoadJob
from fleet.placement import Load
from fleet.placement.failures import NEURON_RESTARTED
from fleet.placement.place import place_on
from fleet.services.job_steps import (
    NO_REASON,
    Send,
    job_claim,
    job_end,
    job_send,
    load_job_progress,
    send_load,
    send_reload,
    send_unload,
)
from fleet.services.load_measurements import (
    layer_costs_record,
    load_measurement_record,
    load_need_record,
    weight_bytes_record,
)
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.keys import HEARTBEAT_EXPIRY_S
from inference.protocol.load_report import LoadFailure, PackedCosts

logger = logging.getLogger(__name__)

Snapshot = Callable[[], FleetSnapshot]
UNLOADED = LoadFailure(
    code="unloaded", message="Its engine ended before it was asleep: it is not loaded"
)
OLD_HEARTBEAT = timedelta(seconds=HEARTBEAT_EXPIRY_S + 1)
"""A heartbeat read this long after a job was requested was written after it."""


def load_job_advance(
    *, job: LoadJob, state: ReplicaState | None, now: datetime, snapshot: Snapshot
) -> None:
    """``state``: of the job's model; ``None``: no replica. ``snapshot``: of the neuron alone."""
    if job.kind in LEAVING_KINDS:
        _leaving_advance(job, state, now)
    elif job.replacement is not None:
        _replacing_advance(job, job.replacement, state, now)
    elif state is not None:
        _load_advance(job, state, now, snapshot)


def load_job_lose(*, job: LoadJob) -> None:
    """Fails a load of the neuron's previous process that this one does not report."""
    is_load = job.kind not in LEAVING_KINDS and job.replacement is None
    if is_load and job.status == LoadJobStatus.RUNNING:
        message = f"{job.neuron.name} was started anew during the load"
        failure = LoadFailure(code=NEURON_RESTARTED, message=message)
        job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)


def adapter_unload_advance(*, job: LoadJob, base: ReplicaState | None, now: datetime) -> None:
    """``base``: the replica of its base; ``None``: it is gone."""
    stats = None if base is None else base.stats
    if stats is None or job.model_name not in stats.adapters:
        job_end(job=job, status=LoadJobStatus.SUCCEEDED)
    else:
        detail = "waiting for the requests that use it"
        load_job_progress(job=job, progress=None, now=now, detail=detail)


def _load_advance(job: LoadJob, state: ReplicaState, now: datetime, snapshot: Snapshot) -> None:
    is_own, status = state.job_id == str(job.pk), state.status
    if not is_own:
        if status is ReplicaStatus.READY and _is_by_same_spec(job, state):
            _load_succeeded(job, state)
    elif status is ReplicaStatus.READY or _was_ready(job, state):
        _load_succeeded(job, state)
    elif status in (ReplicaStatus.FAILED, ReplicaStatus.ASLEEP):
        failure = state.failure or NO_REASON
        is_failed = status is ReplicaStatus.FAILED
        if is_failed and failure.costs and _load_divide(job, failure.costs, snapshot, now):
            return
        is_ended = job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)
        if is_ended and is_failed:
            _record_need(job, state, failure)
    elif status is ReplicaStatus.DRAINING:
        job_end(job=job, status=LoadJobStatus.CANCELLED)
    else:
        load_job_progress(job=job, progress=state.progress, now=now)


def _load_divide(job: LoadJob, costs: PackedCosts, snapshot: Snapshot, now: datetime) -> bool:
    """Divides a load that turned out too large over devices of its neuron with free memory."""
    if job.stages:
        return True  # its neuron has not received the division yet
    model, neuron = job.model, job.neuron.name
    if not job.may_divide or model is None or job.spec_digest != model.entry().spec_digest():
        return False
    layer_costs_record(model=model, costs=costs)
    model.refresh_from_db(fields=["layer_costs"])
    seen = snapshot()
    view = seen.neuron(neuron)
    decision = None if view is None else place_on(model.entry(), view, seen)
    if not isinstance(decision, Load) or not decision.stages:
        return False
    job.devices = list(decision.devices)
    job.stages = msgspec.to_builtins(list(decision.stages))
    job.predicted_tokens_per_s = decision.predicted_tokens_per_s
    job.note, job.reported_at = "Too large for one device: divided over several", now
    names = ("devices", "stages", "predicted_tokens_per_s", "note", "reported_at")
    same = LoadJob.objects.filter(pk=job.pk, status=job.status)
    if not same.update(**{name: getattr(job, name) for name in names}):
        return False
    logger.info("%s on %s is divided: it is too large for one device", job.model_name, neuron)
    job_send(job=job, send=send_load)
    return True


def _record_need(job: LoadJob, state: ReplicaState, failure: LoadFailure) -> None:
    if job.model is None or job.stages:
        return  # one stage's need is not that of the whole model
    if failure.costs is not None and job.spec_digest == job.model.entry().spec_digest():
        layer_costs_record(model=job.model, costs=failure.costs)
    if failure.needed_bytes is None or not state.devices:
        return
    load_need_record(
        model=job.model,
        neuron=job.neuron,
        device=state.devices[0],
        needed_bytes=failure.needed_bytes * len(state.devices),
    )


def _is_by_same_spec(job: LoadJob, state: ReplicaState) -> bool:
    """No replica that is being unloaded counts, and none counts for a reload."""
    return (
        job.kind == LoadJobKind.LOAD
        and job.spec_digest != ""
        and job.spec_digest == state.spec_digest
        and not selectors.unload_job_is_active(job.model_name, job.neuron)
    )


def _was_ready(job: LoadJob, state: ReplicaState) -> bool:
    """It became READY and fell asleep between two heartbeats. A job that waited for READY would
    stay active, and would be the answer to every request to wake it."""
    if state.status is ReplicaStatus.DRAINING:  # only a READY one can sleep
        return state.report is not None and not selectors.unload_job_is_active(
            job.model_name, job.neuron
        )
    return state.status is ReplicaStatus.ASLEEP and state.failure is None


def _load_succeeded(job: LoadJob, state: ReplicaState) -> None:
    if not job_end(job=job, status=LoadJobStatus.SUCCEEDED):
        return
    if state.report is None or job.model is None:
        return
    weight_bytes_record(model=job.model, weight_bytes=state.report.weight_bytes)
    if state.job_id == str(job.pk):
        load_measurement_record(
            model=job.model,
            neuron=job.neuron,
            report=state.report,
            capabilities=state.capabilities,
        )


def _leaving_advance(job: LoadJob, state: ReplicaState | None, now: datetime) -> None:
    """An unload or a sleep, or the unload of a reload whose replacement is ready."""
    is_sleep = job.kind == LoadJobKind.SLEEP
    if state is None and is_sleep:
        job_end(job=job, status=LoadJobStatus.FAILED, failure=UNLOADED)
    elif state is None or _is_newer(state.job_id, job):
        if is_sleep:
            job_end(job=job, status=LoadJobStatus.CANCELLED)
        else:
            _left(job, now)
    elif job.kind == LoadJobKind.RELOAD and job.status == LoadJobStatus.PENDING:
        _begin(job, now, send_unload)
    elif state.status is ReplicaStatus.DRAINING:
        then = "giving its memory back" if is_sleep else "ending its engine"
        num_requests = state.stats.in_flight + state.stats.queue_depth if state.stats else 0
        detail = f"waiting for {num_requests} requests" if num_requests else then
        load_job_progress(job=job, progress=None, now=now, detail=detail)
    elif is_sleep and state.status is ReplicaStatus.ASLEEP:
        job_end(job=job, status=LoadJobStatus.SUCCEEDED)
    elif is_sleep and (refused := state.sleep_refusal) and refused.job_id == str(job.pk):
        job_end(job=job, status=LoadJobStatus.FAILED, failure=refused.failure)


def _left(job: LoadJob, now: datetime) -> None:
    """Ends the job, and with it the loads that it overtook. A heartbeat lacks a load that the
    neuron has not received yet, or that is newer than the heartbeat."""
    loads = selectors.load_jobs_active().exclude(kind__in=LEAVING_KINDS).exclude(pk=job.pk)
    overtaken = loads.filter(
        model_name=job.model_name,
        neuron=job.neuron,
        created_at__lte=job.created_at,
        replacement=None,
    )
    if now - job.created_at < OLD_HEARTBEAT and overtaken.exists():
        return
    with transaction.atomic():
        if job_end(job=job, status=LoadJobStatus.SUCCEEDED):
            for load in overtaken:
                job_end(job=load, status=LoadJobStatus.CANCELLED)


def _replacing_advance(
    job: LoadJob, replacement: LoadJob, state: ReplicaState | None, now: datetime
) -> None:
    if replacement.is_active:
        return
    if replacement.status == LoadJobStatus.CANCELLED:
        job_end(job=job, status=LoadJobStatus.CANCELLED)
    elif replacement.status == LoadJobStatus.FAILED:
        failure = LoadFailure(
            code=replacement.failure_code,
            message=f"On {replacement.neuron.name}, where it was to be done first: "
            f"{replacement.failure_message}. What is loaded on {job.neuron.name} serves on",
        )
        job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)
    elif replacement.kind == LoadJobKind.RELOAD:
        # It is a reload in place from now on.
        _begin(job, now, send_reload, replacement=None)
    else:
        _leaving_advance(job, state, now)


def _begin(job: LoadJob, now: datetime, send: Send, **values: None) -> None:
    """The caller that claims the move to RUNNING sends the message, once."""
    claimed = {"started_at": now, "reported_at": now, **values}
    if job_claim(job=job, status=LoadJobStatus.RUNNING, values=claimed):
        job_send(job=job, send=send)


def _is_newer(job_id: str, job: LoadJob) -> bool:
    try:
        pk = uuid.UUID(job_id)
    except ValueError:
        return False
    return LoadJob.objects.filter(pk=pk, created_at__gt=job.created_at).exists()
