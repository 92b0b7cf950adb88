"""One control leads, another follows within seconds, and a deposed one writes nothing more."""

from __future__ import annotations

import threading

import pytest
import redis

from fleet import services, tasks
from fleet.errors import DeposedError
from fleet.leadership import Leadership
from fleet.live.reports import Report
from fleet.models import ControlTerm, Neuron
from helexa_site.celery import TASK_FORGET_RESPONSES, TASK_ROLL_UP_SERIES, Ticks, app
from inference.protocol.keys import CONTROL_LEADER

pytestmark = pytest.mark.django_db


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


@pytest.mark.django_db(transaction=True)
def test_ticks_run_on_the_leader_alone(control, publish, monkeypatch, caplog) -> None:
    """Housekeeping that is under way is not begun again either."""
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
