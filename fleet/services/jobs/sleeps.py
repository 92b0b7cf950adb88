"""Putting replicas to sleep, and waking them: a load, which is placed and is a job as others."""

from __future__ import annotations

from fleet import selectors
from fleet.errors import CannotSleepError, ModelPinnedError, ReplicaNotFoundError
from fleet.lifecycles import LoadJobKind
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot
from fleet.models import CatalogueModel, LoadJob
from fleet.placement.devices.sleeping import may_sleep
from fleet.placement.held_stages import stage_neurons
from fleet.services.jobs.model_loads import model_load_start
from fleet.services.jobs.steps import job_create, send_sleep
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import Actor


def sleep_job_start(
    *, actor: Actor, model_name: str, neuron_name: str, is_planned: bool = False
) -> LoadJob:
    """The active sleep of this model on this neuron: a new one, or the one that is there. The
    neuron waits for its requests first. ``is_planned``: what should be loaded has been seen to.

    Raises ``UnknownNeuronError``, ``ReplicaNotFoundError``, ``CannotSleepError``,
    ``ModelPinnedError``, ``SnapshotUnavailableError``.
    """
    model = CatalogueModel.objects.filter(name=model_name).first()
    if model is not None and model.settings().is_kept_loaded and not is_planned:
        fix = "unpin it" if model.settings().pinned else "set its least number of replicas to 0"
        raise ModelPinnedError(f"{model_name} would be woken again at once: {fix} first")
    neuron = selectors.neuron_known(neuron_name)
    check_may_sleep(model_name, neuron_name, live.read_snapshot_sync(live.redis_client()))
    job = LoadJob(kind=LoadJobKind.SLEEP, model=model, model_name=model_name, neuron=neuron)
    return job_create(actor=actor, job=job, send=send_sleep)


def model_sleep_everywhere(*, actor: Actor, model_name: str) -> list[LoadJob]:
    """Puts it to sleep on each neuron where it is ready. Raises as ``sleep_job_start``, and
    ``ReplicaNotFoundError``."""
    return [
        sleep_job_start(actor=actor, model_name=model_name, neuron_name=name)
        for name in _neurons(model_name, ReplicaStatus.READY, "is ready")
    ]


def model_wake_everywhere(*, actor: Actor, model_name: str) -> list[LoadJob]:
    """Wakes it on each neuron where it sleeps. Raises as ``model_load_start``, and
    ``ReplicaNotFoundError``, ``SnapshotUnavailableError``."""
    return [
        model_load_start(actor=actor, model_name=model_name, neuron_name=name)
        for name in _neurons(model_name, ReplicaStatus.ASLEEP, "sleeps")
    ]


def wake_job_start(*, actor: Actor, model_name: str, neuron_name: str) -> LoadJob:
    """Raises as ``model_wake_everywhere``."""
    if neuron_name not in _neurons(model_name, ReplicaStatus.ASLEEP, "sleeps"):
        raise ReplicaNotFoundError(f"{model_name} does not sleep on {neuron_name}")
    return model_load_start(actor=actor, model_name=model_name, neuron_name=neuron_name)


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
    """Returns the neurons whose replica has this status by their last heartbeats: a client whose
    request was just answered finds the model ready, though no row of it is recorded yet."""
    snapshot = live.read_snapshot_sync(live.redis_client())
    names = [one.neuron for one in snapshot.replicas_of(model_name) if one.status is status]
    if not names:
        raise ReplicaNotFoundError(f"{model_name} {word} nowhere")
    return names
