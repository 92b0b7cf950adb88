"""Unloads, and loads that they end, from the first request to the end."""

from __future__ import annotations

import pytest
from django.utils import timezone

from fleet import services
from fleet.errors import (
    JobCannotBeCancelledError,
    ModelPinnedError,
    ReplicaNotFoundError,
    UnknownNeuronError,
)
from fleet.lifecycles import LoadJobStatus
from fleet.models import CatalogueModel, LoadJob, Replica
from fleet.services.jobs import load_jobs
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND
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


def test_an_unload_is_a_job_that_ends_when_the_replica_is_gone(model, neuron, sent, build) -> None:
    def publish_replicas(*replicas) -> LoadJob:
        services.heartbeat_record(heartbeat=build.heartbeat(replicas=list(replicas)))
        return fresh(job)

    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    job = unload()
    assert (job.kind, job.status, job.requested_by) == ("unload", "pending", str(COMMAND))
    ((name, arguments, options),) = sent.tasks
    assert (name, arguments, options["queue"]) == ("neuron.unload_model", ["tiny"], "neuron.beast")
    assert publish_replicas(build.replica()).status == LoadJobStatus.PENDING
    busy = build.stats(in_flight=2, queue_depth=1)
    draining = publish_replicas(build.replica(status=ReplicaStatus.DRAINING, stats=busy))
    assert (draining.status, draining.progress_detail) == ("running", "waiting for 3 requests")
    ended = publish_replicas()
    assert (ended.status, ended.progress_fraction) == (LoadJobStatus.SUCCEEDED, 1.0)


def test_unload_is_idempotent(model, neuron, sent, build) -> None:
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    assert unload().pk == unload().pk
    assert len(sent.tasks) == 1


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
