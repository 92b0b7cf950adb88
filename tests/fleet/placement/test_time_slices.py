"""Models that do not fit together have time slices: none thrashes, none starves."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Load, Route, Wait, place
from fleet.placement.decisions import Unload, Waiting
from fleet.placement.devices.capacity import IDLE_TIME_SLICE_S, MIN_TIME_SLICE_S
from fleet.placement.time_slices import MAX_PROMISE_S
from inference.protocol.heartbeat import ReplicaStatus
from tests.cases import each_case
from tests.fleet.conftest import report as load_report
from tests.fleet.placement.fleets import (
    DRAINING,
    LOADING,
    READY,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    neuron,
    plan,
    replica,
)
from tests.fleet.placement.worlds import brief, world

GIB = 1024**3
ONE, TWO, THREE = entry("one", 20), entry("two", 20), entry("three", 20)
OFFERED = catalogue(ONE, TWO, THREE)
TIME_SLICE = TimeSlice(
    model="two", neuron="a", devices=("cuda:0",), device_bytes=20 * GIB, evicted=("one",)
)


def tick(snapshot: FleetSnapshot, *, time_slices=(), **waiting: float):
    waits = {model: Waiting(num_requests=1, oldest_s=age) for model, age in waiting.items()}
    return plan(OFFERED, snapshot, waiting=waits, time_slices=time_slices)


@each_case(("load_s", "slice_s"), [(None, MIN_TIME_SLICE_S), (1, 30), (60, 120), (600, 300)])
def test_one_in_use_is_drained_after_a_time_slice_that_its_load_was_worth(load_s, slice_s) -> None:
    report = load_report(load_seconds=load_s) if load_s else None

    def after(age_s: float, **waiting: float):
        used = busy("one", gib=20, report=report, status_age_s=age_s)
        return tick(fleet(neuron("a", card(free=4), holds=(used,))), **waiting)

    assert after(999).actions == (), "nobody waits"
    early, due = after(slice_s - 1, two=99), after(slice_s, two=99)
    assert (early.actions, early.time_slices) == ((), ())
    leaves = Unload(neuron="a", model="one", reason="two has waited for its time slice")
    assert (due.actions, due.time_slices) == ((leaves,), (TIME_SLICE,))


LEAVING = world("a 4 one,draining,gib=20")


@each_case(
    ("what", "snapshot", "waiting", "age_s", "is_kept"),
    [
        ("its room is being made", LEAVING, {"two": 9}, 0, True),
        ("no request waits", LEAVING, {}, 0, False),
        ("it is loaded", world("a 0 two,loading"), {"two": 9}, 0, False),
        ("its neuron is away", fleet(), {"two": 9}, 0, False),
        ("for too long", world("a 0"), {"two": 9}, MAX_PROMISE_S, False),
    ],
)
def test_a_time_slice_is_kept(what, snapshot, waiting, age_s: float, is_kept: bool) -> None:
    given = structs.replace(TIME_SLICE, age_s=age_s)
    assert tick(snapshot, time_slices=[given], **waiting).time_slices == (given,) * is_kept, what


def test_who_waits_longest_comes_first_and_has_the_room_that_comes_free() -> None:
    plan = tick(world("a 4 one,busy,gib=20"), two=5, three=50)
    assert [time_slice.model for time_slice in plan.time_slices] == ["three"]
    assert len(plan.actions) == 1
    free = world("a 24", time_slices=(TIME_SLICE,))
    assert brief(place(TWO, free, catalogue=OFFERED)) == "load two a/cuda:0"
    assert brief(place(ONE, free, catalogue=OFFERED)) == "slice a", "it has just left"


@dataclass
class Host:
    """One card of 24 GiB, models of 20: time goes by in seconds, and every load takes three."""

    now_s: float = 0.0
    model: str | None = None
    status: ReplicaStatus = READY
    since_s: float = 0.0
    ready_s: float = 0.0
    used_s: float = 0.0
    arrived: dict[str, list[float]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    stays: list[float] = field(default_factory=list)
    time_slices: tuple[TimeSlice, ...] = ()

    def snapshot(self, in_use: bool) -> FleetSnapshot:
        holds: tuple[ReplicaView, ...] = ()
        if self.model is not None:
            view = replica(
                self.model,
                self.status,
                gib=20,
                status_age_s=self.now_s - self.since_s,
                last_used_age_s=self.now_s - self.used_s,
                in_flight=1 if in_use and self.status is not LOADING else 0,
            )
            holds = (view,)
        there = neuron("a", card(free=4.0 if holds else 24.0), holds=holds)
        return fleet(there, time_slices=self.time_slices)

    def become(self, status: ReplicaStatus) -> None:
        self.status, self.since_s = status, self.now_s
        if status is READY:
            self.ready_s = self.used_s = self.now_s

    def leave(self) -> None:
        if self.model is not None:
            self.stays.append(self.now_s - self.ready_s)
        self.model = None

    def second(self, asked: list[str]) -> None:
        """Requests for ``asked`` arrive; each that is served takes its replica for a second."""
        self.now_s += 1.0
        age_s = self.now_s - self.since_s
        if self.model and self.status is LOADING and age_s >= 3:
            self.become(READY)
        elif self.model and self.status is DRAINING and age_s >= 2:
            self.leave()
        for model in asked:
            self.arrived.setdefault(model, []).append(self.now_s)
        served = False
        for model in sorted(self.arrived, key=lambda m: self.arrived[m][0]):
            decision = place(OFFERED[model], self.snapshot(served), catalogue=OFFERED)
            if isinstance(decision, Route):
                self.waits += [self.now_s - at for at in self.arrived.pop(model)]
                self.used_s, served = self.now_s, True
            elif isinstance(decision, Load):
                self.leave()
                self.model = decision.model
                self.become(LOADING)
            else:
                assert isinstance(decision, Wait)
        waiting = {model: self.now_s - times[0] for model, times in self.arrived.items()}
        aged = tuple(structs.replace(one, age_s=one.age_s + 1) for one in self.time_slices)
        decided = tick(self.snapshot(served), time_slices=aged, **waiting)
        self.time_slices = decided.time_slices
        if any(isinstance(action, Unload) for action in decided.actions):
            self.become(DRAINING)


LONGEST_CHANGE_S = 10.0
"""The longest change: a drain, a load, and the ticks between them."""


@settings(max_examples=20)
@given(st.lists(st.sets(st.sampled_from(["one", "two", "three"])), min_size=1, max_size=6))
@example([{"one", "two"}])
def test_models_that_displace_each_other_have_time_slices(pattern) -> None:
    """Whatever the requests are like, each stays for its time slice, and no model waits for more
    than one time slice of each of the others."""
    host = Host()
    for second in range(250):
        host.second(sorted(pattern[second % len(pattern)]))
    bound_s = 2 * (MIN_TIME_SLICE_S + LONGEST_CHANGE_S) + LONGEST_CHANGE_S
    in_constant_use = pattern == [{"one", "two"}]
    least_s = MIN_TIME_SLICE_S if in_constant_use else IDLE_TIME_SLICE_S
    assert all(stayed >= least_s for stayed in host.stays)
    assert len(host.stays) >= 5 or not in_constant_use
    assert max(host.waits, default=0.0) <= bound_s
    still = [250 - times[0] for times in host.arrived.values()]
    assert max(still, default=0.0) <= bound_s
