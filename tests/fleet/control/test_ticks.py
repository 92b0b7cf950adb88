"""The control's ticks over a real Redis: what one records and decides, which of them pass because
nothing has changed, what is remembered from tick to tick, and queues and devices as samples."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest
import redis
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from fleet import services, tasks
from fleet.control import idle, leadership
from fleet.control.idle import IdleTicks
from fleet.control.samples import Samples
from fleet.control.watch import GATEWAY_SILENCE_S, FleetWatch
from fleet.lifecycles import NeuronStatus
from fleet.live import reading as live
from fleet.live.absences import GRACE_S, Absences
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot
from fleet.models import CatalogueModel, Device, Invitation, LoadJob, Neuron
from fleet.placement.decisions import Plan
from fleet.placement.reconcile import reconcile
from fleet.services.jobs import reconciling
from helexa_site.celery import EVERY_S, app
from inference.protocol import keys
from inference.protocol.heartbeat import (
    ReplicaStatus,
    WaitingModel,
    WaitingReport,
    encode_waiting_report,
)
from metering.actor import COMMAND
from metering.models import SeriesRow
from tests.fleet.placement.fleets import busy, card, fleet, neuron, replica

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def none_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "idle_ticks", IdleTicks())


@pytest.fixture
def passes(publish: Any, build: Any) -> Iterator[Callable[[], bool]]:
    """Whether a tick passes. The fleet has settled, with one loaded model."""
    if connection.vendor != "sqlite":
        pytest.skip("elsewhere every tick is whole")

    def tick_passes() -> bool:
        with CaptureQueriesContext(connection) as queries:
            tasks.tick()
        return not len(queries)

    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    publish(replicas=[build.replica(stats=build.stats())])
    # The first publishes the desired states, which the second finds.
    assert [tick_passes(), tick_passes(), tick_passes()] == [False, False, True]
    yield tick_passes


def test_what_works_or_changes_has_whole_ticks(passes, publish, build, redis_db) -> None:
    device = build.device(free_memory_bytes=1, utilization_percent=3)
    stats = build.stats(decode_tokens_per_s=9.0)
    publish(replicas=[build.replica(stats=stats)], devices=[device], time_unix_s=1_700_000_001.0)
    assert passes(), "clocks and free memory are no change"
    for work in ({"in_flight": 1}, {"queue_depth": 1}):
        publish(replicas=[build.replica(stats=build.stats(**work))])
        assert [passes(), passes(), passes()] == [False, False, False]
    publish(replicas=[])
    assert [passes(), passes()] == [False, True]
    services.catalogue_model_create(actor=COMMAND, name="other", source="pypi:tiny")
    assert [passes(), passes()] == [False, True]
    report = WaitingReport(beat=1, models={"?": WaitingModel(num_requests=1, oldest_s=1.0)})
    redis_db.hset(keys.WAITING, "gateway", encode_waiting_report(report))
    assert [passes(), passes()] == [False, False]
    redis_db.delete(keys.WAITING)
    assert [passes(), passes()] == [False, True]
    Invitation.objects.create(neuron_name="attic", secret_sha256="0" * 64)
    assert [passes(), passes(), passes()] == [False, False, False]


def test_a_change_by_another_process_is_seen(tmp_path) -> None:
    path = tmp_path / "other.sqlite3"
    with sqlite3.connect(path) as ours, sqlite3.connect(path) as theirs:
        ours.execute("PRAGMA journal_mode=WAL")
        theirs.execute("CREATE TABLE t (n)")
        before = idle.data_version(ours)
        assert idle.data_version(ours) == before
        theirs.execute("INSERT INTO t VALUES (1)")
        theirs.commit()
        assert idle.data_version(ours) != before


def test_at_rest_hosts_are_seen_and_nothing_is_decided(passes, publish, build, monkeypatch) -> None:
    def seen() -> tuple[datetime, int]:
        device = Device.objects.get()
        return device.neuron.last_seen_at, device.free_memory_bytes

    before, _ = seen()
    now_s, planned = time.monotonic(), spied_plans(monkeypatch)
    stats = build.stats()
    publish(replicas=[build.replica(stats=stats)], devices=[build.device(free_memory_bytes=12345)])
    monkeypatch.setattr(time, "monotonic", lambda: now_s + idle.REFRESH_EVERY_S)
    assert [passes(), passes()] == [False, True]
    after, free_bytes = seen()
    assert (after > before, free_bytes, planned) == (True, 12345, [])
    monkeypatch.setattr(time, "monotonic", lambda: now_s + idle.AT_REST_EVERY_S)
    assert [passes(), passes()] == [False, True]
    assert planned == [1]

    # What the clock alone brings waits a few seconds.
    tiny = CatalogueModel.objects.get()
    tiny.idle_ttl_s = 3600
    services.catalogue_model_update(actor=COMMAND, model=tiny, changed_fields=["idle_ttl_s"])
    assert [passes(), passes()] == [False, True]
    later_s = time.monotonic() + idle.WHOLE_TICK_EVERY_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert [passes(), passes()] == [False, True]
    assert planned == [1, 1, 1]


def spied_plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each plan that is made from now on."""
    planned: list[int] = []
    plan = services.fleet_plan

    def spied(**named: Any) -> Plan:
        planned.append(1)
        return plan(**named)

    monkeypatch.setattr(services, "fleet_plan", spied)
    return planned


