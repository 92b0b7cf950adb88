"""Ticks pass while nothing changes, and none passes that would have done anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet import services, tasks
from fleet.control import idle
from fleet.control.idle import IdleTicks
from fleet.models import Invitation
from inference.protocol import keys
from inference.protocol.heartbeat import WaitingModel, WaitingReport, encode_waiting_report
from metering.actor import COMMAND

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def only_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("elsewhere every tick is whole")
    monkeypatch.setattr(tasks, "idle_ticks", IdleTicks())


@pytest.fixture
def passes(publish: Any, build: Any) -> Iterator[Callable[[], bool]]:
    """Whether a tick passes. The fleet has settled, with one loaded model."""

    def tick_passes() -> bool:
        with CaptureQueriesContext(connection) as queries:
            tasks.tick()
        return not len(queries)

    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    publish(replicas=[build.replica(stats=build.stats())])
    # The first publishes the desired states, which the second finds.
    assert [tick_passes(), tick_passes(), tick_passes()] == [False, False, True]
    yield tick_passes


def test_clocks_and_free_memory_are_no_change(passes: Any, publish: Any, build: Any) -> None:
    device = build.device(free_memory_bytes=1, utilization_percent=3)
    stats = build.stats(decode_tokens_per_s=9.0)
    publish(replicas=[build.replica(stats=stats)], devices=[device], time_unix_s=1_700_000_001.0)
    assert passes()


def test_what_works_or_changes_has_whole_ticks(passes, publish, build, redis_db) -> None:
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


def test_no_tick_passes_while_a_host_is_invited(passes, publish) -> None:
    Invitation.objects.create(neuron_name="attic", secret_sha256="0" * 64)
    assert [passes(), passes(), passes()] == [False, False, False]


def test_what_the_clock_alone_brings_waits_a_few_seconds(passes, monkeypatch) -> None:
    now_s = tasks.time.monotonic()
    monkeypatch.setattr(tasks.time, "monotonic", lambda: now_s + idle.WHOLE_TICK_EVERY_S)
    assert [passes(), passes()] == [False, True]


def test_a_tick_that_breaks_is_not_taken_as_done(passes, publish, monkeypatch) -> None:
    publish(replicas=[], devices=[])

    def broken(**_: Any) -> None:
        raise msgspec.ValidationError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(services, "fleet_plan", broken)
        with pytest.raises(msgspec.ValidationError):
            tasks.tick()
    assert not passes()
