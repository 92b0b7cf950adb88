"""Load jobs: as they are started, along their lifecycle by their neuron's heartbeats or the lack of
them, and as unloads end them."""

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
from fleet.live.load_orders import load_orders
from fleet.live.snapshot import FleetSnapshot
from fleet.models import CatalogueModel, LoadJob, Neuron, Replica
from fleet.services.jobs import load_jobs, reconciling, steps
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from metering.actor import COMMAND
from tests.cases import each_case
from tests.fleet.services.jobs.conftest import fresh, later, observe, start, unload

pytestmark = pytest.mark.django_db(transaction=True)


def test_start_sends_the_spec_to_the_neurons_queue_once(model, neuron, sent) -> None:
    job = start()
    assert (job.status, job.requested_by) == (LoadJobStatus.PENDING, str(COMMAND))
    assert start().pk == job.pk and LoadJob.objects.count() == 1
    ((name, (spec,), options),) = sent.tasks
    assert name == "neuron.load_model"
    assert msgspec.convert(spec, LoadSpec) == LoadSpec(
        job_id=str(job.pk),
        model="tiny",
        order=load_orders().order(neuron="beast", model="tiny"),
        source="pypi:tiny",
        revision="1.0",
        max_context_tokens=512,
        max_prefill_s=300,
    )
    assert options["queue"] == "neuron.beast"
    assert 0 < options["expires"] <= 60
    load_jobs.job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert start().pk != job.pk, "the last one has ended"
    assert len(sent.tasks) == 2


def test_a_load_is_sent_once_it_is_committed(model, neuron, sent) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        start()
        raise RuntimeError
    with transaction.atomic():
        start()
        assert sent.tasks == []
    assert len(sent.tasks) == 1


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


@pytest.mark.parametrize(
    ("table", "name", "error"),
    [(Neuron, "beast", UnknownNeuronError), (CatalogueModel, "tiny", UnknownModelError)],
)
def test_what_is_removed_meanwhile_is_named(
    model, neuron, sent, monkeypatch: pytest.MonkeyPatch, table, name: str, error
) -> None:
    """A neuron was always taken for another job that came first."""

    def removing(job: LoadJob) -> None:
        table.objects.filter(name=name).delete()

    monkeypatch.setattr(steps, "_active_beside", removing)
    with pytest.raises(error, match=name):
        start()
    assert not LoadJob.objects.exists() and not sent.tasks


def test_a_load_of_an_edited_model_takes_the_place_of_the_one_under_way(job, model, sent) -> None:
    CatalogueModel.objects.update(revision="2.0")
    edited = start()
    assert (edited.pk != job.pk, fresh(job).status) == (True, LoadJobStatus.CANCELLED)
    assert sent.tasks[-1][1][0]["revision"] == "2.0"


def test_where_and_what_must_go_travels_with_the_load(model, neuron, sent, caplog) -> None:
    job = services.load_job_start(
        actor=COMMAND,
        model_name="tiny",
        neuron_name="beast",
        devices=("cuda:1",),
        evict=("other",),
    )
    assert (job.devices, job.evict) == (["cuda:1"], ["other"])
    assert caplog.messages == ["loading tiny evicts other from beast"]
    spec = msgspec.convert(sent.tasks[0][1][0], LoadSpec)
    assert (spec.devices, spec.evict) == (["cuda:1"], ["other"])


def test_the_kind_of_device_that_the_catalogue_asks_for_travels(model, neuron, sent) -> None:
    for device, devices in (("auto", []), ("cpu", ["cpu"]), ("cuda", ["cuda"])):
        CatalogueModel.objects.update(device=device)
        LoadJob.objects.all().delete()
        start()
        assert sent.tasks[-1][1][0].get("devices", []) == devices


@each_case(
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


def test_the_database_holds_one_active_job_for_a_model_and_neuron(job, model, neuron) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron)


