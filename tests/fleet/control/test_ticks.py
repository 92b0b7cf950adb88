"""The control's ticks over a real Redis: what one records and decides, and which of them pass
because nothing has changed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet import services, tasks
from fleet.control import idle, leadership
from fleet.control.idle import IdleTicks
from fleet.lifecycles import NeuronStatus
from fleet.live import reading as live
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
