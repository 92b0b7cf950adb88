"""Load jobs along their lifecycle, by their neuron's heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fleet import selectors, services
from fleet.errors import (
    CannotSleepError,
    IllegalTransitionError,
    ModelPinnedError,
    ReplicaNotFoundError,
)
from fleet.lifecycles import LoadJobStatus
from fleet.models import CatalogueModel, LoadJob, Replica
from fleet.services import job_steps
from inference.protocol.heartbeat import ReplicaStatus, SleepRefusal
from inference.protocol.load_report import AsleepBytes, LoadFailure, LoadProgress, LoadStage
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.cases import each_case
from tests.fleet.conftest import GIB
from tests.fleet.services.conftest import HERE, fresh, later, observe, start, status_of, unload

pytestmark = pytest.mark.django_db(transaction=True)

READY, LOADING, FAILED = ReplicaStatus.READY, ReplicaStatus.LOADING, ReplicaStatus.FAILED
ASLEEP, DRAINING = ReplicaStatus.ASLEEP, ReplicaStatus.DRAINING
NO_ROOM = LoadFailure(code="does_not_fit", message="no room")
Observe = Callable[..., None]


@pytest.fixture
def has(beat: Any, build: Any, model: CatalogueModel) -> Observe:
    """A heartbeat of beast, which has the model so, with this job's replica; ``None``: not at
    all."""

    def has(status: ReplicaStatus | None = READY, of: Any = "old", **values: Any) -> None:
        asleep = AsleepBytes(device_bytes=GIB, host_bytes=values.pop("host_bytes", 0))
        values = {
            "job_id": str(of.pk) if isinstance(of, LoadJob) else of,
            "status": status,
            "report": build.report(asleep=asleep),
            "spec_digest": model.entry().spec_digest(),
        } | values
        beat(replicas=[] if status is None else [build.replica(**values)])

    return has


def sleep() -> LoadJob:
    return services.sleep_job_start(**HERE)


VALUES: dict[str, dict[str, Any]] = {
    "": {},
    "no-room": {"failure": NO_ROOM},
    "other-spec": {"spec_digest": "0123456789abcdef"},
    "no-spec": {"spec_digest": ""},
    "untimed": {"report": None},
}
UNSURE = "ready x no-spec pending, ready x other-spec pending, failed x pending, loading x pending"
"""Each report is a replica's status, whose job's it is, other values, and the job's status then."""


@pytest.mark.parametrize(
    ("begin", "reports"),
    [
        (start, "loading own running, ready own succeeded"),
        (start, "failed own no-room failed"),
        (start, "failed own failed"),
        (start, f"{UNSURE}, ready x succeeded"),
        # One that fell asleep before a heartbeat showed it ready, and one that began to.
        (start, "loading own untimed running, asleep own succeeded"),
        (start, "loading own untimed running, draining own succeeded"),
        (start, "draining own untimed cancelled"),
        # A wake without room.
        (start, "asleep x pending, asleep own no-room failed"),
        (unload, "ready x pending, draining x running, gone x succeeded"),
        (unload, "loading newer succeeded"),
        (sleep, "ready x pending, draining x running, asleep x succeeded"),
        (sleep, "gone x failed"),
        (sleep, "loading newer cancelled"),
    ],
)
def test_a_job_follows_its_neurons_reports(has, sent, begin, reports) -> None:
    has(None if begin is start else READY)
    job = begin()
    for report in reports.split(", "):
        status, whose, *values, expected = report.split()
        of = {"own": job, "newer": start() if whose == "newer" else None}.get(whose, whose)
        replica = None if status == "gone" else ReplicaStatus(status)
        has(replica, of, **VALUES["".join(values)])
        assert status_of(job) == expected, report
    assert (fresh(job).failure_code == "") == (expected != "failed")


def test_progress_has_a_clock_for_each_stage_and_the_model_its_size(job, build) -> None:
    def at(stage: LoadStage, done: int, job: LoadJob = job) -> LoadJob:
        progress = LoadProgress(stage=stage, done=done, total=100, detail="tiny.gguf")
        return observe(build, job, LOADING, progress=progress)

    first = at(LoadStage.DOWNLOADING, 10)
    assert (first.stage, first.progress_done, first.progress_total) == ("downloading", 10, 100)
    assert (first.progress_unit, first.progress_fraction) == ("bytes", 0.1)
    assert first.started_at is not None
    second, third = at(LoadStage.DOWNLOADING, 60), at(LoadStage.WEIGHTS, 25)
    assert (second.progress_done, third.progress_done) == (60, 25)
    assert second.stage_started_at == first.stage_started_at
    assert third.stage_started_at > second.stage_started_at
    third.stage_started_at = third.reported_at - timedelta(seconds=10)
    assert third.eta_s == 30.0, "by the stage's rate"
    third.progress_total = 0
    assert third.eta_s is None
    report = build.report(weight_bytes=77, load_seconds=60.0, actual_bytes=4 * 2**30)
    ended = observe(build, job, READY, report=report)
    assert (ended.stage, ended.progress_fraction) == ("done", 1.0)
    assert ended.progress_done == ended.progress_total and ended.finished_at is not None
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.weight_bytes == 77
    with pytest.raises(IllegalTransitionError):
        job_steps.job_end(job=ended, status=LoadJobStatus.CANCELLED)
    # The next one is estimated by it.
    again, stale = start(), LoadJob.objects.latest("created_at")
    assert again.expected_load_s == 60.0
    assert at(LoadStage.DOWNLOADING, 25, again).engine_started_at is None
    running = at(LoadStage.PREFLIGHT, 0, again)
    assert running.share is not None and running.eta_s is not None
    assert 0.0 <= running.share < 0.5 and 30.0 < running.eta_s <= 60.0
    assert job_steps.job_end(job=running, status=LoadJobStatus.CANCELLED)
    assert not job_steps.job_end(job=stale, status=LoadJobStatus.SUCCEEDED), "its claim is lost"
    assert at(LoadStage.WEIGHTS, 50, again).status == LoadJobStatus.CANCELLED