def test_an_unload_is_a_job_that_ends_when_the_replica_is_gone(model, neuron, sent, build) -> None:
    def publish_replicas(*replicas) -> LoadJob:
        services.heartbeat_record(heartbeat=build.heartbeat(replicas=list(replicas)))
        return fresh(job)

    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    job = unload()
    assert (job.kind, job.status, job.requested_by) == ("unload", "pending", str(COMMAND))
    assert unload().pk == job.pk
    ((name, arguments, options),) = sent.tasks
    assert (name, arguments, options["queue"]) == ("neuron.unload_model", ["tiny"], "neuron.beast")
    assert publish_replicas(build.replica()).status == LoadJobStatus.PENDING
    busy = build.stats(in_flight=2, queue_depth=1)
    draining = publish_replicas(build.replica(status=ReplicaStatus.DRAINING, stats=busy))
    assert (draining.status, draining.progress_detail) == ("running", "waiting for 3 requests")
    ended = publish_replicas()
    assert (ended.status, ended.progress_fraction) == (LoadJobStatus.SUCCEEDED, 1.0)


def test_a_load_under_way_ends_when_the_neuron_has_dropped_it(job, build, sent) -> None:
    observe(build, job, ReplicaStatus.LOADING)
    ending = unload()
    assert [name for name, *_ in sent.tasks] == ["neuron.load_model", "neuron.unload_model"]
    assert fresh(job).status == LoadJobStatus.RUNNING
    assert observe(build, job, ReplicaStatus.DRAINING).status == LoadJobStatus.CANCELLED
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
    assert observe(build, job, ReplicaStatus.LOADING).status == LoadJobStatus.RUNNING
    assert fresh(ending).status == LoadJobStatus.SUCCEEDED


def test_unload_refuses_what_is_not_loaded_and_what_is_pinned(model, neuron, sent) -> None:
    with pytest.raises(ReplicaNotFoundError):
        unload()
    with pytest.raises(UnknownNeuronError):
        services.unload_job_start(actor=COMMAND, model_name="tiny", neuron_name="other")
    Replica.objects.create(
        neuron=neuron, model_name="tiny", status="ready", status_since=timezone.now()
    )
    for pinned_on in ([], ["beast"]):
        CatalogueModel.objects.update(pinned=True, pinned_on=pinned_on)
        with pytest.raises(ModelPinnedError, match="unpin"):
            unload()
        assert sent.tasks == []
    CatalogueModel.objects.update(pinned_on=["beauty"])
    unload()
    assert len(sent.tasks) == 1, "it would be loaded again, but not here"


def test_what_the_catalogue_has_lost_is_unloaded_and_remembered(job, build, sent) -> None:
    observe(build, job, ReplicaStatus.READY)
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
    load_jobs.job_end(job=job, status=LoadJobStatus.CANCELLED)
    with pytest.raises(JobCannotBeCancelledError, match="has ended"):
        services.load_job_cancel(actor=COMMAND, job=job)


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


def test_a_restarted_neuron_has_lost_its_load_or_resumes_it(job, build) -> None:
    """At once, and not as a failure of the model's: it is loaded anew without a pause."""
    loading = build.replica(job_id=str(job.pk), status=LOADING)
    observe(build, job, LOADING)
    services.heartbeat_record(heartbeat=build.heartbeat(epoch="second", replicas=[loading]))
    assert fresh(job).status == LoadJobStatus.RUNNING
    services.heartbeat_record(heartbeat=build.heartbeat(epoch="third"))
    assert (fresh(job).status, fresh(job).failure_code) == ("failed", "neuron_restarted")
    assert reconciling.jobs_known().num_failures == {}


def test_a_stage_that_stands_still_is_still_reported(job, build) -> None:
    progress = LoadProgress(stage=LoadStage.WARMUP)
    observe(build, job, LOADING, progress=progress)
    LoadJob.objects.update(reported_at=later(seconds=-14))
    observe(build, job, LOADING, progress=progress)
    assert services.load_jobs_expire(now=later(seconds=10)) == 0
