"""Moves load jobs along their lifecycle, by their neurons' reports.

load, reload in place   the neuron's replica reports progress; READY ends it, and so does what only
                        one that was READY becomes before the next heartbeat: asleep, or nearly so
load, too large         its model does not fit one device: it is sent again, divided over several
unload                  ends when the neuron no longer has that replica
sleep                   ends when it is asleep
reload elsewhere first  waits for its replacement, then unloads here
reload after another    waits for that one, then is a reload in place
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
from fleet.services.jobs.load_measurements import (
    layer_costs_record,
    load_measurement_record,
    load_need_record,
    weight_bytes_record,
)
from fleet.services.jobs.steps import (
    Send,
    job_claim,
    job_end,
    job_send,
    load_job_progress,
    send_load,
    send_reload,
    send_unload,
)
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.keys import HEARTBEAT_EXPIRY_S
from inference.protocol.load_progress import (
    LoadFailure,
    PackedCosts,
)

logger = logging.getLogger(__name__)

OLD_HEARTBEAT = timedelta(seconds=HEARTBEAT_EXPIRY_S + 1)
"""A heartbeat read this long after a job was requested was written after it."""


def load_job_advance(
    *,
    job: LoadJob,
    state: ReplicaState | None,
    now: datetime,
    snapshot: Callable[[], FleetSnapshot],
) -> None:
    """Moves an active job to the status that its neuron reports. ``state``: the replica of the
    job's model there; ``None``: there is none. ``snapshot``: of the neuron, as it reports it."""
    if job.kind == LoadJobKind.UNLOAD:
        _unload_advance(job, state, now)
    elif job.kind == LoadJobKind.SLEEP:
        _sleep_advance(job, state, now)
    elif job.replacement is not None:
        _replacing_advance(job, job.replacement, state, now)
    elif state is not None:
        _load_advance(job, state, now, snapshot)


def load_job_lose(*, job: LoadJob) -> None:
    """Fails a load on which the neuron's previous process worked, and that this one does not
    report."""
    is_load = job.kind not in LEAVING_KINDS and job.replacement is None
    if is_load and job.status == LoadJobStatus.RUNNING:
        message = f"{job.neuron.name} was started anew during the load"
        failure = LoadFailure(code=NEURON_RESTARTED, message=message)
        job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)


def adapter_unload_advance(*, job: LoadJob, base: ReplicaState | None, now: datetime) -> None:
    """``base``: of the model with the job's adapter; ``None``: it is gone."""
    stats = None if base is None else base.stats
    if stats is None or job.model_name not in stats.adapters:
        job_end(job=job, status=LoadJobStatus.SUCCEEDED)
    else:
        load_job_progress(
            job=job, progress=None, now=now, detail="waiting for the requests that use it"
        )


def _load_advance(
    job: LoadJob, state: ReplicaState, now: datetime, snapshot: Callable[[], FleetSnapshot]
) -> None:
    is_own = state.job_id == str(job.pk)
    if state.status is ReplicaStatus.READY:
        if is_own or _is_by_same_spec(job, state):
            _load_succeeded(job, state, is_own=is_own)
    elif not is_own:
        return
    elif state.status is ReplicaStatus.ASLEEP and state.failure is not None:
        job_end(job=job, status=LoadJobStatus.FAILED, failure=state.failure)
    elif _was_ready(job, state):
        _load_succeeded(job, state, is_own=True)
    elif state.status is ReplicaStatus.FAILED:
        failure = state.failure or LoadFailure(code="unknown", message="No reason was given")
        if failure.costs is not None and _load_divide(job, failure.costs, snapshot, now):
            return
        if job_end(job=job, status=LoadJobStatus.FAILED, failure=failure):
            _record_need(job, state, failure)
    elif state.status is ReplicaStatus.DRAINING:
        job_end(job=job, status=LoadJobStatus.CANCELLED)
    else:
        load_job_progress(job=job, progress=state.progress, now=now)


def _load_divide(
    job: LoadJob, costs: PackedCosts, snapshot: Callable[[], FleetSnapshot], now: datetime
) -> bool:
    """Whether the load continues, divided over devices of its neuron with free memory: its model
    turned out too large for the chosen one."""
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
    values = {
        "devices": list(decision.devices),
        "stages": msgspec.to_builtins(list(decision.stages)),
        "predicted_tokens_per_s": decision.predicted_tokens_per_s,
        "note": "Too large for one device: divided over several",
    }
    if not LoadJob.objects.filter(pk=job.pk, status=job.status).update(reported_at=now, **values):
        return False
    for name, value in values.items():
        setattr(job, name, value)
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
    """Another job loaded it, by this job's spec. Not while it is being unloaded, and never for a
    reload."""
    return (
        job.kind == LoadJobKind.LOAD
        and job.spec_digest != ""
        and job.spec_digest == state.spec_digest
        and not selectors.unload_job_is_active(job.model_name, job.neuron)
    )


