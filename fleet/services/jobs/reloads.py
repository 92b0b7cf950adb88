"""Reloads an outdated or failing replica, without a gap if there is room for a second one.

A neuron holds one replica of a model, so a second one is on another neuron:

    others serve it ────────────────▶ in place        they serve meanwhile
    another neuron has free room ───▶ elsewhere first  then it is unloaded here
    else ───────────────────────────▶ in place        requests wait while it loads
"""

from __future__ import annotations

import msgspec
from django.db import transaction

from fleet import selectors
from fleet.catalogue import CatalogueEntry
from fleet.errors import PlacementRefusedError, ReplicaNotFoundError
from fleet.lifecycles import LoadJobKind
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.models import LoadJob, Replica
from fleet.placement import Load, Route, Wait, place
from fleet.placement.devices.staged import held_stages
from fleet.placement.held_stages import stage_neurons
from fleet.services.hosts.neurons import reporting_neuron
from fleet.services.jobs.load_jobs import decided_load_start
from fleet.services.jobs.steps import job_create, send_reload
from inference.protocol.heartbeat import ReplicaStatus, device_name
from metering.audit import Actor


def reload_job_start(*, actor: Actor, model_name: str, neuron_name: str) -> LoadJob:
    """The active load or reload of this model on this neuron by the catalogue's present spec, new
    or existing. Its ``note`` names the way.

    Raises ``UnknownModelError``, ``ModelDisabledError``, ``UnknownNeuronError``,
    ``NeuronAwayError``, ``ReplicaNotFoundError``, ``PlacementRefusedError``,
    ``SnapshotUnavailableError``.
    """
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
    """Where it is loaded first, or why it is reloaded in place. Pure."""
    neuron = snapshot.neuron(neuron_name)
    replica = neuron.replica_of(entry.name) if neuron is not None else None
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
    """Raises ``PlacementRefusedError`` for a replica with stages on several hosts: those end with
    its engine, and are placed anew by the memory that is free then."""
    neuron = snapshot.neuron(neuron_name)
    replica = None if neuron is None else neuron.replica_of(model_name)
    if replica is not None and (others := stage_neurons(replica)):
        raise PlacementRefusedError(
            f"{model_name} lies on {neuron_name} and {' and '.join(sorted(others))} together, and "
            "is not reloaded in place: unload it, and load it again"
        )


def _keep_stages(job: LoadJob, entry: CatalogueEntry, snapshot: FleetSnapshot) -> None:
    neuron = snapshot.neuron(job.neuron.name)
    replica = None if neuron is None else neuron.replica_of(job.model_name)
    stages = held_stages(entry, replica)
    job.stages = msgspec.to_builtins(list(stages))
    if stages and replica is not None and replica.report is not None:
        job.predicted_tokens_per_s = replica.report.predicted_tokens_per_s


def _has_as_much_room(load: Load, snapshot: FleetSnapshot, replica: ReplicaView) -> bool:
    neuron = snapshot.neuron(load.neuron)
    devices = () if neuron is None else neuron.devices
    free = [one.free_memory_bytes for one in devices if device_name(one) in load.devices]
    return sum(free) >= (replica.memory_bytes or 0)
