"""Reloads, each kind up to its end; what the control decides becomes jobs, each once."""

from __future__ import annotations

import contextlib
from functools import partial

import msgspec
import pytest

from fleet import leadership, selectors, services
from fleet.errors import ReplicaNotFoundError
from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES, LoadJobKind, LoadJobStatus
from fleet.live.snapshot import build_snapshot
from fleet.models import CatalogueModel, LoadJob, Neuron, NeuronWish
from fleet.placement import Load, place
from fleet.placement.decisions import Observed, Plan
from fleet.services.load_jobs import reload_plan
from fleet.watch import Watched
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadFailure
from metering.audit import COMMAND, CONTROL, GATEWAY
from metering.models import AuditEntry
from tests.cases import each_case
from tests.fleet.conftest import GIB, change, offer
from tests.fleet.services.conftest import HERE, later, names, status_of

pytestmark = pytest.mark.django_db(transaction=True)

OLD = {"job_id": "old", "spec_digest": "0123456789abcdef"}


def reload() -> LoadJob:
    return services.reload_job_start(**HERE)


def test_plan(build, model) -> None:
    ready = {word: [build.replica(status=word, memory_bytes=4 * GIB)] for word in ReplicaStatus}
    less = {"devices": [build.device(free_memory_bytes=GIB)]}
    wait = "In place; requests wait meanwhile:"
    for beast, beauty, plan in (
        ("ready", {}, "beauty"),
        ("ready", {"replicas": ready["ready"]}, "In place: beauty serves it meanwhile"),
        ("ready", {"replicas": ready["loading"]}, f"{wait} tiny is loading on beauty"),
        ("ready", less, f"{wait} beauty has less room for it"),
        ("ready", {"devices": []}, f"{wait} no other neuron has room"),
        ("failed", {}, "In place: it serves no requests now"),
        ("", {}, "In place: it serves no requests now"),
    ):
        here = build.heartbeat(replicas=ready.get(beast, []))
        snapshot = build_snapshot([here, build.heartbeat("beauty", **beauty)])
        found = reload_plan(model.entry(), "beast", snapshot)
        assert (found.neuron if isinstance(found, Load) else found).startswith(plan)


@pytest.fixture
def replacing(model, beat, build, sent) -> LoadJob:
    """A reload of what beast has, while beauty has room for another."""
    beat(replicas=[build.replica(**OLD)])
    beat("beauty")
    return reload()


def test_the_old_one_serves_until_another_is_ready(replacing, beat, build, sent, publish) -> None:
    job = replacing
    assert (job.replacement.neuron.name, job.status) == ("beauty", LoadJobStatus.PENDING)
    assert "on beauty first" in job.note
    assert names(sent) == [("load_model", "beauty")]
    beat(replicas=[build.replica(**OLD)])
    LoadJob.objects.exclude(pk=job.pk).update(status="running", reported_at=None)
    LoadJob.objects.filter(pk=job.pk).update(created_at="2020-01-01T00:00:00Z")
    assert services.load_jobs_expire() == 0, "it waits for its replacement"
    assert (status_of(job), len(sent.tasks)) == (LoadJobStatus.PENDING, 1)
    beat("beauty", replicas=[build.replica(job_id=str(job.replacement.pk))])
    heartbeat = publish("beast", replicas=[build.replica(**OLD)])
    with contextlib.suppress(ZeroDivisionError), leadership.this_control.fenced():
        services.heartbeat_record(heartbeat=heartbeat)
        raise ZeroDivisionError
    for _ in range(2):  # a tick that is rolled back has sent nothing
        with leadership.this_control.fenced():
            services.heartbeat_record(heartbeat=heartbeat)
            assert len(sent.tasks) == 1 + _
    assert names(sent)[1:] == [("unload_model", "beast")]
    beat(replicas=[build.replica(**OLD, status=ReplicaStatus.DRAINING)])
    assert status_of(job) == LoadJobStatus.RUNNING
    beat()
    assert status_of(job) == LoadJobStatus.SUCCEEDED


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_without_another_the_old_one_serves(replacing, beat, build, sent, is_cancelled) -> None:
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    state = {"status": ReplicaStatus.FAILED, "failure": failure}
    if is_cancelled:
        services.load_job_cancel(actor=COMMAND, job=replacing)
        state = {"status": ReplicaStatus.DRAINING}
    beat("beauty", replicas=[build.replica(job_id=str(replacing.replacement.pk), **state)])
    beat(replicas=[build.replica(**OLD)])
    replacing.refresh_from_db()
    ended = (replacing.status, replacing.failure_code)
    assert ended == (("cancelled", "") if is_cancelled else ("failed", "does_not_fit"))
    assert is_cancelled or "beast serves on" in replacing.failure_message
    assert names(sent)[1:] == [("unload_model", "beauty")] * is_cancelled


