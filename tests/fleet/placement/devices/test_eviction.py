"""Who leaves for whom: idle, unpinned, least valuable, and only where that makes room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Load, Reject, Wait, place
from fleet.placement.devices.capacity import (
    IDLE_TIME_SLICE_S,
    MIN_TIME_SLICE_S,
    QUIET_S,
    idle_age_s,
)
from inference.protocol.heartbeat import ReplicaStatus
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
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

NEW = entry("new", 12)
OLD, OLDER = entry("old", 10), entry("older", 10)
OFFERED = catalogue(NEW, OLD, OLDER)


def full(*holds: ReplicaView, free: float = 2) -> NeuronView:
    return neuron("a", card(free=free), holds=holds)


def evicting(*models: str, on: str = "a", device: str = "cuda:0") -> Load:
    return Load(neuron=on, model="new", devices=(device,), evict=models)


LEAVING = {
    "an idle one": ([full(replica("old"))], evicting("old")),
    "the least recently used": (
        [full(replica("old", last_used_age_s=30), replica("older", last_used_age_s=90))],
        evicting("older"),
    ),
    "wherever that is": (
        [
            full(replica("old", last_used_age_s=30)),
            neuron("b", card(free=2), holds=(replica("older", on="b", last_used_age_s=90),)),
        ],
        evicting("older", on="b"),
    ),
    "one that is enough rather than two": (
        [
            neuron(
                "a",
                card(free=0),
                holds=(
                    replica("old", gib=8, last_used_age_s=50),
                    replica("older", gib=8, last_used_age_s=50),
                ),
            ),
            neuron(
                "b", card(free=0), holds=(replica("third", on="b", gib=12, last_used_age_s=40),)
            ),
        ],
        evicting("third", on="b"),
    ),
    "both where one is not enough": (
        [full(replica("old", gib=8), replica("older", gib=8), free=0)],
        evicting("old", "older"),
    ),
    "not a small one that makes no difference": (
        [full(replica("older", gib=1, last_used_age_s=900), replica("old", gib=12), free=0)],
        evicting("old"),
    ),
    "what nobody offers any more first": (
        [full(replica("gone", last_used_age_s=5), replica("old", last_used_age_s=900))],
        evicting("gone"),
    ),
    "nobody, where there is room": (
        [full(replica("old")), neuron("b", card(free=12))],
        evicting(on="b"),
    ),
}


@each_case(("neurons", "expected"), LEAVING.values(), ids=LEAVING.keys())
def test_who_leaves(neurons: list[NeuronView], expected: Load) -> None:
    offered = catalogue(NEW, OLD, OLDER, entry("third", 12))
    assert place(NEW, fleet(*neurons), catalogue=offered) == expected


STAYING = {
    "in use": (busy("old"), OLD),
    "loading": (replica("old", LOADING, status_age_s=1.0), OLD),
    "ready for a moment, its requests on their way": (
        replica("old", status_age_s=IDLE_TIME_SLICE_S - 1, last_used_age_s=None),
        OLD,
    ),
    "used a moment ago": (replica("old", last_used_age_s=QUIET_S / 2), OLD),
    "leaving": (replica("old", DRAINING), OLD),
}


@each_case(("evictable", "old"), STAYING.values(), ids=STAYING.keys())
def test_who_does_not_leave_yet(evictable: ReplicaView, old) -> None:
    """The one that waits gets its time slice."""
    decision = place(NEW, fleet(full(evictable)), catalogue=catalogue(NEW, old))
    assert isinstance(decision, Wait)
    assert decision.needs_time_slice
    assert "cuda:0 of a, which old use" in decision.reason


KEPT = {
    "pinned": entry("old", 10, pinned=True),
    "of a higher priority": entry("old", 10, residency_priority=101),
    "pinned to its host": entry("old", 10, pinned_on=("a",)),
    "of which there should be one": entry("old", 10, min_replicas=1),
}


@each_case("old", KEPT.values(), ids=KEPT.keys())
@each_case("evictable", [replica("old"), busy("old")], ids=["idle", "in use"])
def test_who_never_leaves(old, evictable: ReplicaView) -> None:
    decision = place(NEW, fleet(full(evictable)), catalogue=catalogue(NEW, old))
    assert isinstance(decision, Reject)
    assert decision.code == "not_enough_memory"
    refusal = (
        f"needs {12 * GIB:,} bytes of free memory on a, and {2 * GIB:,} are free on its cuda:0"
    )
    assert refusal in decision.message
    assert decision.retry_after_s is not None


def test_more_replicas_than_there_should_be_may_leave() -> None:
    old = entry("old", 10, pinned=True, max_replicas=2)
    two = [full(replica("old")), neuron("b", card(free=0), holds=(replica("old", on="b"),))]
    assert place(NEW, fleet(*two), catalogue=catalogue(NEW, old)) == evicting("old")


def test_nobody_leaves_for_a_model_of_unknown_size() -> None:
    unknown = entry("new")
    decision = place(unknown, fleet(full(replica("old"))), catalogue=catalogue(unknown, OLD))
    assert decision == evicting()


def test_no_model_is_evicted_without_a_report_of_its_memory() -> None:
    assert isinstance(place(NEW, fleet(full(replica("old")))), Reject)


def test_a_failed_replica_holds_nothing_to_give() -> None:
    decision = place(NEW, fleet(full(replica("old", FAILED))), catalogue=OFFERED)
    assert isinstance(decision, Reject)


def test_a_replica_on_two_cards_leaves_both() -> None:
    wide = entry("new", 40, min_devices=2)
    pair = neuron(
        "a",
        card(0, free=4),
        card(1, free=4),
        holds=(replica("old", gib=40, devices=("cuda:0", "cuda:1")),),
    )
    decision = place(wide, fleet(pair), catalogue=catalogue(wide, entry("old", 40, min_devices=2)))
    expected = Load(neuron="a", model="new", devices=("cuda:0", "cuda:1"), evict=("old",))
    assert decision == expected


def test_lost_its_room_is_retried_elsewhere_at_once() -> None:
    from inference.protocol.load_progress import LoadFailure

    lost = replica(
        "new", FAILED, status_age_s=0.5, failure=LoadFailure(code="lost_its_room", message="used")
    )
    decision = place(NEW, fleet(full(lost, replica("old"))), catalogue=OFFERED)
    assert decision == evicting("old")


MODELS = ("new", "m1", "m2", "m3", "m4")


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    return fleet(*(draw(neurons(name)) for name in draw(st.sets(st.sampled_from("abc")))))


@st.composite
def neurons(draw: st.DrawFn, name: str) -> NeuronView:
    num_cards = draw(st.integers(1, 3))
    names = [f"cuda:{index}" for index in range(num_cards)]
    holds = tuple(
        ReplicaView(
            neuron=name,
            model=model,
            job_id="j",
            status=draw(st.sampled_from([READY, READY, READY, LOADING, DRAINING, FAILED])),
            status_age_s=draw(st.sampled_from([1.0, 20.0, 500.0])),
            last_used_age_s=draw(st.sampled_from([None, 0.5, 10.0, 400.0])),
            in_flight=draw(st.sampled_from([0, 0, 3])),
            devices=tuple(sorted(draw(st.sets(st.sampled_from(names), min_size=1, max_size=2)))),
            memory_bytes=draw(st.sampled_from([None, 4, 8, 16])),
        )
        for model in draw(st.sets(st.sampled_from(MODELS[1:])))
    )
    cards = [
        card(index, free=draw(st.sampled_from([0, 4, 8])) / GIB, total=24 / GIB)
        for index in range(num_cards)
    ]
    return neuron(name, *cards, holds=holds)


@st.composite
def catalogues(draw: st.DrawFn):
    entries = [
        entry(
            model,
            draw(st.sampled_from([None, 3, 9, 20])),
            pinned=draw(st.booleans()),
            residency_priority=draw(st.sampled_from([None, 50, 200])),
            min_devices=draw(st.sampled_from([1, 1, 2])),
        )
        for model in MODELS
    ]
    scaled = [
        entry(
            e.name,
            None if e.weight_bytes is None else e.weight_bytes / GIB / GIB,
            pinned=e.pinned,
            residency_priority=e.residency_priority,
            min_devices=e.min_devices,
        )
        for e in entries
    ]
    return catalogue(*scaled)


@given(catalogues(), fleets())
def test_what_holds_for_every_eviction(offered, snapshot: FleetSnapshot) -> None:
    new = offered["new"]
    decision = place(new, snapshot, catalogue=offered)
    if not isinstance(decision, Load):
        return
    view = snapshot.neuron(decision.neuron)
    assert view is not None
    assert len(decision.devices) == new.min_devices
    gone = [view.replica_of(model) for model in decision.evict]
    for evictable in gone:
        assert evictable is not None
        assert evictable.status is ReplicaStatus.READY
        assert (idle_age_s(evictable) or 0) >= QUIET_S, "never one in use"
        assert evictable.status_age_s >= IDLE_TIME_SLICE_S, "never before its time slice is over"
        held = offered[evictable.model]
        num_held = sum(
            r.status in {READY, LOADING, ReplicaStatus.RECOVERING}
            for r in snapshot.replicas_of(evictable.model)
        )
        assert not held.pinned or num_held > 1, "never a pinned one"
        assert held.effective_priority <= new.effective_priority
    if new.weight_bytes is None:
        assert not decision.evict
        return
    each = -(-new.weight_bytes // new.min_devices)

    def room(evicted) -> bool:
        return all(
            info.free_memory_bytes
            + sum(
                (one.memory_bytes or 0) // len(one.devices)
                for one in evicted
                if name in one.devices
            )
            >= each
            for info in view.devices
            if (name := f"cuda:{info.index}") in decision.devices
        )

    assert room(gone), "it makes room"
    for one in gone:
        if new.min_devices == 1:
            assert not room([other for other in gone if other is not one]), "no more than needed"


@given(catalogues(), fleets())
def test_nobody_waits_for_what_never_goes(offered, snapshot: FleetSnapshot) -> None:
    """A wait for a time slice is for replicas that may leave for this model in the end."""
    new = offered["new"]
    decision = place(new, snapshot, catalogue=offered)
    if isinstance(decision, Wait) and decision.needs_time_slice:
        assert decision.eta_s is not None
        assert 0 <= decision.eta_s <= MIN_TIME_SLICE_S * 2
