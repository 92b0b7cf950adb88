"""Sleeping and waking as jobs, and who may ask for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fleet import services
from fleet.errors import CannotSleepError, ModelPinnedError, ReplicaNotFoundError
from fleet.lifecycles import LoadJobStatus
from fleet.models import CatalogueModel, LoadJob, Replica
from inference.protocol.heartbeat import ReplicaStatus, SleepRefusal
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import AsleepBytes
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.admin.admin_pages import act
from tests.fleet.conftest import GIB
from tests.fleet.services.jobs.conftest import status_of

pytestmark = pytest.mark.django_db(transaction=True)

HERE = {"model_name": "tiny", "neuron_name": "beast"}


@pytest.fixture
def publish_replica(publish: Any, build: Any, model: CatalogueModel) -> Any:
    """A heartbeat of a neuron that has the model so: in Redis, and recorded."""

    def publish_replica(status: ReplicaStatus | None = ReplicaStatus.READY, **values: Any) -> None:
        host_bytes = values.pop("host_bytes", 0)
        report = msgspec.structs.replace(
            build.report(), asleep=AsleepBytes(device_bytes=GIB, host_bytes=host_bytes)
        )
        fields = {"status": status, "report": report, "spec_digest": model.entry().spec_digest()}
        states = [] if status is None else [build.replica(**fields | values)]
        services.heartbeat_record(heartbeat=publish("beast", replicas=states))

    return publish_replica


def sleep() -> LoadJob:
    return services.sleep_job_start(actor=COMMAND, **HERE)


def test_a_sleep_goes_to_its_end(publish_replica: Any, sent: Any) -> None:
    publish_replica()
    job = sleep()
    assert sleep().pk == job.pk
    ((name, arguments, _),) = sent.tasks
    assert (name, arguments) == ("neuron.sleep_model", ["tiny", str(job.pk)])
    assert AuditEntry.objects.filter(action="model.sleep", object_id="tiny").count() == 1
    publish_replica(ReplicaStatus.DRAINING)
    assert status_of(job) == LoadJobStatus.RUNNING
    publish_replica(ReplicaStatus.ASLEEP, memory_bytes=GIB, host_memory_bytes=7)
    assert status_of(job) == LoadJobStatus.SUCCEEDED
    replica = Replica.objects.get()
    assert (replica.status, replica.memory_bytes, replica.host_memory_bytes) == ("asleep", GIB, 7)


def test_one_that_is_gone_or_refused_did_not_fall_asleep(publish_replica: Any, sent: Any) -> None:
    publish_replica()
    job = sleep()
    publish_replica(None)
    assert status_of(job) == LoadJobStatus.FAILED
    publish_replica()
    job = sleep()
    full = LoadFailure(code="cannot_sleep", message="It serves on: the host is full")
    for refused in ("an-earlier-one", str(job.pk)):
        assert status_of(job) == LoadJobStatus.PENDING
        publish_replica(sleep_refusal=SleepRefusal(job_id=refused, failure=full, at_unix_s=1.0))
    job.refresh_from_db()
    assert (job.status, job.failure_message) == (LoadJobStatus.FAILED, full.message)


def test_what_is_unloaded_is_not_put_to_sleep_and_an_unload_comes_first(
    publish_replica: Any, sent: Any
) -> None:
    publish_replica()
    asleep = sleep()
    unload = services.unload_job_start(actor=COMMAND, **HERE)
    assert unload.pk != asleep.pk
    assert status_of(asleep) == LoadJobStatus.CANCELLED
    assert sleep().pk == unload.pk


def test_what_cannot_sleep_names_the_reason(
    publish_replica: Any, build: Any, model: CatalogueModel, sent: Any
) -> None:
    ready = ReplicaStatus.READY
    for status, values, why in (
        (ReplicaStatus.LOADING, {}, "it is loading on beast"),
        (ReplicaStatus.ASLEEP, {}, "it is asleep on beast"),
        (ready, {"host_bytes": 7 * GIB}, "need 7,516,192,768 bytes of the memory"),
        (ready, {"report": build.report()}, "models of its kind are only unloaded"),
    ):
        publish_replica(status, **values)
        with pytest.raises(CannotSleepError, match=why):
            sleep()
    publish_replica()
    model.pinned = True
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["pinned"])
    with pytest.raises(ModelPinnedError, match="unpin it"):
        sleep()
    assert sent.tasks == []


def test_waking_is_a_load_where_it_sleeps(publish_replica: Any, sent: Any) -> None:
    publish_replica()
    with pytest.raises(ReplicaNotFoundError, match="tiny sleeps nowhere"):
        services.wake_job_start(actor=COMMAND, **HERE)
    with pytest.raises(ReplicaNotFoundError, match="sleeps nowhere"):
        services.model_wake_everywhere(actor=COMMAND, model_name="tiny")
    publish_replica(ReplicaStatus.ASLEEP, memory_bytes=GIB)
    (job,) = services.model_wake_everywhere(actor=COMMAND, model_name="tiny")
    ((name, (spec,), _),) = sent.tasks
    assert (name, spec["devices"], job.kind) == ("neuron.load_model", ["cpu"], "load")
    publish_replica(ReplicaStatus.LOADING, job_id=str(job.pk))
    assert status_of(job) == LoadJobStatus.RUNNING
    publish_replica(job_id=str(job.pk))
    assert status_of(job) == LoadJobStatus.SUCCEEDED


def test_a_status_counts_before_it_is_recorded(
    publish: Any, publish_replica: Any, build: Any, model: CatalogueModel, sent: Any
) -> None:
    """A request was answered by a replica that the recorded rows call loading still."""
    report = msgspec.structs.replace(
        build.report(), asleep=AsleepBytes(device_bytes=GIB, host_bytes=0)
    )
    digest = model.entry().spec_digest()
    publish_replica(ReplicaStatus.LOADING)
    publish("beast", replicas=[build.replica(report=report, spec_digest=digest)])
    (job,) = services.model_sleep_everywhere(actor=COMMAND, model_name="tiny")
    assert (job.kind, job.neuron.name) == ("sleep", "beast")
    sleeping = build.replica(status=ReplicaStatus.ASLEEP, report=report, spec_digest=digest)
    publish("beast", replicas=[sleeping])
    (job,) = services.model_wake_everywhere(actor=COMMAND, model_name="tiny")
    assert (job.kind, job.neuron.name) == ("load", "beast")


def test_one_that_cannot_be_woken_fails_its_job_and_sleeps_on(
    publish_replica: Any, sent: Any
) -> None:
    publish_replica(ReplicaStatus.ASLEEP, memory_bytes=GIB)
    job = services.wake_job_start(actor=COMMAND, **HERE)
    publish_replica(ReplicaStatus.ASLEEP, job_id="an-earlier-one", memory_bytes=GIB)
    assert status_of(job) == LoadJobStatus.PENDING
    full = LoadFailure(code="does_not_fit", message="no room")
    publish_replica(ReplicaStatus.ASLEEP, job_id=str(job.pk), memory_bytes=GIB, failure=full)
    assert status_of(job) == LoadJobStatus.FAILED
    assert Replica.objects.get().failure_message == "no room"


@pytest.mark.parametrize("status", [ReplicaStatus.ASLEEP, ReplicaStatus.DRAINING])
def test_a_load_that_no_heartbeat_shows_ready_has_succeeded(
    publish_replica: Any, build: Any, sent: Any, status: ReplicaStatus
) -> None:
    """The replica fell asleep, or began to, before the next heartbeat."""
    publish_replica(None)
    job = services.load_job_start(actor=COMMAND, **HERE)
    publish_replica(ReplicaStatus.LOADING, job_id=str(job.pk), report=None)
    assert status_of(job) == LoadJobStatus.RUNNING
    publish_replica(status, job_id=str(job.pk), memory_bytes=GIB)
    assert status_of(job) == LoadJobStatus.SUCCEEDED
    assert CatalogueModel.objects.get().weight_bytes == build.report().weight_bytes


def test_one_that_slept_before_a_heartbeat_showed_it_ready_is_woken(
    publish_replica: Any, sent: Any
) -> None:
    publish_replica(None)
    load = services.load_job_start(actor=COMMAND, **HERE)
    publish_replica(ReplicaStatus.LOADING, job_id=str(load.pk), report=None)
    publish_replica(ReplicaStatus.ASLEEP, job_id=str(load.pk), memory_bytes=GIB)
    sent.tasks.clear()
    wake = services.load_job_start(actor=COMMAND, **HERE)
    assert wake.pk != load.pk
    assert [name for name, _, _ in sent.tasks] == ["neuron.load_model"]
    publish_replica(ReplicaStatus.ASLEEP, job_id=str(load.pk), memory_bytes=GIB)
    assert status_of(wake) == LoadJobStatus.PENDING


@pytest.mark.parametrize("has_report", [True, False])
def test_a_load_that_is_unloaded_before_it_is_ready_is_cancelled(
    publish_replica: Any, build: Any, sent: Any, has_report: bool
) -> None:
    """The replica was to wake, with the report of an earlier load, or had never been loaded."""
    publish_replica(None)
    load = services.load_job_start(actor=COMMAND, **HERE)
    services.unload_job_start(actor=COMMAND, **HERE)
    values = {"report": build.report() if has_report else None}
    publish_replica(ReplicaStatus.DRAINING, job_id=str(load.pk), **values)
    assert status_of(load) == LoadJobStatus.CANCELLED


def test_the_admin_puts_a_replica_to_sleep_and_wakes_it(
    admin_client: Any, publish_replica: Any, sent: Any
) -> None:
    publish_replica()
    act(admin_client, "replica", "sleep_selected", Replica.objects.get())
    publish_replica(ReplicaStatus.ASLEEP)
    act(admin_client, "replica", "wake_selected", Replica.objects.get())
    assert [name for name, *_ in sent.tasks] == ["neuron.sleep_model", "neuron.load_model"]