def test_a_tick_that_breaks_is_not_taken_as_done(passes, publish, monkeypatch) -> None:
    publish(replicas=[], devices=[])

    def broken(**_: Any) -> None:
        raise msgspec.ValidationError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(services, "fleet_plan", broken)
        with pytest.raises(msgspec.ValidationError):
            tasks.tick()
    assert not passes()


def test_a_pinned_model_from_first_heartbeat_to_loaded(publish, build, sent, monkeypatch) -> None:
    in_transaction: list[bool] = []

    def think(*args: Any, **named: Any) -> Plan:
        in_transaction.append(connection.in_atomic_block)
        return reconcile(*args, **named)

    monkeypatch.setattr(reconciling, "reconcile", think)
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny", pinned=True)
    publish()
    tasks.tick()
    job = LoadJob.objects.get()
    assert in_transaction == [False], "nothing is locked while the control thinks"
    assert (job.neuron.name, job.requested_by, job.devices) == ("beast", "control", ["cpu"])
    ((name, (spec,), _),) = sent.tasks
    assert (name, spec["devices"]) == ("neuron.load_model", ["cpu"])
    for status, expected in (("loading", "running"), ("ready", "succeeded")):
        publish(replicas=[build.replica(job_id=str(job.pk), status=ReplicaStatus(status))])
        tasks.tick()
        job.refresh_from_db()
        assert job.status == expected
    assert LoadJob.objects.count() == 1


def test_a_neuron_that_falls_silent_is_marked_away(publish, redis_db, monkeypatch) -> None:
    publish()
    tasks.tick()
    with monkeypatch.context() as patched:
        nowhere = redis.Redis.from_url("redis://127.0.0.1:1/0")
        patched.setattr(live, "redis_client", lambda: nowhere)
        tasks.tick()  # while Redis is away nothing is recorded
    redis_db.delete(keys.heartbeat_key("beast"))
    began_s = time.monotonic()
    for term_began_s, status in (
        (began_s, NeuronStatus.ONLINE),  # it may be connecting
        (began_s - tasks.CONNECTING_S, NeuronStatus.AWAY),
    ):
        monkeypatch.setattr(leadership.this_control, "_term_began_s", term_began_s)
        tasks.tick()
        assert Neuron.objects.get().status == status


def test_every_tick_has_its_task_and_messages_are_json_and_nothing_else() -> None:
    app.loader.import_default_modules()  # as a worker does at its start
    assert set(EVERY_S) <= set(app.tasks)
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
    assert app.conf.task_ignore_result


EMPTY = fleet()
HOLDER = neuron("a", card(free=2), holds=(replica("tiny"),))


def report(beat: int, **oldest_s: float) -> WaitingReport:
    models = {
        name: WaitingModel(num_requests=2, oldest_s=age_s) for name, age_s in oldest_s.items()
    }
    return WaitingReport(beat=beat, models=models)


