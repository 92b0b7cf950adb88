"""Each lifecycle's table, step by step."""

from __future__ import annotations

from itertools import product

import pytest

from fleet.errors import IllegalTransitionError
from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LOAD_JOB_TRANSITIONS,
    LoadJobStatus,
    RecordedReplicaStatus,
    ensure_transition,
)
from inference.protocol.heartbeat import ReplicaStatus
from tests.cases import each_case

RANKS = {"pending": 0, "running": 1}
"""All others are an end."""


@each_case(("current", "target"), [*product(LoadJobStatus, repeat=2)])
def test_load_job_steps(current: LoadJobStatus, target: LoadJobStatus) -> None:
    if RANKS.get(current, 2) < RANKS.get(target, 2):
        ensure_transition(current, target)
    else:
        with pytest.raises(IllegalTransitionError, match=f"{current}.*{target}"):
            ensure_transition(current, target)


def test_active_jobs_can_still_move_and_a_neurons_words_are_recorded() -> None:
    assert {job for job in LoadJobStatus if LOAD_JOB_TRANSITIONS[job]} == {
        *ACTIVE_LOAD_JOB_STATUSES
    }
    words = {status.value for status in ReplicaStatus}
    assert {*RecordedReplicaStatus.values} == words | {"away"}
