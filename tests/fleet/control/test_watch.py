"""What the control remembers from tick to tick; queues and devices, which its ticks sample."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError

from fleet import tasks
from fleet.control.samples import Samples
from fleet.control.watch import GATEWAY_SILENCE_S, FleetWatch
from fleet.live.absences import GRACE_S, Absences
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from inference.protocol.heartbeat import WaitingModel, WaitingReport
from metering.models import SeriesRow
from metering.series.figures import mean_of, percentile_of
from metering.series.steps import Kind, SeriesKey
from tests.fleet.placement.fleets import busy, card, fleet, neuron, replica

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