def test_a_neuron_that_falls_silent_is_expected_back_for_a_while() -> None:
    absences = Absences()
    assert absences.noted(fleet(HOLDER), 0.0).absent == ()
    blinking = absences.noted(EMPTY, 3.0)
    assert blinking.absent_holders("tiny") == ("a",)
    assert blinking.absent_holders("other") == ()
    assert absences.noted(fleet(HOLDER), 5.0).absent == ()
    assert absences.noted(EMPTY, 5.0 + GRACE_S).absent == ()
    assert absences.noted(EMPTY, 6.0).absent == (), "once given up it is not expected again"
    absences.noted(fleet(replace(HOLDER, is_leaving=True)), 7.0)
    assert absences.noted(EMPTY, 8.0).absent == (), "it announced its end"


def test_what_waits_at_all_gateways_is_added_up_until_one_is_dead() -> None:
    watch = FleetWatch()
    reports = {"g1": report(1, tiny=4.0), "g2": report(9, tiny=7.0)}
    waiting = watch.look(EMPTY, reports, 0.0).observed.waiting["tiny"]
    assert (waiting.num_requests, waiting.oldest_s) == (4, 7.0)
    assert watch.look(EMPTY, reports, GATEWAY_SILENCE_S - 1).gone_gateways == ()
    dead = watch.look(EMPTY, reports | {"g1": report(2, tiny=1.0)}, GATEWAY_SILENCE_S)
    assert dead.gone_gateways == ("g2",)
    assert dead.observed.waiting["tiny"].num_requests == 2
    assert watch.look(EMPTY, {"g2": report(10, tiny=1.0)}, 9.0).gone_gateways == ()


def test_how_long_a_queue_has_been_long() -> None:
    watch = FleetWatch()

    def long_s(queue_depth: int, now_s: float) -> float | None:
        crowded = fleet(neuron("a", card(free=2), holds=(busy("tiny", queue_depth=queue_depth),)))
        return watch.look(crowded, {}, now_s).observed.queue_long_s.get("tiny")

    assert [long_s(9, 0.0), long_s(9, 4.0), long_s(0, 5.0), long_s(9, 6.0), long_s(9, 8.0)] == [
        0.0,
        4.0,
        None,
        0.0,
        2.0,
    ]


TIME_SLICE = TimeSlice(model="tiny", neuron="a", devices=("cuda:0",), device_bytes=1)


def test_time_slices_grow_older_and_a_control_that_takes_over_keeps_them() -> None:
    watch = FleetWatch()
    published = FleetSnapshot(neurons=(), time_slices=(TIME_SLICE,))
    assert watch.time_slices(published, 0.0) == (TIME_SLICE,)
    watch.keep([TIME_SLICE], 10.0)
    for now_s, age_s in ((14.0, 4.0), (15.0, 5.0)):
        (time_slice,) = watch.time_slices(EMPTY, now_s)
        assert time_slice.age_s == age_s
        watch.keep([time_slice], now_s)
    watch.keep([], 16.0)
    assert watch.time_slices(published, 17.0) == ()


@pytest.mark.django_db(transaction=True)
def test_ticks_sample_and_housekeeping_stores(
    publish: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "samples", Samples())
    publish(replicas=[build.replica(stats=build.stats(queue_depth=2))])
    now_unix_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_unix_s - 90)
    tasks.tick()
    monkeypatch.setattr(time, "time", lambda: now_unix_s)

    def away(*_args: Any, **_options: Any) -> None:
        raise OperationalError("the server is gone")

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "figures_add", away)
        tasks.roll_up_series()
    assert not SeriesRow.objects.exists()
    for _ in range(2):
        tasks.roll_up_series()
    rows = {(row.kind, row.name): row.figures for row in SeriesRow.objects.all()}
    assert rows.keys() == {
        *(("fleet", ""), ("neuron", "beast"), ("model", "tiny"), ("device", "beast/cpu")),
    }
    assert (rows["model", "tiny"]["samples"], rows["model", "tiny"]["queue_depth+"]) == (1, 2)
