"""Load jobs along their lifecycle, by their neuron's heartbeats or the lack of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleet import selectors, services
from fleet.errors import IllegalTransitionError
from fleet.lifecycles import LoadJobStatus
from fleet.live.snapshot import FleetSnapshot
from fleet.models import LoadJob
from fleet.services.jobs import load_jobs
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from tests.fleet.services.jobs.conftest import fresh, later, observe, start, unload

pytestmark = pytest.mark.django_db(transaction=True)
LOADING, READY, FAILED = ReplicaStatus.LOADING, ReplicaStatus.READY, ReplicaStatus.FAILED


def test_a_load_runs_and_succeeds(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=10, total=40, detail="tiny.gguf")
    running = observe(build, job, LOADING, progress=progress)
    assert (running.status, running.stage) == (LoadJobStatus.RUNNING, "downloading")
    assert (running.progress_done, running.progress_total) == (10, 40)
    assert (running.progress_unit, running.progress_fraction) == ("bytes", 0.25)
    assert running.started_at is not None
    ended = observe(build, job, READY, report=build.report(weight_bytes=77))
    assert (ended.status, ended.stage) == (LoadJobStatus.SUCCEEDED, "done")
    assert (ended.progress_fraction, ended.progress_done) == (1.0, ended.progress_total)
    assert ended.finished_at is not None
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    assert entry.weight_bytes == 77


def test_progress_moves_and_a_new_stage_starts_its_own_clock(job, build) -> None:
    def at(stage: LoadStage, done: int) -> LoadJob:
        progress = LoadProgress(stage=stage, done=done, total=100)
        return observe(build, job, LOADING, progress=progress)

    first = at(LoadStage.DOWNLOADING, 10)
    second = at(LoadStage.DOWNLOADING, 60)
    third = at(LoadStage.WEIGHTS, 25)
    assert (second.progress_done, third.progress_done) == (60, 25)
    assert second.stage_started_at == first.stage_started_at
    assert third.stage_started_at > second.stage_started_at
    third.stage_started_at = third.reported_at - timedelta(seconds=10)
    assert third.eta_s == 30.0, "by the stage's rate"
    third.progress_total = 0
    assert third.eta_s is None


def test_a_load_is_estimated_by_the_last_one_there(job, model, build) -> None:
    report = build.report(load_seconds=60.0, actual_bytes=4 * 2**30)
    observe(build, job, READY, report=report)
    again = start()
    assert again.expected_load_s == 60.0
    downloading = LoadProgress(stage=LoadStage.DOWNLOADING, done=1, total=4)
    assert observe(build, again, LOADING, progress=downloading).engine_started_at is None
    running = observe(build, again, LOADING, progress=LoadProgress(stage=LoadStage.PREFLIGHT))
    assert running.share is not None and running.eta_s is not None
    assert 0.0 <= running.share < 0.5 and 30.0 < running.eta_s <= 60.0


def test_a_load_fails_with_the_neurons_reason(job, build) -> None:
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    failed = observe(build, job, FAILED, failure=failure)
    assert failed.status == LoadJobStatus.FAILED
    assert (failed.failure_code, failed.failure_message) == (failure.code, failure.message)


def test_another_jobs_replica_ends_this_one_where_it_is_ready_by_the_same_spec(job, build) -> None:
    for status, digest in (
        (READY, ""),
        (READY, "0123456789abcdef"),
        (FAILED, job.spec_digest),
        (LOADING, job.spec_digest),
    ):
        other = {"job_id": "x", "spec_digest": digest}
        assert observe(build, job, status, **other).status == LoadJobStatus.PENDING, status
    same = {"job_id": "x", "spec_digest": job.spec_digest}
    assert observe(build, job, READY, **same).status == LoadJobStatus.SUCCEEDED


def test_a_replica_that_is_about_to_go_does_not_end_the_next_load(job, build, sent) -> None:
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    unload()
    again = start()
    assert again.pk != job.pk
    same = {"job_id": "x", "spec_digest": again.spec_digest}
    assert observe(build, again, READY, **same).status == LoadJobStatus.PENDING
    assert observe(build, again, READY).status == LoadJobStatus.SUCCEEDED


def test_an_ended_job_is_moved_no_more(job, build) -> None:
    stale = fresh(job)
    assert load_jobs.job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert not load_jobs.job_end(job=stale, status=LoadJobStatus.SUCCEEDED), "its claim is lost"
    assert observe(build, job, LOADING).status == LoadJobStatus.CANCELLED
    with pytest.raises(IllegalTransitionError):
        load_jobs.job_end(job=fresh(job), status=LoadJobStatus.SUCCEEDED)


def test_a_job_that_nobody_picks_up_fails(job) -> None:
    assert services.load_jobs_expire(now=later(seconds=60)) == 0
    assert services.load_jobs_expire(now=later(seconds=75)) == 1
    assert fresh(job).failure_code == "not_picked_up"
    assert services.load_jobs_expire(now=later(seconds=75)) == 0


@pytest.mark.parametrize("code", ["neuron_away", "load_lost"])
def test_a_running_job_fails_when_its_neuron_stays_away_or_forgot_it(job, build, code: str) -> None:
    observe(build, job, LOADING)
    if code == "neuron_away":
        services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    else:
        services.heartbeat_record(heartbeat=build.heartbeat())
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
    assert services.load_jobs_expire(now=later(seconds=20)) == 1
    assert fresh(job).failure_code == code


def test_a_stage_that_stands_still_is_still_reported(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WARMUP)
    observe(build, job, LOADING, progress=progress)
    LoadJob.objects.update(reported_at=later(seconds=-14))
    observe(build, job, LOADING, progress=progress)
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
