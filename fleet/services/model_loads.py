"""Loads a model, puts it to sleep and wakes it, on request or as placement decided. Loads of a
model are started one at a time: two gateways may decide on snapshots that differ by a heartbeat,
and choose different neurons. So the model's row is locked while its active loads are read."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from django.db import transaction
from django.db.models import QuerySet

from fleet import neuron_client, selectors
from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import outdated_neurons
from fleet.errors import (
    CannotSleepError,
    CudaUnavailableError,
    FleetError,
    HubError,
    ModelAlreadyLoadedError,
    ModelRecoveringError,
    PlacementRefusedError,
    PlanUnavailableError,
    ReplicaNotFoundError,
    ServedByUpstreamError,
)
from fleet.hub import entry_costs
from fleet.lifecycles import LEAVING_KINDS, LoadJobKind
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.models import CatalogueModel, LoadJob
from fleet.placement import Load, Reject, Route, Wait, place
from fleet.placement.capacity import REPLACEABLE, may_sleep, stage_neurons
from fleet.placement.division import held_stages, why_not_divided
from fleet.placement.leaving import why_not_loaded_on
from fleet.placement.needs import Needs
from fleet.placement.place import moves_for, place_on
from fleet.services.job_steps import job_create
from fleet.services.load_jobs import (
    check_not_kept,
    decided_load_start,
    model_reload_everywhere,
    model_unload_everywhere,
    reload_job_start,
    unload_job_start,
)
from fleet.services.load_measurements import layer_costs_record
from fleet.services.neurons import neuron_models_to_restore_add, reporting_neuron
from inference.loading.model_costs import packed
from inference.protocol.heartbeat import ReplicaStatus, device_name
from inference.protocol.keys import TASK_SLEEP_MODEL
from metering.audit import Actor

logger = logging.getLogger(__name__)


def model_load_start(
    *,
    actor: Actor,
    model_name: str,
    neuron_name: str | None = None,
    devices: Sequence[str] = (),
) -> LoadJob:
    """A load on that neuron, or else where the model fits or sleeps; the active load; or the reload
    of a replica with an earlier spec. An adapter's base is loaded. Named ``devices`` evict nothing.
    Ignores earlier failures. Raises ``UnknownModelError``, ``ModelDisabledError``,
    ``UnknownNeuronError``, ``NeuronAwayError``, ``ModelRecoveringError``,
    ``ModelAlreadyLoadedError``, ``PlacementRefusedError``, ``ServedByUpstreamError``,
    ``SnapshotUnavailableError``."""
    entry = selectors.model_enabled(model_name).entry()
    if entry.base is not None:
        entry = selectors.model_enabled(entry.base).entry()
    if entry.upstream_model is not None:
        raise ServedByUpstreamError(entry.name)
    snapshot = live.read_snapshot_sync(live.redis_client())
    if neuron_name is not None:
        return _load_on(actor, entry, neuron_name, snapshot, devices)
    catalogue = selectors.catalogue_by_name()
    decision = place(entry, snapshot, catalogue=catalogue)
    if isinstance(decision, Reject):  # the operator may have repaired it
        entry = _weighed(entry, snapshot, decision)
        decision = place(entry, snapshot, catalogue=catalogue, tries_again=True)
    match decision:
        case Load():
            return placed_load_start(actor=actor, load=decision)
        case Reject():
            raise _refusal(decision)
        case Route():
            if outdated := outdated_neurons(entry, snapshot):
                return reload_job_start(actor=actor, model_name=entry.name, neuron_name=outdated[0])
            raise ModelAlreadyLoadedError(f"{entry.name} is loaded on {decision.neuron} already")
        case Wait(is_for_drain=True):
            raise ModelRecoveringError(decision.reason, decision.eta_s)
        case Wait():
            if under_way := _loads_of(entry.name).first():
                return under_way
            raise ModelAlreadyLoadedError(decision.reason)


def _loads_of(model_name: str) -> QuerySet[LoadJob]:
    return (
        selectors.load_jobs_active().filter(model_name=model_name).exclude(kind__in=LEAVING_KINDS)
    )


def _weighed(entry: CatalogueEntry, snapshot: FleetSnapshot, rejected: Reject) -> CatalogueEntry:
    """Adds its layers' costs where its files can be read from here: it may be divided."""
    if rejected.code != "exceeds_device" or entry.costs is not None or why_not_divided(entry):
        return entry
    devices = [one for neuron in snapshot.neurons for one in neuron.devices]
    free_bytes = max((one.free_memory_bytes for one in devices), default=0)
    try:
        costs = entry_costs(entry, free_bytes)
    except (PlanUnavailableError, HubError) as error:
        logger.info("the layers of %s are unknown: %s", entry.name, error)
        return entry
    layer_costs_record(model=selectors.model_enabled(entry.name), costs=packed(costs))
    return dataclasses.replace(entry, costs=costs)


