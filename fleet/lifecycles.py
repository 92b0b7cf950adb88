"""The states of neurons, load jobs and replicas, and the legal transitions of jobs.

A neuron moves from each state to each: AWAY in silence, else by its report and the operator's
desired state. A job may end while PENDING: a load can finish or fail between two heartbeats. A
replica is moved by its neuron, by the table in ``inference.protocol.heartbeat``.
"""

from __future__ import annotations

from django.db.models import TextChoices

from fleet.errors import IllegalTransitionError
from inference.protocol.heartbeat import ReplicaStatus


class NeuronStatus(TextChoices):
    ONLINE = "online"
    AWAY = "away"
    DRAINING = "draining"
    REFUSED = "refused"
    """The neuron is not admitted: it waits for an operator, or was refused by one."""


class RecordedReplicaStatus(TextChoices):
    """No transition table: a heartbeat is a sample, in which several steps look like one. The
    neuron checks its steps."""

    LOADING = ReplicaStatus.LOADING.value
    READY = ReplicaStatus.READY.value
    RECOVERING = ReplicaStatus.RECOVERING.value
    DRAINING = ReplicaStatus.DRAINING.value
    ASLEEP = ReplicaStatus.ASLEEP.value
    FAILED = ReplicaStatus.FAILED.value
    AWAY = "away"


class LoadJobKind(TextChoices):
    LOAD = "load"
    UNLOAD = "unload"
    RELOAD = "reload"
    SLEEP = "sleep"


LEAVING_KINDS = (LoadJobKind.UNLOAD, LoadJobKind.SLEEP)


class DownloadKind(TextChoices):
    PULL = "pull"
    DELETE = "delete"


class LoadJobStatus(TextChoices):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LOAD_JOB_TRANSITIONS: dict[LoadJobStatus, frozenset[LoadJobStatus]] = {
    LoadJobStatus.PENDING: frozenset(
        {
            LoadJobStatus.RUNNING,
            LoadJobStatus.SUCCEEDED,
            LoadJobStatus.FAILED,
            LoadJobStatus.CANCELLED,
        }
    ),
    LoadJobStatus.RUNNING: frozenset(
        {LoadJobStatus.SUCCEEDED, LoadJobStatus.FAILED, LoadJobStatus.CANCELLED}
    ),
    LoadJobStatus.SUCCEEDED: frozenset(),
    LoadJobStatus.FAILED: frozenset(),
    LoadJobStatus.CANCELLED: frozenset(),
}

ACTIVE_LOAD_JOB_STATUSES = tuple(
    status for status, targets in LOAD_JOB_TRANSITIONS.items() if targets
)


def ensure_transition(current: LoadJobStatus, target: LoadJobStatus) -> None:
    """Raises ``IllegalTransitionError``, also for a step to the same status."""
    if target not in LOAD_JOB_TRANSITIONS[current]:
        raise IllegalTransitionError(f"LoadJobStatus: {current} cannot become {target}")
