"""One control leads and ticks: what a tick records, decides and remembers, and which pass."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import redis
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from fleet import leadership, services, tasks, watch
from fleet.errors import DeposedError
from fleet.leadership import Leadership
from fleet.lifecycles import NeuronStatus
from fleet.live import reading as live
from fleet.live.desired_state import TimeSlice
from fleet.live.reports import Report
from fleet.live.snapshot import GRACE_S, Absences, FleetSnapshot
from fleet.models import CatalogueModel, ControlTerm, Device, Invitation, LoadJob, Neuron
from fleet.placement.decisions import Plan
from fleet.placement.reconcile import reconcile
from fleet.services import reconciling
from fleet.tasks import Samples
from fleet.watch import GATEWAY_SILENCE_S, FleetWatch, IdleTicks
from helexa_site.celery import EVERY_S, TASK_FORGET_RESPONSES, TASK_ROLL_UP_SERIES, Ticks, app
from inference.protocol import keys
from inference.protocol.heartbeat import (
    WaitingModel,
    WaitingReport,
    encode_waiting_report,
)
from inference.protocol.keys import CONTROL_LEADER
from metering.models import SeriesRow
from tests.fleet.conftest import change, offer
from tests.fleet.placement.fleets import busy, card, fleet, neuron, replica

pytestmark = pytest.mark.django_db(transaction=True)
HOUSEKEEPING = (TASK_FORGET_RESPONSES, TASK_ROLL_UP_SERIES)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


LONG_S = 600


@pytest.fixture
def control(redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    # A test is one transaction, and a busy machine may let it wait.
    monkeypatch.setattr("fleet.leadership.FROZEN_SESSION_S", LONG_S)
    monkeypatch.setattr("fleet.leadership.LEASE_S", LONG_S)

    def make(clock: Clock | None = None) -> Leadership:
        return Leadership(lambda: redis_db, clock=clock or Clock())

    return make


def test_one_leads_until_it_resigns(control, redis_db) -> None:
    clock = Clock()
    first, second = control(clock), control(clock)
    for _ in range(2):
        assert first.leads() and not second.leads()
        assert 0 < redis_db.pttl(CONTROL_LEADER) <= LONG_S * 1000
        clock.now_s += 2
    assert ControlTerm.objects.get().number == 1
    second.resign()
    assert not second.leads(), "it had no lease to release"
    first.resign()
    assert second.leads() and ControlTerm.objects.get().number == 2
    redis_db.flushall()  # a Redis that came back empty begins a new term
    clock.now_s += 2
    assert second.leads()
    with second.fenced():
        pass
    assert ControlTerm.objects.get().number == 3


def test_a_silent_leader_is_followed_and_writes_nothing_more(control, redis_db, build) -> None:
    clock, clients = Clock(), [redis_db]
    first, second = (Leadership(lambda: clients[-1], clock=clock) for _ in range(2))
    assert first.leads()
    clients.append(redis.Redis.from_url("redis://127.0.0.1:1/0"))
    clock.now_s += 60
    assert first.leads() and not second.leads(), "without Redis the term holds"
    with first.fenced():
        pass
    clients.pop()
    redis_db.delete(CONTROL_LEADER)  # its lease has expired; it does not know yet
    assert second.leads()
    report = Report("beast", build.heartbeat())
    with pytest.raises(DeposedError):
        with first.fenced():
            services.report_record(report=report)
    assert not Neuron.objects.exists() and not first.leads()
    with second.fenced():
        services.report_record(report=report)
    assert Neuron.objects.exists()


def test_ticks_run_on_the_leader_alone(control, publish, monkeypatch, caplog) -> None:
    publish()
    ticks, leader = Ticks(), control()
    assert leader.leads()
    for one, num_neurons in ((control(), 0), (leader, 1)):
        monkeypatch.setattr("fleet.leadership.this_control", one)
        ticks.run(tasks.tick.name)
        assert Neuron.objects.count() == num_neurons
    ticks.run("no.such.task")
    assert "no.such.task broke" in caplog.text
    began, may_end = threading.Event(), threading.Event()
    runs: list[str] = []

    def forgetting() -> None:
        runs.append("forgetting")
        began.set()
        assert may_end.wait(60)

    monkeypatch.setitem(app.tasks, "a tick", lambda: runs.append("tick"))
    for task in HOUSEKEEPING:
        monkeypatch.setitem(app.tasks, task, forgetting)
        began.clear()
        may_end.clear()
        under_way = ticks.run(task)
        assert under_way is not None and began.wait(60)
        assert ticks.run(task) is under_way
        ticks.run("a tick")
        may_end.set()
        under_way.result(60)
    assert runs == ["forgetting", "tick"] * len(HOUSEKEEPING)
    again = ticks.run(HOUSEKEEPING[0])
    assert again is not None
    again.result(60)
    assert runs[-1] == "forgetting"


def test_each_task_runs_whenever_it_is_due(monkeypatch) -> None:
    monkeypatch.setattr("helexa_site.celery.EVERY_S", {"often": 0.001, "seldom": 0.003})
    ticks, ran = Ticks(), []

    def run(task: str) -> None:
        ran.append(task)
        if ran.count("seldom") == 3:
            ticks._stopping.set()

    monkeypatch.setattr(ticks, "run", run)
    ticks._run()
    assert ran.count("often") >= 3


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

    offer()
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
    offer("other", source="pypi:tiny")
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
        before = watch.data_version(ours)
        assert watch.data_version(ours) == before
        theirs.execute("INSERT INTO t VALUES (1)")
        theirs.commit()
        assert watch.data_version(ours) != before


def test_at_rest_hosts_are_seen_and_nothing_is_decided(passes, publish, build, monkeypatch) -> None:
    planned: list[int] = []
    plan, before = services.fleet_plan, Neuron.objects.get().last_seen_at

    def spied(**named: Any) -> Plan:
        planned.append(1)
        return plan(**named)

    def later(seconds: float) -> None:
        now_s = time.monotonic() + seconds
        monkeypatch.setattr(time, "monotonic", lambda: now_s)

    monkeypatch.setattr(services, "fleet_plan", spied)
    device = build.device(free_memory_bytes=12345)
    publish(replicas=[build.replica(stats=build.stats())], devices=[device])
    later(watch.REFRESH_EVERY_S)
    assert [passes(), passes()] == [False, True]
    device = Device.objects.get()
    assert device.neuron.last_seen_at > before
    assert (device.free_memory_bytes, planned) == (12345, [])
    later(watch.AT_REST_EVERY_S - watch.REFRESH_EVERY_S)
    assert [passes(), passes()] == [False, True]
    assert planned == [1]
    # What the clock alone brings waits a few seconds.
    change(CatalogueModel.objects.get(), idle_ttl_s=3600)
    assert [passes(), passes()] == [False, True]
    later(watch.WHOLE_TICK_EVERY_S)
    assert [passes(), passes()] == [False, True]
    assert planned == [1, 1, 1]

    def broken(**_: Any) -> None:
        raise msgspec.ValidationError("broken")

    publish(replicas=[], devices=[])
    with monkeypatch.context() as patched:
        patched.setattr(services, "fleet_plan", broken)
        with pytest.raises(msgspec.ValidationError):
            tasks.tick()
    assert not passes(), "a tick that breaks is not taken as done"


def test_a_pinned_model_from_first_heartbeat_to_loaded(publish, build, sent, monkeypatch) -> None:
    in_transaction: list[bool] = []

    def think(*args: Any, **named: Any) -> Plan:
        in_transaction.append(connection.in_atomic_block)
        return reconcile(*args, **named)

    monkeypatch.setattr(reconciling, "reconcile", think)
    offer(pinned=True)
    publish()
    tasks.tick()
    job = LoadJob.objects.get()
    assert in_transaction == [False], "nothing is locked while the control thinks"
    assert (job.neuron.name, job.requested_by, job.devices) == ("beast", "control", ["cpu"])
    assert [name for name, *_ in sent.tasks] == ["neuron.load_model"]
    publish(replicas=[build.replica(job_id=str(job.pk))])
    tasks.tick()
    assert [one.status for one in LoadJob.objects.all()] == ["succeeded"]


def test_a_neuron_that_falls_silent_is_marked_away(publish, redis_db, monkeypatch) -> None:
    publish()
    tasks.tick()
    with monkeypatch.context() as patched:
        nowhere = redis.Redis.from_url("redis://127.0.0.1:1/0")
        patched.setattr(live, "redis_client", lambda: nowhere)
        tasks.tick()  # while Redis is away nothing is recorded
    redis_db.delete(keys.heartbeat_key("beast"))
    for ago_s, status in ((0, NeuronStatus.ONLINE), (tasks.CONNECTING_S, NeuronStatus.AWAY)):
        term_began_s = time.monotonic() - ago_s  # it may be connecting
        monkeypatch.setattr(leadership.this_control, "term_began_s", term_began_s)
        tasks.tick()
        assert Neuron.objects.get().status == status


def test_every_tick_has_its_task_and_messages_are_json_and_nothing_else() -> None:
    app.loader.import_default_modules()  # as a worker does at its start
    assert set(EVERY_S) <= set(app.tasks)
    assert (app.conf.accept_content, app.conf.task_serializer) == (["json"], "json")
    assert app.conf.task_ignore_result


def test_what_waits_and_time_slices_are_remembered_from_tick_to_tick() -> None:
    def report(beat: int, age_s: float) -> WaitingReport:
        models = {"tiny": WaitingModel(num_requests=2, oldest_s=age_s)}
        return WaitingReport(beat=beat, models=models)

    empty, watch = fleet(), FleetWatch()
    reports = {"g1": report(1, 4.0), "g2": report(9, 7.0)}
    waiting = watch.look(empty, reports, 0.0).observed.waiting["tiny"]
    assert (waiting.num_requests, waiting.oldest_s) == (4, 7.0), "at all gateways"
    assert watch.look(empty, reports, GATEWAY_SILENCE_S - 1).gone_gateways == ()
    dead = watch.look(empty, reports | {"g1": report(2, 1.0)}, GATEWAY_SILENCE_S)
    assert dead.gone_gateways == ("g2",)
    assert dead.observed.waiting["tiny"].num_requests == 2
    assert watch.look(empty, {"g2": report(10, 1.0)}, 9.0).gone_gateways == ()
    # How long a queue has been long.
    watch = FleetWatch()
    for depth, now_s, long_s in ((9, 0, 0.0), (9, 4, 4.0), (0, 5, None), (9, 6, 0.0), (9, 8, 2.0)):
        crowded = neuron("a", card(free=2), holds=(busy("tiny", queue_depth=depth),))
        observed = watch.look(fleet(crowded), {}, now_s).observed
        assert observed.queue_long_s.get("tiny") == long_s
    # Time slices grow older, and a control that takes over keeps them.
    time_slice = TimeSlice(model="tiny", neuron="a", devices=("cuda:0",), device_bytes=1)
    published = FleetSnapshot(neurons=(), time_slices=(time_slice,))
    assert watch.time_slices(published, 0.0) == (time_slice,)
    watch.keep([time_slice], 10.0)
    for now_s, age_s in ((14.0, 4.0), (15.0, 5.0)):
        (older,) = watch.time_slices(empty, now_s)
        assert older.age_s == age_s
        watch.keep([older], now_s)
    watch.keep([], 16.0)
    assert watch.time_slices(published, 17.0) == ()
    # A neuron that falls silent is expected back for a while.
    absences, empty = Absences(), fleet()
    holder = neuron("a", card(free=2), holds=(replica("tiny"),))
    assert absences.noted(fleet(holder), 0.0).absent == ()
    blinking = absences.noted(empty, 3.0)
    assert (blinking.absent_holders("tiny"), blinking.absent_holders("other")) == (("a",), ())
    assert absences.noted(fleet(holder), 5.0).absent == ()
    assert absences.noted(empty, 5.0 + GRACE_S).absent == ()
    assert absences.noted(empty, 6.0).absent == (), "once given up it is not expected again"
    absences.noted(fleet(replace(holder, is_leaving=True)), 7.0)
    assert absences.noted(empty, 8.0).absent == (), "it announced its end"


def test_ticks_sample_and_housekeeping_stores(publish, build, monkeypatch) -> None:
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
        *(("fleet", ""), ("neuron", "beast"), ("model", "tiny"), ("device", "beast/cpu"))
    }
    assert (rows["model", "tiny"]["samples"], rows["model", "tiny"]["queue_depth+"]) == (1, 2)
