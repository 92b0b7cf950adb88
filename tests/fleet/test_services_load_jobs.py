"""Load jobs from the first request to their end, with a Celery that only writes things down."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import selectors, services
from fleet.errors import (
    IllegalTransitionError,
    JobCannotBeCancelledError,
    ModelDisabledError,
    ModelPinnedError,
    ReplicaNotFoundError,
    UnknownModelError,
    UnknownNeuronError,
)
from fleet.lifecycles import LoadJobStatus
from fleet.models import CatalogueModel, LoadJob, Neuron, Replica
from fleet.services import load_jobs
from fleet.snapshot import FleetSnapshot
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadFailure, LoadProgress, LoadSpec, LoadStage
from metering.actor import COMMAND

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def model() -> CatalogueModel:
    return services.catalogue_model_create(
        actor=COMMAND, name="tiny", source="pypi:tiny", revision="1.0", max_context_tokens=512
    )


@pytest.fixture
def neuron(build) -> Neuron:
    services.heartbeat_record(heartbeat=build.heartbeat())
    return Neuron.objects.get()


@pytest.fixture
def job(model, neuron, sent) -> LoadJob:
    return start()


def start() -> LoadJob:
    return services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")


def unload() -> LoadJob:
    return services.unload_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")


def fresh(job: LoadJob) -> LoadJob:
    return LoadJob.objects.get(pk=job.pk)


def hear(build, job: LoadJob, status: ReplicaStatus, **values) -> LoadJob:
    """The neuron's next heartbeat says this of the job's replica."""
    state = build.replica(**{"job_id": str(job.pk), "status": status} | values)
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[state]))
    return fresh(job)


def test_start_sends_the_spec_to_the_neurons_queue(model, neuron, sent) -> None:
    job = start()
    assert (job.status, job.requested_by) == (LoadJobStatus.PENDING, "command")
    ((name, (spec,), options),) = sent.tasks
    assert name == "neuron.load_model"
    assert msgspec.convert(spec, LoadSpec) == LoadSpec(
        job_id=str(job.pk),
        model="tiny",
        source="pypi:tiny",
        revision="1.0",
        max_context_tokens=512,
        max_prefill_s=300,
    )
    assert options["queue"] == "neuron.beast"
    assert 0 < options["expires"] <= 60


def test_start_is_idempotent(job, sent) -> None:
    assert start().pk == job.pk
    assert len(sent.tasks) == 1
    assert LoadJob.objects.count() == 1


def test_a_new_job_after_the_last_one_ended(job, sent) -> None:
    load_jobs.load_job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert start().pk != job.pk
    assert len(sent.tasks) == 2


def test_nothing_is_sent_before_the_commit(model, neuron, sent) -> None:
    with transaction.atomic():
        start()
        assert sent.tasks == []
    assert len(sent.tasks) == 1


def test_nothing_is_sent_after_a_rollback(model, neuron, sent) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        start()
        raise RuntimeError
    assert sent.tasks == []


def test_a_broker_that_is_away_fails_the_job_with_its_reason(model, neuron, sent) -> None:
    sent.broker_is_away = True
    job = start()
    assert (job.status, job.failure_code) == (LoadJobStatus.FAILED, "broker_away")
    assert fresh(job).status == LoadJobStatus.FAILED


def test_start_refuses_what_is_not_there(model, neuron, sent) -> None:
    with pytest.raises(UnknownModelError):
        services.load_job_start(actor=COMMAND, model_name="other", neuron_name="beast")
    with pytest.raises(UnknownNeuronError):
        services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="other")
    CatalogueModel.objects.update(enabled=False)
    with pytest.raises(ModelDisabledError):
        start()
    assert sent.tasks == []


def test_the_database_holds_one_active_job_for_a_model_and_neuron(job, model, neuron) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron)


def test_a_load_runs_and_succeeds(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=10, total=40, detail="tiny.gguf")
    running = hear(build, job, ReplicaStatus.LOADING, progress=progress)
    assert (running.status, running.stage) == (LoadJobStatus.RUNNING, "downloading")
    assert (running.progress_done, running.progress_total, running.progress_unit) == (
        10,
        40,
        "bytes",
    )
    assert running.progress_fraction == 0.25
    assert running.started_at is not None

    ended = hear(build, job, ReplicaStatus.READY, report=build.report(weight_bytes=77))
    assert ended.status == LoadJobStatus.SUCCEEDED
    assert ended.finished_at is not None
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    assert entry.weight_bytes == 77


def test_progress_moves_and_a_new_stage_starts_its_own_clock(job, build) -> None:
    def at(stage: LoadStage, done: int) -> LoadJob:
        progress = LoadProgress(stage=stage, done=done, total=100)
        return hear(build, job, ReplicaStatus.LOADING, progress=progress)

    first = at(LoadStage.DOWNLOADING, 10)
    second = at(LoadStage.DOWNLOADING, 60)
    third = at(LoadStage.WEIGHTS, 5)
    assert (second.progress_done, third.progress_done) == (60, 5)
    assert second.stage_started_at == first.stage_started_at
    assert third.stage_started_at > second.stage_started_at


def test_eta_follows_the_stages_rate(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WEIGHTS, done=25, total=100)
    running = hear(build, job, ReplicaStatus.LOADING, progress=progress)
    running.stage_started_at = running.reported_at - timedelta(seconds=10)
    assert running.eta_s == 30.0
    running.progress_total = 0
    assert running.eta_s is None


def test_a_load_fails_with_the_neurons_reason(job, build) -> None:
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    failed = hear(build, job, ReplicaStatus.FAILED, failure=failure)
    assert failed.status == LoadJobStatus.FAILED
    assert (failed.failure_code, failed.failure_message) == (failure.code, failure.message)


def test_a_job_may_end_between_two_heartbeats(job, build) -> None:
    assert hear(build, job, ReplicaStatus.READY).status == LoadJobStatus.SUCCEEDED


def test_a_model_that_another_job_loaded_by_the_same_spec_ends_this_job_too(job, build) -> None:
    same = {"job_id": "x", "spec_digest": job.spec_digest}
    assert hear(build, job, ReplicaStatus.READY, **same).status == LoadJobStatus.SUCCEEDED


@pytest.mark.parametrize("digest", ["", "0123456789abcdef"])
def test_a_replica_of_another_spec_does_not_end_the_job(job, build, digest) -> None:
    other = {"job_id": "x", "spec_digest": digest}
    assert hear(build, job, ReplicaStatus.READY, **other).status == LoadJobStatus.PENDING


def test_a_replica_that_is_about_to_go_does_not_end_the_next_load(job, build, sent) -> None:
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    unload()
    again = start()
    assert again.pk != job.pk
    same = {"job_id": "x", "spec_digest": again.spec_digest}
    assert hear(build, again, ReplicaStatus.READY, **same).status == LoadJobStatus.PENDING
    assert hear(build, again, ReplicaStatus.READY).status == LoadJobStatus.SUCCEEDED


def test_what_succeeded_is_complete(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WARMUP, done=62, total=100, unit="steps")
    hear(build, job, ReplicaStatus.LOADING, progress=progress)
    ended = hear(build, job, ReplicaStatus.READY)
    assert (ended.progress_fraction, ended.stage) == (1.0, "done")
    assert ended.progress_done == ended.progress_total


@pytest.mark.parametrize("status", [ReplicaStatus.FAILED, ReplicaStatus.LOADING])
def test_what_happened_to_another_job_does_not_move_this_one(job, build, status) -> None:
    assert hear(build, job, status, job_id="x").status == LoadJobStatus.PENDING


def test_an_ended_job_is_not_moved_by_late_heartbeats(job, build) -> None:
    load_jobs.load_job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert hear(build, job, ReplicaStatus.LOADING).status == LoadJobStatus.CANCELLED
    with pytest.raises(IllegalTransitionError):
        load_jobs.load_job_end(job=fresh(job), status=LoadJobStatus.SUCCEEDED)


def test_who_changes_no_row_has_lost_the_claim(job) -> None:
    stale = fresh(job)
    assert load_jobs.load_job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert not load_jobs.load_job_end(job=stale, status=LoadJobStatus.SUCCEEDED)
    assert fresh(job).status == LoadJobStatus.CANCELLED


def test_an_unload_is_a_job_that_ends_when_the_replica_is_gone(model, neuron, sent, build) -> None:
    def say(*replicas) -> LoadJob:
        services.heartbeat_record(heartbeat=build.heartbeat(replicas=list(replicas)))
        return fresh(job)

    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    job = unload()
    assert (job.kind, job.status, job.requested_by) == ("unload", "pending", "command")
    ((name, arguments, options),) = sent.tasks
    assert (name, arguments, options["queue"]) == ("neuron.unload_model", ["tiny"], "neuron.beast")
    assert say(build.replica()).status == LoadJobStatus.PENDING
    busy = build.stats(in_flight=2, queue_depth=1)
    draining = say(build.replica(status=ReplicaStatus.DRAINING, stats=busy))
    assert (draining.status, draining.progress_detail) == ("running", "waiting for 3 requests")
    ended = say()
    assert (ended.status, ended.progress_fraction) == (LoadJobStatus.SUCCEEDED, 1.0)


def test_unload_is_idempotent(model, neuron, sent, build) -> None:
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    assert unload().pk == unload().pk
    assert len(sent.tasks) == 1


def test_a_load_under_way_ends_when_the_neuron_has_dropped_it(job, build, sent) -> None:
    hear(build, job, ReplicaStatus.LOADING)
    ending = unload()
    assert [name for name, *_ in sent.tasks] == ["neuron.load_model", "neuron.unload_model"]
    assert fresh(job).status == LoadJobStatus.RUNNING
    assert hear(build, job, ReplicaStatus.DRAINING).status == LoadJobStatus.CANCELLED
    services.heartbeat_record(heartbeat=build.heartbeat())
    assert fresh(ending).status == LoadJobStatus.SUCCEEDED


def test_a_load_that_was_not_taken_up_ends_with_its_unload(job, build, sent) -> None:
    ending = unload()
    services.heartbeat_record(heartbeat=build.heartbeat())  # may be older than both messages
    assert (fresh(job).status, fresh(ending).status) == ("pending", "pending")
    LoadJob.objects.update(created_at=later(seconds=-6))
    services.heartbeat_record(heartbeat=build.heartbeat())
    assert (fresh(job).status, fresh(ending).status) == ("cancelled", "succeeded")


def test_an_unload_that_the_broker_did_not_take_failed_and_cancels_nothing(job, sent) -> None:
    sent.broker_is_away = True
    ending = unload()
    assert (ending.status, ending.failure_code) == (LoadJobStatus.FAILED, "broker_away")
    assert fresh(job).status == LoadJobStatus.PENDING


def test_an_unload_ends_when_a_later_load_has_taken_the_place(model, neuron, sent, build) -> None:
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    ending, job = unload(), start()
    assert hear(build, job, ReplicaStatus.LOADING).status == LoadJobStatus.RUNNING
    assert fresh(ending).status == LoadJobStatus.SUCCEEDED


def test_unload_refuses_what_is_not_loaded_and_what_is_pinned(model, neuron, sent) -> None:
    with pytest.raises(ReplicaNotFoundError):
        unload()
    with pytest.raises(UnknownNeuronError):
        services.unload_job_start(actor=COMMAND, model_name="tiny", neuron_name="other")
    Replica.objects.create(
        neuron=neuron, model_name="tiny", status="ready", status_since=timezone.now()
    )
    CatalogueModel.objects.update(pinned=True)
    with pytest.raises(ModelPinnedError, match="unpin"):
        unload()
    assert sent.tasks == []


def test_what_the_catalogue_has_lost_is_unloaded_and_remembered(job, build, sent) -> None:
    hear(build, job, ReplicaStatus.READY)
    CatalogueModel.objects.all().delete()
    assert (fresh(job).model, fresh(job).model_name) == (None, "tiny")
    (ending,) = services.model_unload_everywhere(actor=COMMAND, model_name="tiny")
    services.heartbeat_record(heartbeat=build.heartbeat())
    assert fresh(ending).status == LoadJobStatus.SUCCEEDED
    assert str(ending) == "tiny on beast"


def test_cancelling_a_load_unloads_it(job, build, sent) -> None:
    ending = services.load_job_cancel(actor=COMMAND, job=job)
    assert (ending.kind, len(sent.tasks)) == ("unload", 2)
    with pytest.raises(JobCannotBeCancelledError, match="called back"):
        services.load_job_cancel(actor=COMMAND, job=ending)
    load_jobs.load_job_end(job=job, status=LoadJobStatus.CANCELLED)
    with pytest.raises(JobCannotBeCancelledError, match="has ended"):
        services.load_job_cancel(actor=COMMAND, job=job)


def test_a_load_of_an_edited_model_takes_the_place_of_the_one_under_way(job, model, sent) -> None:
    CatalogueModel.objects.update(revision="2.0")
    edited = start()
    assert (edited.pk != job.pk, fresh(job).status) == (True, LoadJobStatus.CANCELLED)
    assert sent.tasks[-1][1][0]["revision"] == "2.0"


def test_where_and_what_must_go_travels_with_the_load(model, neuron, sent) -> None:
    job = services.load_job_start(
        actor=COMMAND,
        model_name="tiny",
        neuron_name="beast",
        devices=("cuda:1",),
        evict=("other",),
    )
    assert (job.devices, job.evict) == (["cuda:1"], ["other"])
    spec = msgspec.convert(sent.tasks[0][1][0], LoadSpec)
    assert (spec.devices, spec.evict) == (["cuda:1"], ["other"])


@pytest.mark.parametrize(
    ("device", "devices"), [("auto", []), ("cpu", ["cpu"]), ("cuda", ["cuda"])]
)
def test_the_kind_of_device_that_the_catalogue_asks_for_travels(
    model, neuron, sent, device, devices
) -> None:
    CatalogueModel.objects.update(device=device)
    start()
    assert sent.tasks[0][1][0].get("devices", []) == devices


def later(**delta: int):
    return timezone.now() + timedelta(**delta)


def test_a_job_that_nobody_picks_up_fails(job) -> None:
    assert services.load_jobs_expire(now=later(seconds=60)) == 0
    assert services.load_jobs_expire(now=later(seconds=75)) == 1
    assert fresh(job).failure_code == "not_picked_up"
    assert services.load_jobs_expire(now=later(seconds=75)) == 0


def test_a_running_job_fails_when_its_neuron_stays_away(job, neuron, build) -> None:
    hear(build, job, ReplicaStatus.LOADING)
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
    assert services.load_jobs_expire(now=later(seconds=20)) == 1
    assert fresh(job).failure_code == "neuron_away"


def test_a_running_job_that_its_neuron_forgot_fails(job, build) -> None:
    hear(build, job, ReplicaStatus.LOADING)
    services.heartbeat_record(heartbeat=build.heartbeat())
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
    assert services.load_jobs_expire(now=later(seconds=20)) == 1
    assert fresh(job).failure_code == "load_lost"


def test_a_stage_that_stands_still_is_still_heard_of(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WARMUP)
    hear(build, job, ReplicaStatus.LOADING, progress=progress)
    LoadJob.objects.update(reported_at=later(seconds=-14))
    hear(build, job, ReplicaStatus.LOADING, progress=progress)
    assert services.load_jobs_expire(now=later(seconds=10)) == 0


@pytest.mark.parametrize(
    "values",
    [
        {"status": "dancing"},
        {"status": LoadJobStatus.SUCCEEDED},
        {"finished_at": timezone.now()},
        {"status": LoadJobStatus.FAILED, "finished_at": timezone.now()},
        {"failure_code": "x"},
    ],
    ids=["unknown status", "ended unfinished", "active finished", "no reason", "active failure"],
)
def test_the_database_refuses_a_job_that_contradicts_itself(model, neuron, values) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron, **values)
