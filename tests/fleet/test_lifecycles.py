"""Each lifecycle's table, step by step."""

from __future__ import annotations

from itertools import product

import pytest

from fleet.errors import IllegalTransitionError
from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LOAD_JOB_TRANSITIONS,
    NEURON_TRANSITIONS,
    LoadJobStatus,
    NeuronStatus,
    RecordedReplicaStatus,
    ensure_transition,
)
from inference.protocol.heartbeat import ReplicaStatus
from tests.cases import each_case

LEGAL_LOAD_JOB_STEPS = {
    ("pending", "running"),
    ("pending", "succeeded"),
    ("pending", "failed"),
    ("pending", "cancelled"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelled"),
}


@each_case(("current", "target"), [*product(LoadJobStatus, repeat=2)])
def test_load_job_steps(current: LoadJobStatus, target: LoadJobStatus) -> None:
    if (current.value, target.value) in LEGAL_LOAD_JOB_STEPS:
        ensure_transition(LOAD_JOB_TRANSITIONS, current, target)
    else:
        with pytest.raises(IllegalTransitionError, match=f"{current.value}.*{target.value}"):
            ensure_transition(LOAD_JOB_TRANSITIONS, current, target)


@each_case(("current", "target"), [*product(NeuronStatus, repeat=2)])
def test_neuron_steps(current: NeuronStatus, target: NeuronStatus) -> None:
    if current != target:
        ensure_transition(NEURON_TRANSITIONS, current, target)
    else:
        with pytest.raises(IllegalTransitionError):
            ensure_transition(NEURON_TRANSITIONS, current, target)


def test_every_status_has_a_row() -> None:
    assert set(LOAD_JOB_TRANSITIONS) == set(LoadJobStatus)
    assert set(NEURON_TRANSITIONS) == set(NeuronStatus)


def test_active_jobs_are_those_that_can_still_move() -> None:
    assert set(ACTIVE_LOAD_JOB_STATUSES) == {LoadJobStatus.PENDING, LoadJobStatus.RUNNING}


def test_recorded_replica_status_is_the_neurons_word_plus_away() -> None:
    assert set(RecordedReplicaStatus.values) == {status.value for status in ReplicaStatus} | {
        "away"
    }
