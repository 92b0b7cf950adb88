"""Models that do not fit together have time slices: none thrashes, none starves."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Load, Route, Wait, place
from fleet.placement.decisions import Jobs, Observed, Unload, Waiting
from fleet.placement.devices.capacity import IDLE_TIME_SLICE_S, MIN_TIME_SLICE_S
from fleet.placement.reconcile import reconcile
from fleet.placement.time_slices import MAX_PROMISE_S, time_slices_kept
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
    replica,
)

GIB = 1024**3
ONE, TWO, THREE = entry("one", 20), entry("two", 20), entry("three", 20)
OFFERED = catalogue(ONE, TWO, THREE)
TIME_SLICE = TimeSlice(
    model="two", neuron="a", devices=("cuda:0",), device_bytes=20 * GIB, evicted=("one",)
)


def one_card(evictable: ReplicaView, free: float = 4, **changes) -> FleetSnapshot:
    return fleet(neuron("a", card(free=free), holds=(evictable,)), **changes)


def tick(snapshot: FleetSnapshot, *, time_slices=(), **waiting: float):
    observed = Observed(
        waiting={model: Waiting(num_requests=1, oldest_s=age) for model, age in waiting.items()}
    )
    return reconcile(OFFERED, snapshot, jobs=Jobs(), observed=observed, time_slices=time_slices)


def big(model: str, **changes) -> ReplicaView:
    return busy(model, gib=20, **changes)


def test_one_in_use_is_drained_after_its_time_slice() -> None:
    assert tick(one_card(big("one"))).actions == (), "nobody waits"
    early = tick(one_card(big("one", status_age_s=MIN_TIME_SLICE_S - 1)), two=99)
    assert (early.actions, early.time_slices) == ((), ())
    due = tick(one_card(big("one", status_age_s=MIN_TIME_SLICE_S)), two=99)
    assert due.actions == (
        Unload(neuron="a", model="one", reason="two has waited for its time slice"),
    )
    assert due.time_slices == (TIME_SLICE,)


def test_a_time_slice_is_as_long_as_its_load_was_worth() -> None:
    report = load_report(load_seconds=60.0)
    slow = big("one", status_age_s=119.0, report=report)
    assert tick(one_card(slow), two=99).actions == ()
    slow = big("one", status_age_s=120.0, report=report)
    assert tick(one_card(slow), two=99).actions != ()


def test_who_waits_longest_comes_first_and_the_others_wait_for_the_next() -> None:
    plan = tick(one_card(big("one")), two=5, three=50)
    assert [time_slice.model for time_slice in plan.time_slices] == ["three"]
    assert len(plan.actions) == 1


def test_room_that_comes_free_is_kept_for_the_next_time_slice() -> None:
    """The one that has just left is asked for as well, and would be back at once."""
    free = fleet(neuron("a", card(free=24)), time_slices=(TIME_SLICE,))
    assert place(TWO, free, catalogue=OFFERED) == Load(neuron="a", model="two", devices=("cuda:0",))
    behind = place(ONE, free, catalogue=OFFERED)
    assert isinstance(behind, Wait)
    assert behind.needs_time_slice


def test_a_time_slice_is_kept_until_its_model_is_loaded_or_no_request_waits() -> None:
    leaving = one_card(replica("one", DRAINING, gib=20))
    waiting = {"two": Waiting(num_requests=1, oldest_s=1.0)}
    assert time_slices_kept([TIME_SLICE], leaving, waiting) == (TIME_SLICE,)
    assert time_slices_kept([TIME_SLICE], leaving, {}) == ()
    assert time_slices_kept([TIME_SLICE], one_card(replica("two", LOADING)), waiting) == ()
    assert time_slices_kept([TIME_SLICE], fleet(), waiting) == ()
    old = TimeSlice(model="two", neuron="a", devices=(), device_bytes=1, age_s=MAX_PROMISE_S)
    assert time_slices_kept([old], leaving, waiting) == ()
    assert tick(leaving, time_slices=[TIME_SLICE], two=9).time_slices == (TIME_SLICE,)


@dataclass
class Host:
    """One card of 24 GiB, models of 20: time goes by in seconds, and every load takes three."""

    now_s: float = 0.0
    model: str | None = None
    status: str = "gone"
    since_s: float = 0.0
    used_s: float = 0.0
    arrived: dict[str, list[float]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    residencies: list[tuple[str, float]] = field(default_factory=list)
    time_slices: tuple[TimeSlice, ...] = ()

    def snapshot(self, in_use: bool) -> FleetSnapshot:
        holds = ()
        if self.model is not None:
            status = {"loading": LOADING, "ready": READY, "draining": DRAINING}[self.status]
            view = replica(
                self.model,
                status,
                gib=20,
                status_age_s=self.now_s - self.since_s,
                last_used_age_s=self.now_s - self.used_s,
                in_flight=1 if in_use and self.status != "loading" else 0,
            )
            holds = (view,)
        free = 24.0 if self.model is None else 4.0
        return fleet(neuron("a", card(free=free), holds=holds), time_slices=self.time_slices)

    def move(self, model: str | None, status: str) -> None:
        if model != self.model and self.model is not None and self.status != "loading":
            self.residencies.append((self.model, self.now_s - self.ready_s))
        self.model, self.status, self.since_s = model, status, self.now_s
        if status == "ready":
            self.ready_s = self.used_s = self.now_s

    ready_s: float = 0.0

    def second(self, asked: list[str]) -> None:
        """Requests for ``asked`` arrive; each that is served takes its replica for a second."""
        self.now_s += 1.0
        if self.status == "loading" and self.now_s - self.since_s >= 3:
            self.move(self.model, "ready")
        elif self.status == "draining" and self.now_s - self.since_s >= 2:
            self.move(None, "gone")
        for model in asked:
            self.arrived.setdefault(model, []).append(self.now_s)
        served = False
        for model in sorted(self.arrived, key=lambda m: self.arrived[m][0]):
            decision = place(OFFERED[model], self.snapshot(served), catalogue=OFFERED)
            if isinstance(decision, Route):
                self.waits += [self.now_s - at for at in self.arrived.pop(model)]
                self.used_s, served = self.now_s, True
            elif isinstance(decision, Load):
                self.move(None, "gone")
                self.move(decision.model, "loading")
            else:
                assert isinstance(decision, Wait)
        waiting = {
            model: Waiting(num_requests=len(times), oldest_s=self.now_s - times[0])
            for model, times in self.arrived.items()
        }
        aged = tuple(structs.replace(one, age_s=one.age_s + 1) for one in self.time_slices)
        decided = reconcile(
            OFFERED,
            self.snapshot(served),
            jobs=Jobs(),
            observed=Observed(waiting=waiting),
            time_slices=aged,
        )
        self.time_slices = decided.time_slices
        for action in decided.actions:
            if isinstance(action, Unload):
                self.move(action.model, "draining")


LONGEST_CHANGE_S = 10.0
"""The longest change: a drain, a load, and the ticks between them."""


@settings(max_examples=20)
@given(st.lists(st.sets(st.sampled_from(["one", "two", "three"])), min_size=1, max_size=6))
def test_models_that_displace_each_other_have_time_slices(pattern) -> None:
    """Whatever the requests are like, each stays for its time slice, and no model waits for more
    than one time slice of each of the others."""
    host = Host()
    for second in range(250):
        host.second(sorted(pattern[second % len(pattern)]))
    bound_s = 2 * (MIN_TIME_SLICE_S + LONGEST_CHANGE_S) + LONGEST_CHANGE_S
    assert all(stayed >= IDLE_TIME_SLICE_S for _, stayed in host.residencies)
    assert max(host.waits, default=0.0) <= bound_s
    still = [250 - times[0] for times in host.arrived.values()]
    assert max(still, default=0.0) <= bound_s


def test_models_in_constant_use_keep_their_time_slices() -> None:
    host = Host()
    for _ in range(300):
        host.second(["one", "two"])
    assert len(host.residencies) >= 5
    assert all(stayed >= MIN_TIME_SLICE_S for _, stayed in host.residencies)