@each_case("is_taken_up", [True, False])
def test_a_load_ends_with_its_unload(model, neuron, build, sent, is_taken_up: bool) -> None:
    LoadJob.objects.all().delete()
    job = start()
    if is_taken_up:
        observe(build, job, LOADING)
    ending = unload()
    if is_taken_up:
        assert status_of(job) == LoadJobStatus.RUNNING
        wakes = {"report": build.report()}  # of an earlier load: it was to wake
        assert observe(build, job, DRAINING, **wakes).status == LoadJobStatus.CANCELLED
    else:
        services.heartbeat_record(heartbeat=build.heartbeat())  # may be older than both messages
        assert (status_of(job), status_of(ending)) == ("pending", "pending")
        LoadJob.objects.update(created_at=later(seconds=-6))
    services.heartbeat_record(heartbeat=build.heartbeat())
    assert (status_of(job), status_of(ending)) == ("cancelled", "succeeded")


def test_an_unload_reports_what_it_waits_for_and_ends_no_later_load(has, build, sent) -> None:
    has()
    job = unload()
    for number, words in ((2, "waiting for 4 requests"), (0, "ending its engine")):
        has(DRAINING, stats=build.stats(in_flight=number, queue_depth=number))
        assert fresh(job).progress_detail == words
    again = start()
    has(READY, "x")
    assert status_of(again) == LoadJobStatus.PENDING


def test_a_sleep_is_one_job_which_a_neuron_may_refuse(has: Observe, sent: Any) -> None:
    has()
    job = sleep()
    assert sleep().pk == job.pk
    ((name, arguments, _),) = sent.tasks
    assert (name, arguments) == ("neuron.sleep_model", ["tiny", str(job.pk)])
    assert AuditEntry.objects.filter(action="model.sleep", object_id="tiny").count() == 1
    full = LoadFailure(code="cannot_sleep", message="It serves on: the host is full")
    for refused in ("an-earlier-one", str(job.pk)):
        assert status_of(job) == LoadJobStatus.PENDING
        has(sleep_refusal=SleepRefusal(job_id=refused, failure=full, at_unix_s=1.0))
    assert (fresh(job).status, fresh(job).failure_message) == (LoadJobStatus.FAILED, full.message)
    has(ASLEEP, memory_bytes=GIB, host_memory_bytes=7)
    replica = Replica.objects.get()
    assert (replica.status, replica.memory_bytes, replica.host_memory_bytes) == ("asleep", GIB, 7)
    has()
    asleep, ending = sleep(), unload()
    assert (ending.pk != asleep.pk, status_of(asleep)) == (True, LoadJobStatus.CANCELLED)
    assert sleep().pk == ending.pk, "an unload comes first"


def test_what_cannot_sleep_or_wake_names_the_reason(has, publish, build, model, sent) -> None:
    for status, values, error, why in (
        (LOADING, {}, CannotSleepError, "it is loading on beast"),
        (ASLEEP, {}, CannotSleepError, "it is asleep on beast"),
        (READY, {"host_bytes": 7 * GIB}, CannotSleepError, "need 7,516,192,768 bytes of the mem"),
        (READY, {"report": build.report()}, CannotSleepError, "of its kind are only unloaded"),
        (None, {}, ReplicaNotFoundError, "is not loaded on beast"),
        (READY, {}, ModelPinnedError, "woken again at once: unpin it"),
    ):
        has(status, **values)
        CatalogueModel.objects.update(pinned=error is ModelPinnedError)
        with pytest.raises(error, match=why):
            sleep()
    CatalogueModel.objects.update(pinned=False)
    everywhere = {"actor": COMMAND, "model_name": "tiny"}
    wake = services.model_wake_everywhere
    for begin, names in ((services.wake_job_start, HERE), (wake, everywhere)):
        with pytest.raises(ReplicaNotFoundError, match="tiny sleeps nowhere"):
            begin(**names)
    assert sent.tasks == []
    # A status counts before it is recorded: a request was answered by a replica that the recorded
    # rows call loading still.
    has(LOADING)
    report = build.report(asleep=AsleepBytes(device_bytes=GIB, host_bytes=0))
    values = {"report": report, "spec_digest": model.entry().spec_digest()}
    for status, begin, kind in (
        (READY, services.model_sleep_everywhere, "sleep"),
        (ASLEEP, wake, "load"),
    ):
        publish("beast", replicas=[build.replica(status=status, **values)])
        (job,) = begin(**everywhere)
        assert (job.kind, job.neuron.name) == (kind, "beast")
    LoadJob.objects.all().delete()
    has(ASLEEP, memory_bytes=GIB)
    with pytest.raises(ReplicaNotFoundError, match="does not sleep on other"):
        services.wake_job_start(**HERE | {"neuron_name": "other"})
    (job,) = wake(**everywhere)
    name, (spec,), _ = sent.tasks[-1]
    assert (name, spec["devices"], job.kind) == ("neuron.load_model", ["cpu"], "load")
