"""Queues and devices are sampled by the ticks, summed by minute and stored by housekeeping."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import OperationalError

from fleet import tasks
from fleet.control import samples
from fleet.control.samples import Samples
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from metering.models import SeriesRow
from metering.series.figures import mean_of, percentile_of
from metering.series.steps import Kind, SeriesKey

GIB = 1024**3
NOON_UNIX_S = 1_780_012_800.0


@pytest.fixture
def snapshot(build: Any) -> FleetSnapshot:
    """Two neurons with one model; the second's processors report no use."""
    return build_snapshot(
        [
            build.heartbeat(
                name,
                devices=[
                    build.device(
                        kind=kind,
                        total_memory_bytes=16 * GIB,
                        free_memory_bytes=free_gib * GIB,
                        utilization_percent=percent,
                    )
                ],
                replicas=[build.replica(stats=build.stats(in_flight=2, queue_depth=depth))],
            )
            for name, kind, free_gib, percent, depth in (
                ("beast", "cuda", 4, 70, 3),
                ("attic", "cpu", 16, None, 1),
            )
        ]
    )


def test_a_minute_is_the_sum_of_its_samples(snapshot: FleetSnapshot) -> None:
    made = Samples()
    for second in range(3):
        made.add(snapshot, NOON_UNIX_S + second)
    made.add(FleetSnapshot(neurons=()), NOON_UNIX_S + 59)
    assert made.ended(NOON_UNIX_S + 59.9) == {}
    (minute,) = made.ended(NOON_UNIX_S + 60).values()
    model = minute[SeriesKey(60, int(NOON_UNIX_S), Kind.MODEL, "tiny")]
    assert (mean_of(model, "queue_depth"), mean_of(model, "in_flight")) == (4.0, 4.0)
    assert round(percentile_of(model, "queue_depth", 1.0) or 0) == 4
    fleet = minute[SeriesKey(60, int(NOON_UNIX_S), Kind.FLEET, "")]
    assert mean_of(fleet, "queue_depth") == 3.0, "an empty fleet has an empty queue"
    card = minute[SeriesKey(60, int(NOON_UNIX_S), Kind.DEVICE, "beast/cuda:0")]
    assert mean_of(card, "memory_used_bytes") == 12 * GIB
    assert mean_of(card, "busy_percent", "busy_samples") == 70.0
    processors = minute[SeriesKey(60, int(NOON_UNIX_S), Kind.DEVICE, "attic/cpu")]
    assert mean_of(processors, "busy_percent", "busy_samples") is None
    made.forget(int(NOON_UNIX_S))
    assert made.ended(NOON_UNIX_S + 60) == {}


def test_minutes_that_wait_are_bounded(
    snapshot: FleetSnapshot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(samples, "MAX_MINUTES", 2)
    made = Samples()
    for minute in range(3):
        made.add(snapshot, NOON_UNIX_S + 60 * minute)
    assert list(made.ended(NOON_UNIX_S + 180)) == [NOON_UNIX_S + 60, NOON_UNIX_S + 120]
    assert "samples of 1 minutes are dropped" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_ticks_sample_and_housekeeping_stores(
    publish: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "samples", Samples())
    publish(replicas=[build.replica(stats=build.stats(queue_depth=2))])
    now_unix_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_unix_s - 90)
    tasks.record_heartbeats()
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