def _was_ready(job: LoadJob, state: ReplicaState) -> bool:
    """Whether the job's own replica became READY and fell asleep between two heartbeats. A job that
    waited for READY would stay active, and would be the answer to every request to wake it."""
    if state.status is ReplicaStatus.DRAINING:  # only a READY one can sleep
        return state.report is not None and not selectors.unload_job_is_active(
            job.model_name, job.neuron
        )
    return state.status is ReplicaStatus.ASLEEP and state.failure is None


def _load_succeeded(job: LoadJob, state: ReplicaState, *, is_own: bool) -> None:
    if not job_end(job=job, status=LoadJobStatus.SUCCEEDED) or state.report is None:
        return
    if job.model is None:
        return
    weight_bytes_record(model=job.model, weight_bytes=state.report.weight_bytes)
    if is_own:
        load_measurement_record(
            model=job.model,
            neuron=job.neuron,
            report=state.report,
            capabilities=state.capabilities,
        )


def _unload_advance(job: LoadJob, state: ReplicaState | None, now: datetime) -> None:
    if state is None or _is_older(job, state.job_id):
        overtaken = [one for one in _loads_before(job) if one.pk != job.pk]
        # A heartbeat lacks a load that the neuron has not received yet, or that is newer than the
        # heartbeat.
        if overtaken and now - job.created_at < OLD_HEARTBEAT:
            return
        with transaction.atomic():
            if job_end(job=job, status=LoadJobStatus.SUCCEEDED):
                for load in overtaken:
                    job_end(job=load, status=LoadJobStatus.CANCELLED)
    elif state.status is ReplicaStatus.DRAINING:
        load_job_progress(job=job, progress=None, now=now, detail=_waiting_for(state))


def _sleep_advance(job: LoadJob, state: ReplicaState | None, now: datetime) -> None:
    if state is None:
        failure = LoadFailure(
            code="unloaded", message="Its engine ended before it was asleep: it is not loaded"
        )
        job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)
    elif _is_older(job, state.job_id):
        job_end(job=job, status=LoadJobStatus.CANCELLED)
    elif state.status is ReplicaStatus.ASLEEP:
        job_end(job=job, status=LoadJobStatus.SUCCEEDED)
    elif state.status is ReplicaStatus.DRAINING:
        load_job_progress(
            job=job,
            progress=None,
            now=now,
            detail=_waiting_for(state, then="giving its memory back"),
        )
    elif (refused := state.sleep_refusal) is not None and refused.job_id == str(job.pk):
        job_end(job=job, status=LoadJobStatus.FAILED, failure=refused.failure)


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
    elif state is None or _is_older(job, state.job_id):
        job_end(job=job, status=LoadJobStatus.SUCCEEDED)
    elif job.status == LoadJobStatus.PENDING:
        _begin(job, now, send_unload)
    elif state.status is ReplicaStatus.DRAINING:
        load_job_progress(job=job, progress=None, now=now, detail=_waiting_for(state))


def _begin(job: LoadJob, now: datetime, send: Send, **values: None) -> None:
    """The caller that claims the move to RUNNING sends the message, once. ``values``: other
    columns."""
    claimed = {"started_at": now, "reported_at": now, **values}
    if job_claim(job=job, status=LoadJobStatus.RUNNING, values=claimed):
        job_send(job=job, send=send)


def _waiting_for(state: ReplicaState, then: str = "ending its engine") -> str:
    num_requests = state.stats.in_flight + state.stats.queue_depth if state.stats else 0
    return f"waiting for {num_requests} requests" if num_requests else then


def _is_older(job: LoadJob, job_id: str) -> bool:
    try:
        pk = uuid.UUID(job_id)
    except ValueError:
        return False
    return LoadJob.objects.filter(pk=pk, created_at__gt=job.created_at).exists()


def _loads_before(job: LoadJob) -> list[LoadJob]:
    loads = selectors.load_jobs_active().exclude(kind__in=LEAVING_KINDS)
    return list(
        loads.filter(
            model_name=job.model_name,
            neuron=job.neuron,
            created_at__lte=job.created_at,
            replacement=None,
        )
    )
