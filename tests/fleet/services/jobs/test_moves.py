"""Load jobs along their lifecycle, by their neuron's heartbeats or the lack of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleet import selectors, services
from fleet.errors import (
    IllegalTransitionError,
)
from fleet.lifecycles import LoadJobStatus
from fleet.live.snapshot import FleetSnapshot
from fleet.models import LoadJob
from fleet.services.jobs import load_jobs
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from tests.fleet.services.jobs.load_job_steps import (
    fresh,
    job,
    later,
    model,
    neuron,
    observe,
    start,
    unload,
)

__all__ = ["job", "model", "neuron"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_load_runs_and_succeeds(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=10, total=40, detail="tiny.gguf")
    running = observe(build, job, ReplicaStatus.LOADING, progress=progress)
    assert (running.status, running.stage) == (LoadJobStatus.RUNNING, "downloading")
    assert (running.progress_done, running.progress_total, running.progress_unit) == (
        10,
        40,
        "bytes",
    )
    assert running.progress_fraction == 0.25
    assert running.started_at is not None

    ended = observe(build, job, ReplicaStatus.READY, report=build.report(weight_bytes=77))
    assert ended.status == LoadJobStatus.SUCCEEDED
    assert ended.finished_at is not None
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    assert entry.weight_bytes == 77


def test_progress_moves_and_a_new_stage_starts_its_own_clock(job, build) -> None:
    def at(stage: LoadStage, done: int) -> LoadJob:
        progress = LoadProgress(stage=stage, done=done, total=100)
        return observe(build, job, ReplicaStatus.LOADING, progress=progress)

    first = at(LoadStage.DOWNLOADING, 10)
    second = at(LoadStage.DOWNLOADING, 60)
    third = at(LoadStage.WEIGHTS, 5)
    assert (second.progress_done, third.progress_done) == (60, 5)
    assert second.stage_started_at == first.stage_started_at
    assert third.stage_started_at > second.stage_started_at


def test_a_load_is_estimated_by_the_last_one_there(job, model, build) -> None:
    report = build.report(load_seconds=60.0, actual_bytes=4 * 2**30)
    observe(build, job, ReplicaStatus.READY, report=report)
    again = start()
    assert again.expected_load_s == 60.0
    downloading = LoadProgress(stage=LoadStage.DOWNLOADING, done=1, total=4)
    assert (
        observe(build, again, ReplicaStatus.LOADING, progress=downloading).engine_started_at is None
    )
    preflight = LoadProgress(stage=LoadStage.PREFLIGHT)
    running = observe(build, again, ReplicaStatus.LOADING, progress=preflight)
    assert running.share is not None and running.eta_s is not None
    assert 0.0 <= running.share < 0.5 and 30.0 < running.eta_s <= 60.0


def test_eta_follows_the_stages_rate(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WEIGHTS, done=25, total=100)
    running = observe(build, job, ReplicaStatus.LOADING, progress=progress)
    running.stage_started_at = running.reported_at - timedelta(seconds=10)
    assert running.eta_s == 30.0
    running.progress_total = 0
    assert running.eta_s is None


def test_a_load_fails_with_the_neurons_reason(job, build) -> None:
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    failed = observe(build, job, ReplicaStatus.FAILED, failure=failure)
    assert failed.status == LoadJobStatus.FAILED
    assert (failed.failure_code, failed.failure_message) == (failure.code, failure.message)


def test_a_job_may_end_between_two_heartbeats(job, build) -> None:
    assert observe(build, job, ReplicaStatus.READY).status == LoadJobStatus.SUCCEEDED


def test_a_model_that_another_job_loaded_by_the_same_spec_ends_this_job_too(job, build) -> None:
    same = {"job_id": "x", "spec_digest": job.spec_digest}
    assert observe(build, job, ReplicaStatus.READY, **same).status == LoadJobStatus.SUCCEEDED


@pytest.mark.parametrize("digest", ["", "0123456789abcdef"])
def test_a_replica_of_another_spec_does_not_end_the_job(job, build, digest) -> None:
    other = {"job_id": "x", "spec_digest": digest}
    assert observe(build, job, ReplicaStatus.READY, **other).status == LoadJobStatus.PENDING


def test_a_replica_that_is_about_to_go_does_not_end_the_next_load(job, build, sent) -> None:
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    unload()
    again = start()
    assert again.pk != job.pk
    same = {"job_id": "x", "spec_digest": again.spec_digest}
    assert observe(build, again, ReplicaStatus.READY, **same).status == LoadJobStatus.PENDING
    assert observe(build, again, ReplicaStatus.READY).status == LoadJobStatus.SUCCEEDED


def test_what_succeeded_is_complete(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WARMUP, done=62, total=100, unit="steps")
    observe(build, job, ReplicaStatus.LOADING, progress=progress)
    ended = observe(build, job, ReplicaStatus.READY)
    assert (ended.progress_fraction, ended.stage) == (1.0, "done")
    assert ended.progress_done == ended.progress_total


@pytest.mark.parametrize("status", [ReplicaStatus.FAILED, ReplicaStatus.LOADING])
def test_what_happened_to_another_job_does_not_move_this_one(job, build, status) -> None:
    assert observe(build, job, status, job_id="x").status == LoadJobStatus.PENDING


def test_an_ended_job_is_not_moved_by_late_heartbeats(job, build) -> None:
    load_jobs.job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert observe(build, job, ReplicaStatus.LOADING).status == LoadJobStatus.CANCELLED
    with pytest.raises(IllegalTransitionError):
        load_jobs.job_end(job=fresh(job), status=LoadJobStatus.SUCCEEDED)


def test_who_changes_no_row_has_lost_the_claim(job) -> None:
    stale = fresh(job)
    assert load_jobs.job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert not load_jobs.job_end(job=stale, status=LoadJobStatus.SUCCEEDED)
    assert fresh(job).status == LoadJobStatus.CANCELLED


def test_a_job_that_nobody_picks_up_fails(job) -> None:
    assert services.load_jobs_expire(now=later(seconds=60)) == 0
    assert services.load_jobs_expire(now=later(seconds=75)) == 1
    assert fresh(job).failure_code == "not_picked_up"
    assert services.load_jobs_expire(now=later(seconds=75)) == 0


def test_a_running_job_fails_when_its_neuron_stays_away(job, neuron, build) -> None:
    observe(build, job, ReplicaStatus.LOADING)
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
    assert services.load_jobs_expire(now=later(seconds=20)) == 1
    assert fresh(job).failure_code == "neuron_away"


def test_a_running_job_that_its_neuron_forgot_fails(job, build) -> None:
    observe(build, job, ReplicaStatus.LOADING)
    services.heartbeat_record(heartbeat=build.heartbeat())
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
    assert services.load_jobs_expire(now=later(seconds=20)) == 1
    assert fresh(job).failure_code == "load_lost"


def test_a_stage_that_stands_still_is_still_reported(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WARMUP)
    observe(build, job, ReplicaStatus.LOADING, progress=progress)
    LoadJob.objects.update(reported_at=later(seconds=-14))
    observe(build, job, ReplicaStatus.LOADING, progress=progress)
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
