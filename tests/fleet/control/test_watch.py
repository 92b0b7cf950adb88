"""What the control remembers from tick to tick."""

from __future__ import annotations

from dataclasses import replace

from fleet.control.watch import GATEWAY_SILENCE_S, FleetWatch
from fleet.live.absences import GRACE_S, Absences
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot
from inference.protocol.heartbeat import WaitingModel, WaitingReport
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


def test_one_that_announced_its_end_is_not_expected() -> None:
    absences = Absences()
    absences.noted(fleet(replace(HOLDER, is_leaving=True)), 0.0)
    assert absences.noted(EMPTY, 1.0).absent == ()


def test_what_waits_at_all_gateways_is_added_up() -> None:
    watched = FleetWatch().look(EMPTY, {"g1": report(1, tiny=4.0), "g2": report(9, tiny=7.0)}, 0.0)
    waiting = watched.observed.waiting["tiny"]
    assert (waiting.num_requests, waiting.oldest_s) == (4, 7.0)


def test_what_a_dead_gateway_reported_is_forgotten() -> None:
    watch = FleetWatch()
    reports = {"g": report(1, tiny=4.0)}
    assert watch.look(EMPTY, reports, 0.0).gone_gateways == ()
    assert watch.look(EMPTY, reports, GATEWAY_SILENCE_S - 1).observed.waiting
    dead = watch.look(EMPTY, reports, GATEWAY_SILENCE_S)
    assert (dead.gone_gateways, dict(dead.observed.waiting)) == (("g",), {})
    assert watch.look(EMPTY, {"g": report(2, tiny=1.0)}, 9.0).gone_gateways == ()


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


def test_time_slices_grow_older() -> None:
    watch = FleetWatch()
    watch.keep([TIME_SLICE], 10.0)
    (time_slice,) = watch.time_slices(EMPTY, 14.0)
    assert time_slice.age_s == 4.0
    watch.keep([time_slice], 14.0)
    (time_slice,) = watch.time_slices(EMPTY, 15.0)
    assert time_slice.age_s == 5.0
    watch.keep([], 16.0)
    assert watch.time_slices(EMPTY, 17.0) == ()


def test_a_control_that_takes_over_keeps_what_was_promised() -> None:
    watch = FleetWatch()
    published = FleetSnapshot(neurons=(), time_slices=(TIME_SLICE,))
    assert watch.time_slices(published, 0.0) == (TIME_SLICE,)
    watch.keep([], 0.0)
    assert watch.time_slices(published, 1.0) == ()
