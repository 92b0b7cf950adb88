"""Load jobs and unloads as they are started, refused, cancelled and expired."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import services
from fleet.errors import (
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
from fleet.services.jobs import reconciling, steps
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress, LoadStage
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.services.jobs.conftest import HERE, fresh, later, names, observe, start, unload

pytestmark = pytest.mark.django_db(transaction=True)
LOADING = ReplicaStatus.LOADING


def audited(action: str) -> list[tuple[str, str, Any]]:
    entries = AuditEntry.objects.filter(action=action)
    return list(entries.values_list("actor", "object_id", "detail"))


def test_start_sends_the_spec_to_the_neurons_queue_once(model, neuron, sent) -> None:
    job = start()
    assert (job.status, job.requested_by) == (LoadJobStatus.PENDING, str(COMMAND))
    assert start().pk == job.pk and LoadJob.objects.count() == 1
    detail = {"neuron": "beast", "load_job": str(job.pk)}
    assert audited("model.load") == [(str(COMMAND), "tiny", detail)]
    ((name, (spec,), options),) = sent.tasks
    assert (name, options["queue"]) == ("neuron.load_model", "neuron.beast")
    assert msgspec.convert(spec, LoadSpec) == LoadSpec(
        job_id=str(job.pk),
        model="tiny",
        order=load_orders().order(neuron="beast", model="tiny"),
        source="pypi:tiny",
        revision="1.0",
        max_context_tokens=512,
        max_prefill_s=300,
    )
    assert 0 < options["expires"] <= 60
    CatalogueModel.objects.update(revision="2.0")
    edited = start()
    assert (edited.pk != job.pk, fresh(job).status) == (True, LoadJobStatus.CANCELLED)
    assert sent.tasks[-1][1][0]["revision"] == "2.0"
    steps.job_end(job=edited, status=LoadJobStatus.CANCELLED)
    assert start().pk != edited.pk, "the last one has ended"
    assert len(sent.tasks) == 3
    sent.broker_is_away = True
    CatalogueModel.objects.update(revision="3.0")
    for failed in (unload(), start()):
        assert (failed.status, failed.failure_code) == (LoadJobStatus.FAILED, "broker_away")
        assert fresh(failed).status == LoadJobStatus.FAILED


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


def test_where_and_what_must_go_travels_with_the_load(model, neuron, sent) -> None:
    job = services.load_job_start(**HERE, devices=("cuda:1",), evict=("other",))
    spec = msgspec.convert(sent.tasks[0][1][0], LoadSpec)
    for one in (job, spec):
        assert (one.devices, one.evict) == (["cuda:1"], ["other"])
    for device, devices in (("auto", []), ("cpu", ["cpu"]), ("cuda", ["cuda"])):
        CatalogueModel.objects.update(device=device)
        LoadJob.objects.all().delete()
        start()
        assert sent.tasks[-1][1][0].get("devices", []) == devices, "the catalogue asks for them"


def test_the_database_refuses_a_job_that_contradicts_itself(job, model, neuron) -> None:
    now = timezone.now()
    for values in (
        {"status": "dancing"},
        {"status": LoadJobStatus.SUCCEEDED},
        {"finished_at": now},
        {"status": LoadJobStatus.FAILED, "finished_at": now},
        {"failure_code": "x"},
        {},  # a second one
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron, **values)


def test_what_is_not_there_or_pinned_is_refused_and_an_unload_is_one_job(
    model, neuron, sent
) -> None:
    for begin, wrong, error in (
        (services.load_job_start, {"model_name": "other"}, UnknownModelError),
        (services.load_job_start, {"neuron_name": "other"}, UnknownNeuronError),
        (services.unload_job_start, {"neuron_name": "other"}, UnknownNeuronError),
        (services.unload_job_start, {}, ReplicaNotFoundError),
    ):
        with pytest.raises(error):
            begin(**HERE | wrong)
    CatalogueModel.objects.update(enabled=False)
    with pytest.raises(ModelDisabledError):
        start()
    Replica.objects.create(
        neuron=neuron, model_name="tiny", status="ready", status_since=timezone.now()
    )
    for changes, fix in (
        ({"enabled": True, "pinned": True}, "unpin it"),
        ({"pinned": True, "pinned_on": ["beast"]}, "unpin it"),
        ({"pinned": False, "min_replicas": 1}, "least number of replicas to 0"),
    ):
        CatalogueModel.objects.update(**changes)
        with pytest.raises(ModelPinnedError, match=fix):
            unload()
    assert sent.tasks == []
    CatalogueModel.objects.update(pinned_on=["beauty"])  # it would be loaded again, but not here
    job = unload()
    assert (job.kind, job.status, job.requested_by) == ("unload", "pending", str(COMMAND))
    assert unload().pk == job.pk
    detail = {"neuron": "beast", "load_job": str(job.pk)}
    assert audited("model.unload") == [(str(COMMAND), "tiny", detail)]
    ((name, arguments, options),) = sent.tasks
    assert (name, arguments, options["queue"]) == ("neuron.unload_model", ["tiny"], "neuron.beast")
    services.unload_job_start(**HERE, at_once=True)
    assert sent.tasks[-1][1] == ["tiny", True], "also where one waits for its requests"


@pytest.mark.parametrize("code", ["not_picked_up", "neuron_away", "load_lost"])
def test_a_job_fails_that_nobody_picks_up_or_whose_neuron_stays_away_or_forgot_it(
    job, build, code: str
) -> None:
    limit_s = 70 if code == "not_picked_up" else 15
    if code != "not_picked_up":
        progress: dict[str, Any] = {"progress": LoadProgress(stage=LoadStage.WARMUP)}
        observe(build, job, LOADING, **progress)
        LoadJob.objects.update(reported_at=later(seconds=-14))
        observe(build, job, LOADING, **progress)  # a stage that stands still is still reported
    if code == "neuron_away":
        services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    elif code == "load_lost":
        services.heartbeat_record(heartbeat=build.heartbeat())
    assert services.load_jobs_expire(now=later(seconds=limit_s - 1)) == 0
    assert services.load_jobs_expire(now=later(seconds=limit_s + 1)) == 1
    assert fresh(job).failure_code == code
    assert services.load_jobs_expire(now=later(seconds=limit_s + 1)) == 0


def test_cancelling_a_load_unloads_it_and_a_restarted_neuron_has_lost_it_or_resumes(
    job, build, sent
) -> None:
    """At once, and not as a failure of the model's: it is loaded anew without a pause."""
    ending = services.load_job_cancel(actor=COMMAND, job=job)
    assert names(sent) == [("load_model", "beast"), ("unload_model", "beast")]
    with pytest.raises(JobCannotBeCancelledError, match="An unload cannot be called back"):
        services.load_job_cancel(actor=COMMAND, job=ending)
    steps.job_end(job=job, status=LoadJobStatus.CANCELLED)
    with pytest.raises(JobCannotBeCancelledError, match="has ended"):
        services.load_job_cancel(actor=COMMAND, job=job)
    LoadJob.objects.all().delete()
    job = start()
    loading = build.replica(job_id=str(job.pk), status=LOADING)
    observe(build, job, LOADING)
    services.heartbeat_record(heartbeat=build.heartbeat(epoch="second", replicas=[loading]))
    assert fresh(job).status == LoadJobStatus.RUNNING
    services.heartbeat_record(heartbeat=build.heartbeat(epoch="third"))
    assert (fresh(job).status, fresh(job).failure_code) == ("failed", "neuron_restarted")
    assert reconciling.jobs_known().num_failures == {}