def _load_on(
    actor: Actor,
    entry: CatalogueEntry,
    neuron_name: str,
    snapshot: FleetSnapshot,
    devices: Sequence[str],
) -> LoadJob:
    """A neuron that holds the model already chooses the devices itself."""
    neuron = reporting_neuron(neuron_name, snapshot)
    on_its_way = _loads_of(entry.name).values_list("neuron__name", flat=True)
    if why_not := why_not_loaded_on(entry, neuron, snapshot, on_its_way):
        raise PlacementRefusedError(why_not)
    _check_device_sizes(entry, neuron, devices)
    held = neuron.replica_of(entry.name)
    if devices or (held is not None and held.status not in REPLACEABLE):
        _check_one_host(entry, held)
        stages = () if devices else held_stages(entry, held)
        here = Load(neuron=neuron_name, model=entry.name, devices=tuple(devices), stages=stages)
        return decided_load_start(actor=actor, load=here)
    catalogue = selectors.catalogue_by_name()
    decision = place_on(entry, neuron, snapshot, catalogue)
    if isinstance(decision, Reject):
        weighed = _weighed(entry, snapshot, decision)
        decision = place_on(weighed, neuron, snapshot, catalogue)
    if isinstance(decision, Reject):
        raise _refusal(decision)
    return placed_load_start(actor=actor, load=decision, may_be_one_more=True)


def _check_one_host(entry: CatalogueEntry, held: ReplicaView | None) -> None:
    """Another spec may not replace a replica with stages on several hosts."""
    if held is None or held.spec_digest in ("", entry.spec_digest()) or not stage_neurons(held):
        return
    raise PlacementRefusedError(
        f"{entry.name} lies on several hosts together, by an earlier spec: unload it, and load it "
        "again"
    )


def _refusal(decision: Reject) -> FleetError:
    if decision.code == ModelRecoveringError.code:
        return ModelRecoveringError(decision.message, decision.retry_after_s)
    if decision.code == CudaUnavailableError.code:
        return CudaUnavailableError(decision.message)
    return PlacementRefusedError(decision.message)


def _check_device_sizes(entry: CatalogueEntry, neuron: NeuronView, devices: Sequence[str]) -> None:
    least_bytes = Needs(entry).least_total_bytes
    for device in neuron.devices:
        is_card = device.kind == "cuda"
        is_large = is_card and device.total_memory_bytes >= least_bytes
        if least_bytes and device_name(device) in devices and not is_large:
            has = f"has {device.total_memory_bytes:,}" if is_card else "is no card"
            raise PlacementRefusedError(
                f"{entry.name} needs a card of {least_bytes:,} bytes, by its min_device_vram_mb, "
                f"and {device_name(device)} of {neuron.name} {has}"
            )


def placed_load_start(*, actor: Actor, load: Load, may_be_one_more: bool = False) -> LoadJob:
    """``may_be_one_more``: also beside an active load elsewhere. Raises as ``load_job_start``."""
    moves = _moves_of(load)
    with transaction.atomic():
        CatalogueModel.objects.select_for_update().filter(name=load.model).first()
        elsewhere = _loads_of(load.model).exclude(neuron__name=load.neuron)
        if not may_be_one_more and (active := elsewhere.first()):
            return active
        job = decided_load_start(actor=actor, load=load, may_divide=not load.stages)
    if moves and not job.note:
        _start_moves(actor, moves, load, job)
    return job


def _moves_of(load: Load) -> tuple[Load, ...]:
    """Call it before the load is sent: evicted models may unload then, and are no longer idle."""
    if not load.evictions:
        return ()
    try:
        snapshot = live.read_snapshot_sync(live.redis_client())
    except FleetError as error:
        logger.warning("nothing moves for %s on %s: %s", load.model, load.neuron, error)
        return ()
    return moves_for(load, snapshot, selectors.catalogue_by_name())


def _start_moves(actor: Actor, moves: tuple[Load, ...], load: Load, job: LoadJob) -> None:
    """A refused move is skipped: the model is loaded again at its next request."""
    try:
        for move in moves:
            left = [neuron for neuron, model in load.evictions if model == move.model]
            to = move.neuron
            if move.neuron in left:  # one neuron has a model once: after it has left
                neuron_models_to_restore_add(neuron_name=move.neuron, model_names=[move.model])
                to = f"{', '.join(move.devices)} of {move.neuron}"
            else:
                moved = decided_load_start(actor=actor, load=move)
                _note(moved, f"Moves from {left[0]}, where {load.model} needs its room")
            _note(job, f"{move.model} makes room and moves to {to}")
    except FleetError as error:
        logger.warning("nothing moves for %s on %s: %s", load.model, load.neuron, error)


