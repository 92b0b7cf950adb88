"""Who leaves for whom: idle, unpinned, least valuable, and only where that makes room. What leaves
moves where memory is free."""

from __future__ import annotations

from typing import Any

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Load, Reject, Wait, place
from fleet.placement.devices.capacity import (
    IDLE_TIME_SLICE_S,
    QUIET_S,
)
from fleet.placement.devices.moves import moves_for
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
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
    lost = replica(
        "new", FAILED, status_age_s=0.5, failure=LoadFailure(code="lost_its_room", message="used")
    )
    decision = place(NEW, fleet(full(lost, replica("old"))), catalogue=OFFERED)
    assert decision == evicting("old")


LARGER = entry("new", needs_gib=14)
LOAD = Load(neuron="a", model="new", devices=("cuda:0",), evict=("old",))
TO_B = Load(neuron="b", model="old", devices=("cuda:0",))


def pieces(held: ReplicaView, b_free: float = 12, *more: ReplicaView) -> FleetSnapshot:
    return fleet(
        neuron("a", card(free=6, total=16), holds=(held,)),
        neuron("b", card(free=b_free, total=16), holds=more),
    )


MOVES: dict[str, tuple[FleetSnapshot, Any, tuple[Load, ...]]] = {
    "it moves": (pieces(replica("old")), OLD, (TO_B,)),
    "no other neuron has room": (pieces(replica("old"), 9), OLD, ()),
    "it is busy": (pieces(busy("old")), OLD, ()),
    "it is pinned": (pieces(replica("old")), entry("old", needs_gib=10, pinned=True), ()),
    "it may run there only": (
        pieces(replica("old")),
        entry("old", needs_gib=10, pinned_on=("a",)),
        (),
    ),
    "another card of its host has room": (
        fleet(
            neuron("a", card(free=6, total=16), card(1, free=12, total=16), holds=(replica("old"),))
        ),
        OLD,
        (Load(neuron="a", model="old", devices=("cuda:1",)),),
    ),
    "nobody has used it for days": (
        pieces(replica("old", last_used_age_s=3e5, status_age_s=3e5)),
        OLD,
        (TO_B,),
    ),
    "another neuron has it": (pieces(replica("old"), 12, replica("old", on="b")), OLD, ()),
    "another neuron loads it": (
        pieces(replica("old"), 12, replica("old", LOADING, on="b")),
        OLD,
        (),
    ),
    "nobody knows what it needs": (pieces(replica("old")), entry("old"), (TO_B,)),
    "the catalogue has it no more": (pieces(replica("old")), None, ()),
}


@each_case(("snapshot", "old", "moves"), MOVES.values(), ids=MOVES.keys())
def test_what_leaves(snapshot: FleetSnapshot, old: Any, moves: tuple[Load, ...]) -> None:
    offered = catalogue(LARGER, *([] if old is None else [old]))
    assert moves_for(LOAD, snapshot, offered) == moves


def test_what_can_move_leaves_rather_than_what_would_be_lost() -> None:
    """``large`` was used longer ago, and fits nowhere else; ``small`` fits into what c has free."""
    small, large = entry("small", needs_gib=10), entry("large", needs_gib=15)
    snapshot = fleet(
        neuron("a", card(free=6, total=22), holds=(replica("small", gib=10),)),
        neuron(
            "b",
            card(free=1, total=16),
            holds=(replica("large", on="b", gib=15, last_used_age_s=900, status_age_s=900),),
        ),
        neuron("c", card(free=12, total=16)),
    )
    offered = catalogue(LARGER, small, large)
    decision = place(LARGER, snapshot, catalogue=offered)
    assert isinstance(decision, Load) and decision.evict == ("small",)
    (move,) = moves_for(decision, snapshot, offered)
    assert (move.model, move.neuron) == ("small", "c")
    # Where it may not go there, the one of longer ago leaves.
    offered = catalogue(LARGER, entry("small", needs_gib=10, pinned_on=("a",)), large)
    decision = place(LARGER, snapshot, catalogue=offered)
    assert isinstance(decision, Load) and decision.evict == ("large",)
