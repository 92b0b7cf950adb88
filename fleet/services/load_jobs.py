"""Load jobs: load, unload and reload a model on a neuron, cancel a job, expire abandoned ones.

A neuron holds one replica of a model, so a reload without a gap loads another one elsewhere:

    others serve it ────────────────▶ in place        they serve meanwhile
    another neuron has free room ───▶ elsewhere first  then it is unloaded here
    else ───────────────────────────▶ in place        requests wait while it loads
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial

import msgspec
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.catalogue import CatalogueEntry
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
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.models import CatalogueModel, LoadJob, Neuron, Replica
from fleet.placement import Load, Route, Wait, place
from fleet.placement.capacity import stage_neurons
from fleet.placement.division import held_stages
from fleet.services.job_steps import (
    job_abandoned,
    job_create,
    job_end,
    job_send,
    jobs_fail,
    send_load,
    send_reload,
    send_unload,
)
from fleet.services.load_measurements import kept_unloaded_forget, model_keep_unloaded
from fleet.services.neurons import reporting_neuron
from fleet.services.stage_orders import stage_load_call_off, stage_orders
from inference.protocol.heartbeat import ReplicaStatus, device_name
from inference.protocol.keys import TASK_DROP_ADAPTER
from inference.protocol.load_report import LoadFailure
from metering.audit import Actor, audit_entry_create

logger = logging.getLogger(__name__)

SILENCE_TIMEOUT = timedelta(seconds=15)
"""A job fails when its neuron has reported it, and does not for this long."""
LOST = LoadFailure(code="load_lost", message="The neuron no longer reports this job")


def load_job_start(*, actor: Actor, model_name: str, neuron_name: str) -> LoadJob:
    """Raises as ``decided_load_start``."""
    return decided_load_start(actor=actor, load=Load(neuron=neuron_name, model=model_name))


def decided_load_start(*, actor: Actor, load: Load, may_divide: bool = False) -> LoadJob:
    """The active job for this model on this neuron, new or existing. Stages on other neurons are
    ordered first. ``may_divide``: a model that turns out too large for one device may lie on
    several. Raises ``UnknownModelError``, ``ModelDisabledError``, ``UnknownNeuronError``,
    ``PlacementRefusedError``, ``ServedByUpstreamError``."""
    model, neuron = selectors.model_enabled(load.model), selectors.neuron_known(load.neuron)
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
        devices=list(load.devices),
        stages=msgspec.to_builtins(list(load.stages)),
        predicted_tokens_per_s=load.predicted_tokens_per_s,
        may_divide=may_divide,
        evict=list(load.evict),
    )
    send = stage_orders(job) if any(stage.neuron for stage in load.stages) else send_load
    return job_create(actor=actor, job=job, send=send)


def unload_job_start(
    *,
    actor: Actor,
    model_name: str,
    neuron_name: str,
    is_planned: bool = False,
    at_once: bool = False,
) -> LoadJob:
    """The active unload, new or existing, also of a model that the catalogue no longer has. The
    neuron drains the replica, or cancels its load. An adapter is removed from its base's engine
    once no request uses it. ``is_planned``: by the control, which may unload a pinned model's
    surplus replica. ``at_once``: cancels its requests, also those that an active unload waits for.
    Raises ``UnknownNeuronError``, ``ReplicaNotFoundError``, ``ModelPinnedError``."""
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
    """Unloads also a model that is kept loaded, until it is wanted again. Raises
    ``UnknownNeuronError``, ``ReplicaNotFoundError``."""
    with transaction.atomic():
        job = unload_job_start(
            actor=actor, model_name=model_name, neuron_name=neuron_name, is_planned=True
        )
        model_keep_unloaded(model_name=model_name, neuron_name=neuron_name)
    return job


def model_unload_everywhere(*, actor: Actor, model_name: str) -> list[LoadJob]:
    """Includes loads under way and removed models. Raises ``ModelPinnedError``."""
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
    """Includes neurons that are loading it; an adapter is where its base has it."""
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
    """Returns the unload that ends it, there or of its replacement elsewhere, or a reload that
    waited and has ended. Raises ``JobCannotBeCancelledError``, ``ModelPinnedError``."""
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
    """Fails jobs that no neuron works on. Returns their number."""
    now = now or timezone.now()
    return jobs_fail((job, _abandoned(job, now)) for job in selectors.load_jobs_active())


def _abandoned(job: LoadJob, now: datetime) -> LoadFailure | None:
    """A reload waits for its replacement however long that takes."""
    waits = job.replacement is not None and job.status == LoadJobStatus.PENDING
    failure = job_abandoned(job, job.neuron, "job", now=now, silence=SILENCE_TIMEOUT, lost=LOST)
    return failure if failure is None or not waits or failure.code == "neuron_away" else None


def reload_job_start(*, actor: Actor, model_name: str, neuron_name: str) -> LoadJob:
    """The active load or reload by the catalogue's present spec, new or existing; ``note`` names
    the way. Raises ``UnknownModelError``, ``ModelDisabledError``, ``UnknownNeuronError``,
    ``NeuronAwayError``, ``ReplicaNotFoundError``, ``PlacementRefusedError``,
    ``SnapshotUnavailableError``."""
    model, neuron = selectors.model_enabled(model_name), selectors.neuron_known(neuron_name)
    replica = Replica.objects.filter(model_name=model_name, neuron=neuron).first()
    if replica is None:
        raise ReplicaNotFoundError(f"{model_name} is not loaded on {neuron_name}: load it instead")
    job = LoadJob(kind=LoadJobKind.RELOAD, model=model, model_name=model.name, neuron=neuron)
    snapshot = live.read_snapshot_sync(live.redis_client())
    reporting_neuron(neuron_name, snapshot)
    _check_one_host(snapshot, neuron_name, model_name)
    plan = reload_plan(model.entry(), neuron_name, snapshot)
    if isinstance(plan, Load):
        job.note = f"With no gap: on {plan.neuron} first, then it leaves {neuron_name}"
        with transaction.atomic():
            job.replacement = decided_load_start(actor=actor, load=plan)
            return job_create(actor=actor, job=job, send=None)
    job.note = plan
    _keep_stages(job, model.entry(), snapshot)
    return job_create(actor=actor, job=job, send=send_reload)


def model_reload_everywhere(*, actor: Actor, model_name: str) -> list[LoadJob]:
    """One neuron after the other, so that the others serve. Raises as ``reload_job_start``."""
    model = selectors.model_enabled(model_name)
    replicas = Replica.objects.filter(model_name=model_name).select_related("neuron")
    neurons = [replica.neuron for replica in replicas.order_by("neuron__name")]
    if not neurons:
        raise ReplicaNotFoundError(f"{model_name} is not loaded anywhere: load it instead")
    first, *others = neurons
    snapshot = live.read_snapshot_sync(live.redis_client())
    for neuron in neurons:
        _check_one_host(snapshot, neuron.name, model_name)
    jobs = [reload_job_start(actor=actor, model_name=model_name, neuron_name=first.name)]
    for neuron in others:
        job = LoadJob(kind=LoadJobKind.RELOAD, model=model, model_name=model_name, neuron=neuron)
        job.replacement = jobs[-1]
        job.note = f"In place, after {jobs[-1].neuron.name}"
        _keep_stages(job, model.entry(), snapshot)
        jobs.append(job_create(actor=actor, job=job, send=None))
    return jobs


def reload_plan(entry: CatalogueEntry, neuron_name: str, snapshot: FleetSnapshot) -> Load | str:
    """Returns the load that comes first, or why the model is reloaded in place."""
    replica = snapshot.replica_on(neuron_name, entry.name)
    if replica is None or replica.status is not ReplicaStatus.READY:
        return "In place: it serves no requests now"
    others = tuple(one for one in snapshot.neurons if one.name != neuron_name)
    decision = place(entry, FleetSnapshot(neurons=others))
    match decision:
        case Load(evict=()) if _has_as_much_room(decision, snapshot, replica):
            return decision
        case Load(evict=()):
            return (
                f"In place; requests wait meanwhile: {decision.neuron} has less room for it than "
                f"it has on {neuron_name}"
            )
        case Route():
            return f"In place: {decision.neuron} serves it meanwhile"
        case Wait():
            return f"In place; requests wait meanwhile: {decision.reason}"
    return "In place; requests wait meanwhile: no other neuron has room for a second one"


def _check_one_host(snapshot: FleetSnapshot, neuron_name: str, model_name: str) -> None:
    """Stages on several hosts end with their engine, and are placed anew by free memory."""
    replica = snapshot.replica_on(neuron_name, model_name)
    if replica is not None and (others := stage_neurons(replica)):
        raise PlacementRefusedError(
            f"{model_name} lies on {neuron_name} and {' and '.join(sorted(others))} together, and "
            "is not reloaded in place: unload it, and load it again"
        )


def _keep_stages(job: LoadJob, entry: CatalogueEntry, snapshot: FleetSnapshot) -> None:
    replica = snapshot.replica_on(job.neuron.name, job.model_name)
    stages = held_stages(entry, replica)
    job.stages = msgspec.to_builtins(list(stages))
    if stages and replica is not None and replica.report is not None:
        job.predicted_tokens_per_s = replica.report.predicted_tokens_per_s


def _has_as_much_room(load: Load, snapshot: FleetSnapshot, replica: ReplicaView) -> bool:
    neuron = snapshot.neuron(load.neuron)
    devices = () if neuron is None else neuron.devices
    free = [one.free_memory_bytes for one in devices if device_name(one) in load.devices]
    return sum(free) >= (replica.memory_bytes or 0)