def test_in_place_only_its_own_replica_ends_it(model, beat, build, sent) -> None:
    beat()
    with pytest.raises(ReplicaNotFoundError, match="load it instead"):
        reload()
    beat(replicas=[build.replica(**OLD)])
    job = reload()
    assert reload().pk == job.pk
    assert names(sent) == [("load_model", "beast")]
    same = {"spec_digest": model.entry().spec_digest()}
    for job_id, values, expected in (
        ("x", same, LoadJobStatus.PENDING),
        (str(job.pk), {"status": ReplicaStatus.LOADING}, LoadJobStatus.RUNNING),
        (str(job.pk), same, LoadJobStatus.SUCCEEDED),
    ):
        beat(replicas=[build.replica(job_id=job_id, **values)])
        assert status_of(job) == expected
    reload()
    assert names(sent)[1:] == [("unload_model", "beast"), ("load_model", "beast")]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_everywhere_is_one_after_the_other(model, beat, build, sent, is_cancelled: bool) -> None:
    for name in ("beast", "beauty"):
        beat(name, replicas=[build.replica(**OLD)])
    first, second = services.model_reload_everywhere(actor=COMMAND, model_name="tiny")
    assert "beauty serves it meanwhile" in first.note and "after beast" in second.note
    beat("beauty", replicas=[build.replica(**OLD)])
    if is_cancelled:
        assert services.load_job_cancel(actor=COMMAND, job=second).pk == second.pk
        assert (status_of(first), status_of(second)) == ("pending", "cancelled")
    assert names(sent) == [("load_model", "beast")]
    beat(replicas=[build.replica(job_id=str(first.pk))])
    for _ in range(2):
        beat("beauty", replicas=[build.replica(**OLD)])
    assert names(sent)[1:] == [("load_model", "beauty")] * (not is_cancelled)
    if not is_cancelled:
        assert status_of(second) == LoadJobStatus.RUNNING
        beat("beauty", replicas=[build.replica(job_id=str(second.pk))])
        assert status_of(second) == LoadJobStatus.SUCCEEDED


def tick(*heartbeats) -> Plan:
    watched = Watched(build_snapshot(heartbeats), Observed(), ())
    plan = services.fleet_plan(watched=watched, time_slices=())
    services.plan_begin(plan=plan)
    return plan


@pytest.fixture
def pinned() -> CatalogueModel:
    return offer(pinned=True)


def test_failures_of_a_pinned_model_put_off_the_next_try(pinned, sent, build) -> None:
    assert len(tick(build.heartbeat()).actions) == 1
    assert not LoadJob.objects.exists(), "a neuron that is not recorded yet is tried next time"
    services.heartbeat_record(heartbeat=build.heartbeat())
    job = {"model": pinned, "model_name": pinned.name, "neuron": Neuron.objects.get()}
    for codes, age_s, num_loads in (
        (["download_failed"] * 2, 15, 0),
        (["download_failed"] * 2, 65, 1),
        (["download_failed", ""], 0, 1),
        (["lost_its_room", "neuron_restarted"], 0, 1),
    ):
        LoadJob.objects.all().delete()
        for code in codes:
            ended = {"status": "failed" if code else "succeeded", "failure_code": code}
            LoadJob.objects.create(**job, **ended, finished_at=later(seconds=-age_s))
        assert len(tick(build.heartbeat()).actions) == num_loads


def test_what_still_runs_when_a_drains_time_is_over_ends(pinned, neuron, sent, build) -> None:
    drain = partial(services.neuron_drain, actor=COMMAND, neuron_name="beast")
    beat = build.heartbeat(replicas=[build.replica(stats=build.stats(in_flight=1))])
    services.heartbeat_record(heartbeat=beat)
    drain(within_s=60)
    first = NeuronWish.objects.get().drain_wanted_at
    assert tick(beat).actions == ()
    drain(within_s=0)
    drain()
    wish = NeuronWish.objects.get()
    assert (wish.drain_wanted_at, wish.drain_ends_at) == (first, None), "it takes its end back"
    drain(within_s=0)
    for _ in range(2):  # it is told again until it has gone
        tick(beat)
    assert [task[:2] for task in sent.tasks] == [("neuron.unload_model", ["tiny", True])] * 2
    (job,) = LoadJob.objects.all()
    assert (job.kind, job.neuron.name) == (LoadJobKind.UNLOAD, "beast")
    details = AuditEntry.objects.filter(action="neuron.drain").order_by("pk")
    assert [one.detail for one in details][:2] == [{"within_s": 60}, {"within_s": 0}]
    services.neuron_resume(actor=COMMAND, neuron_name="beast")
    LoadJob.objects.all().delete()
    assert tick(build.heartbeat(replicas=[build.replica()])).actions == ()


def test_two_gateways_that_decide_differently_start_one_load(pinned, sent, build) -> None:
    for name in ("beast", "twin"):
        services.heartbeat_record(heartbeat=build.heartbeat(name))
    for name, is_one_more, num_jobs in (("beast", 0, 1), ("twin", 0, 1), ("twin", 1, 2)):
        load = Load(neuron=name, model="tiny")
        services.placed_load_start(actor=GATEWAY, load=load, may_be_one_more=bool(is_one_more))
        assert LoadJob.objects.count() == num_jobs


@each_case("happens", ["load", "pin", "unload failed", "request", "restart"])
def test_what_was_unloaded_is_kept_again_once_wanted(pinned, neuron, build, sent, happens) -> None:
    def planned() -> list[str]:
        LoadJob.objects.filter(status__in=ACTIVE_LOAD_JOB_STATUSES).update(
            status="succeeded", finished_at=later()
        )
        services.heartbeat_record(heartbeat=reported)
        watched = Watched(build_snapshot([reported]), Observed(), ())
        plan = services.fleet_plan(watched=watched, time_slices=())
        return [action.model for action in plan.actions]

    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    services.model_unload_to_stay(actor=COMMAND, model_name="tiny", neuron_name="beast")
    reported = build.heartbeat()
    assert planned() == []
    match happens:
        case "load":
            services.load_job_start(actor=CONTROL, model_name="tiny", neuron_name="beast")
        case "pin":
            change(pinned, pinned=True)
        case "unload failed":
            services.kept_unloaded_forget(model_name="tiny")
        case "request":
            snapshot = build_snapshot([reported])
            decision = place(selectors.catalogue_by_name()["tiny"], snapshot)
            services.placed_load_start(actor=GATEWAY, load=decision)
        case "restart":
            reported = msgspec.structs.replace(reported, epoch="another")
    assert planned() == ["tiny"]