def _note(job: LoadJob, words: str) -> None:
    job.note = f"{job.note}; {words}" if job.note else words
    LoadJob.objects.filter(pk=job.pk).update(note=job.note)


def sleep_job_start(
    *, actor: Actor, model_name: str, neuron_name: str, is_planned: bool = False
) -> LoadJob:
    """The active sleep, new or existing. The neuron waits for its requests first. ``is_planned``:
    by the control. Raises ``UnknownNeuronError``, ``ReplicaNotFoundError``, ``CannotSleepError``,
    ``ModelPinnedError``, ``SnapshotUnavailableError``."""
    model = CatalogueModel.objects.filter(name=model_name).first()
    if not is_planned:
        check_not_kept(model, "woken")
    neuron = selectors.neuron_known(neuron_name)
    check_may_sleep(model_name, neuron_name, live.read_snapshot_sync(live.redis_client()))
    job = LoadJob(kind=LoadJobKind.SLEEP, model=model, model_name=model_name, neuron=neuron)

    def send(job: LoadJob) -> None:
        neuron_client.send(TASK_SLEEP_MODEL, neuron_name, model_name, str(job.pk))

    return job_create(actor=actor, job=job, send=send)


def model_sleep_everywhere(*, actor: Actor, model_name: str) -> list[LoadJob]:
    """Raises as ``sleep_job_start``."""
    return [
        sleep_job_start(actor=actor, model_name=model_name, neuron_name=name)
        for name in _neurons(model_name, ReplicaStatus.READY, "is ready")
    ]


def model_wake_everywhere(*, actor: Actor, model_name: str) -> list[LoadJob]:
    """Raises as ``model_load_start``, and ``ReplicaNotFoundError``."""
    return [
        model_load_start(actor=actor, model_name=model_name, neuron_name=name)
        for name in _neurons(model_name, ReplicaStatus.ASLEEP, "sleeps")
    ]


def wake_job_start(*, actor: Actor, model_name: str, neuron_name: str) -> LoadJob:
    """Raises as ``model_wake_everywhere``."""
    if neuron_name not in _neurons(model_name, ReplicaStatus.ASLEEP, "sleeps"):
        raise ReplicaNotFoundError(f"{model_name} does not sleep on {neuron_name}")
    return model_load_start(actor=actor, model_name=model_name, neuron_name=neuron_name)


ON_NEURON: dict[str, Callable[..., LoadJob]] = {
    "load": model_load_start,
    "unload": unload_job_start,
    "reload": reload_job_start,
    "sleep": sleep_job_start,
    "wake": wake_job_start,
}
EVERYWHERE: dict[str, Callable[..., list[LoadJob]]] = {
    "unload": model_unload_everywhere,
    "reload": model_reload_everywhere,
    "sleep": model_sleep_everywhere,
    "wake": model_wake_everywhere,
}


def check_may_sleep(model_name: str, neuron_name: str, snapshot: FleetSnapshot) -> None:
    """Raises ``ReplicaNotFoundError`` and ``CannotSleepError``."""
    neuron = snapshot.neuron(neuron_name)
    replica = None if neuron is None else neuron.replica_of(model_name)
    if neuron is None or replica is None:
        raise ReplicaNotFoundError(f"{model_name} is not loaded on {neuron_name}")
    if may_sleep(replica, neuron):
        return
    if replica.status is not ReplicaStatus.READY:
        why = f"it is {replica.status} on {neuron_name}"
    elif others := stage_neurons(replica):
        together = " and ".join((neuron_name, *sorted(others)))
        why = f"it lies on {together} together, and is only unloaded"
    elif replica.report is None or replica.report.asleep is None:
        why = "models of its kind are only unloaded"
    else:
        why = (
            f"its weights need {replica.report.asleep.host_bytes:,} bytes of the memory of "
            f"{neuron_name}, which are not free"
        )
    raise CannotSleepError(f"{model_name} cannot sleep: {why}")


def _neurons(model_name: str, status: ReplicaStatus, word: str) -> list[str]:
    """By heartbeats, newer than rows: after an answer, a client expects the model to be ready."""
    snapshot = live.read_snapshot_sync(live.redis_client())
    names = [one.neuron for one in snapshot.replicas_of(model_name) if one.status is status]
    if not names:
        raise ReplicaNotFoundError(f"{model_name} {word} nowhere")
    return names
