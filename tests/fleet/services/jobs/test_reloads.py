"""Reloads: the decision, and each kind of reload up to its end."""

from __future__ import annotations

import contextlib

import pytest

from fleet import services
from fleet.control import leadership
from fleet.errors import ReplicaNotFoundError
from fleet.lifecycles import LoadJobStatus
from fleet.live.snapshot import build_snapshot
from fleet.models import LoadJob
from fleet.placement import Load
from fleet.services.jobs.reloads import reload_plan
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure
from metering.actor import COMMAND
from tests.fleet.services.jobs.conftest import HERE, names, status_of

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3
OLD = {"job_id": "old", "spec_digest": "0123456789abcdef"}


def reload() -> LoadJob:
    return services.reload_job_start(**HERE)


@pytest.mark.parametrize(
    ("beast", "beauty", "plan"),
    [
        ("ready", None, "beauty"),
        ("ready", "ready", "In place: beauty serves it meanwhile"),
        ("ready", "loading", "In place; requests wait meanwhile: tiny is loading on beauty"),
        ("ready", "smaller", "In place; requests wait meanwhile: beauty has less room for it"),
        ("ready", "full", "In place; requests wait meanwhile: no other neuron has room"),
        ("failed", None, "In place: it serves no requests now"),
        (None, None, "In place: it serves no requests now"),
    ],
)
def test_plan(build, model, beast: str | None, beauty: str | None, plan: str) -> None:
    def beat(name: str, status: str | None):
        if status == "full":
            return build.heartbeat(name, devices=[])
        if status == "smaller":
            return build.heartbeat(name, devices=[build.device(free_memory_bytes=GIB)])
        states = (
            []
            if status is None
            else [build.replica(status=ReplicaStatus(status), memory_bytes=4 * GIB)]
        )
        return build.heartbeat(name, replicas=states)

    snapshot = build_snapshot([beat("beast", beast), beat("beauty", beauty)])
    found = reload_plan(model.entry(), "beast", snapshot)
    assert (found.neuron if isinstance(found, Load) else found).startswith(plan)


def test_in_place_only_its_own_replica_ends_it(model, report, build, sent) -> None:
    report("beast", build.replica(**OLD))
    job = reload()
    assert reload().pk == job.pk
    assert names(sent) == [("load_model", "beast")]
    same = {"spec_digest": job.spec_digest}
    report("beast", build.replica(job_id="x", **same))
    assert status_of(job) == LoadJobStatus.PENDING
    report("beast", build.replica(job_id=str(job.pk), status=ReplicaStatus.LOADING))
    assert status_of(job) == LoadJobStatus.RUNNING
    report("beast", build.replica(job_id=str(job.pk), **same))
    assert status_of(job) == LoadJobStatus.SUCCEEDED


@pytest.fixture
def replacing(model, report, build, sent) -> LoadJob:
    """A reload of what beast has, while beauty has room for another."""
    report("beast", build.replica(**OLD))
    report("beauty")
    return reload()


def test_with_room_elsewhere_the_old_one_serves_until_the_new_one_is_ready(
    replacing, report, build, sent
) -> None:
    job = replacing
    assert (job.replacement.neuron.name, job.status) == ("beauty", LoadJobStatus.PENDING)
    assert "on beauty first" in job.note
    assert names(sent) == [("load_model", "beauty")]
    report("beast", build.replica(**OLD))
    LoadJob.objects.exclude(pk=job.pk).update(status="running", reported_at=None)
    LoadJob.objects.filter(pk=job.pk).update(created_at="2020-01-01T00:00:00Z")
    assert services.load_jobs_expire() == 0, "it waits for its replacement"
    assert (status_of(job), len(sent.tasks)) == (LoadJobStatus.PENDING, 1)
    report("beauty", build.replica(job_id=str(job.replacement.pk)))
    for _ in range(2):
        report("beast", build.replica(**OLD))
    assert names(sent)[1:] == [("unload_model", "beast")]
    report("beast", build.replica(**OLD, status=ReplicaStatus.DRAINING))
    assert status_of(job) == LoadJobStatus.RUNNING
    report("beast")
    assert status_of(job) == LoadJobStatus.SUCCEEDED


def test_when_the_replacement_fails_the_old_one_serves_on(replacing, report, build, sent) -> None:
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    failed = {"status": ReplicaStatus.FAILED, "failure": failure}
    report("beauty", build.replica(job_id=str(replacing.replacement.pk), **failed))
    report("beast", build.replica(**OLD))
    replacing.refresh_from_db()
    assert (replacing.status, replacing.failure_code) == (LoadJobStatus.FAILED, "does_not_fit")
    assert "beast serves on" in replacing.failure_message
    assert len(sent.tasks) == 1


def test_cancelling_cancels_the_replacement_and_keeps_the_old_one(
    replacing, report, build, sent
) -> None:
    services.load_job_cancel(actor=COMMAND, job=replacing)
    assert names(sent)[1:] == [("unload_model", "beauty")]
    job_id = str(replacing.replacement.pk)
    report("beauty", build.replica(job_id=job_id, status=ReplicaStatus.DRAINING))
    report("beast", build.replica(**OLD))
    assert status_of(replacing) == LoadJobStatus.CANCELLED


def test_what_has_the_same_spec_is_unloaded_first(model, report, build, sent) -> None:
    report("beast")
    with pytest.raises(ReplicaNotFoundError, match="load it instead"):
        reload()
    report("beast", build.replica(job_id="old", spec_digest=model.entry().spec_digest()))
    reload()
    assert names(sent) == [("unload_model", "beast"), ("load_model", "beast")]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_everywhere_is_one_after_the_other(model, report, build, sent, is_cancelled: bool) -> None:
    for name in ("beast", "beauty"):
        report(name, build.replica(**OLD))
    first, second = services.model_reload_everywhere(actor=COMMAND, model_name="tiny")
    assert "beauty serves it meanwhile" in first.note and "after beast" in second.note
    report("beauty", build.replica(**OLD))
    if is_cancelled:
        assert services.load_job_cancel(actor=COMMAND, job=second).pk == second.pk
        assert (status_of(first), status_of(second)) == (LoadJobStatus.PENDING, "cancelled")
    assert names(sent) == [("load_model", "beast")]
    report("beast", build.replica(job_id=str(first.pk)))
    for _ in range(2):
        report("beauty", build.replica(**OLD))
    if is_cancelled:
        assert len(sent.tasks) == 1
        return
    assert names(sent)[1:] == [("load_model", "beauty")]
    assert status_of(second) == LoadJobStatus.RUNNING
    report("beauty", build.replica(job_id=str(second.pk)))
    assert status_of(second) == LoadJobStatus.SUCCEEDED


def test_a_tick_that_is_rolled_back_has_sent_nothing(
    replacing, report, build, sent, publish
) -> None:
    report("beauty", build.replica(job_id=str(replacing.replacement.pk)))
    heartbeat = publish("beast", replicas=[build.replica(**OLD)])
    sent.tasks.clear()
    with contextlib.suppress(ZeroDivisionError), leadership.this_control.fenced():
        services.heartbeat_record(heartbeat=heartbeat)
        raise ZeroDivisionError
    with leadership.this_control.fenced():
        services.heartbeat_record(heartbeat=heartbeat)
        assert names(sent) == []
    assert names(sent) == [("unload_model", "beast")]
