"""Who leaves for whom: idle, unpinned, least valuable, and only where that makes room. What leaves
moves where memory is free."""

from __future__ import annotations

from typing import Any

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Load, Reject, Wait, place
from fleet.placement.devices.capacity import IDLE_TIME_SLICE_S, QUIET_S
from fleet.placement.devices.moves import moves_for
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
    busy,
    cards,
    catalogue,
    entry,
    fleet,
    loaded,
    refused,
    replica,
)

NEW = entry("new", 12)
OLD, OLDER = entry("old", 10), entry("older", 10)
OFFERED = catalogue(NEW, OLD, OLDER, entry("third", 12))
JUST, AGO = {"last_used_age_s": 30}, {"last_used_age_s": 90}


def full(*holds: ReplicaView, free: float = 2) -> NeuronView:
    return cards("a", free, holds=holds)


def on_b(*holds: ReplicaView, free: float = 2) -> NeuronView:
    return cards("b", free, holds=holds)


def evicting(*models: str, on: str = "a") -> Load:
    return Load(neuron=on, model="new", devices=("cuda:0",), evict=models)


THIRD = replica("third", on="b", gib=12, last_used_age_s=40)
TWO_OF_8 = tuple(replica(name, gib=8, last_used_age_s=50) for name in ("old", "older"))
SMALL = replica("older", gib=1, last_used_age_s=900)
LOST = LoadFailure(code="lost_its_room", message="used")


@each_case(
    ("what", "neurons", "expected"),
    [
        ("an idle one", [full(replica("old"))], evicting("old")),
        (
            "the least recently used",
            [full(replica("old", **JUST), replica("older", **AGO))],
            evicting("older"),
        ),
        (
            "wherever that is",
            [full(replica("old", **JUST)), on_b(replica("older", on="b", **AGO))],
            evicting("older", on="b"),
        ),
        (
            "one that is enough rather than two",
            [full(*TWO_OF_8, free=0), on_b(THIRD, free=0)],
            evicting("third", on="b"),
        ),
        ("both where one is not enough", [full(*TWO_OF_8, free=0)], evicting("old", "older")),
        ("not a small one", [full(SMALL, replica("old", gib=12), free=0)], evicting("old")),
        (
            "what nobody offers any more first",
            [full(replica("gone", last_used_age_s=5), replica("old", last_used_age_s=900))],
            evicting("gone"),
        ),
        ("nobody, where there is room", [full(replica("old")), on_b(free=12)], evicting(on="b")),
        (
            "after the room was lost, at once",
            [full(replica("new", FAILED, status_age_s=0.5, failure=LOST), replica("old"))],
            evicting("old"),
        ),
    ],
)
def test_who_leaves(what: str, neurons: list[NeuronView], expected: Load) -> None:
    assert place(NEW, fleet(*neurons), catalogue=OFFERED) == expected, what


@each_case(
    "evictable",
    [
        busy("old"),
        replica("old", LOADING, status_age_s=1.0),
        replica("old", status_age_s=IDLE_TIME_SLICE_S - 1, last_used_age_s=None),
        replica("old", last_used_age_s=QUIET_S / 2),
        replica("old", DRAINING),
    ],
    ids=["in use", "loading", "ready for a moment", "used a moment ago", "leaving"],
)
def test_who_does_not_leave_yet(evictable: ReplicaView) -> None:
    """The one that waits gets its time slice."""
    decision = place(NEW, fleet(full(evictable)), catalogue=OFFERED)
    assert isinstance(decision, Wait)
    assert decision.needs_time_slice
    assert "cuda:0 of a, which old use" in decision.reason


@each_case(
    "kept",
    [{"pinned": True}, {"residency_priority": 101}, {"pinned_on": ("a",)}, {"min_replicas": 1}],
    ids=str,
)
@each_case("evictable", [replica("old"), busy("old")], ids=["idle", "in use"])
def test_who_never_leaves(kept: dict[str, Any], evictable: ReplicaView) -> None:
    offered = catalogue(NEW, entry("old", 10, **kept))
    decision = refused(place(NEW, fleet(full(evictable)), catalogue=offered))
    assert decision.code == "not_enough_memory"
    needs = f"needs {12 * GIB:,} bytes of free memory on a, and {2 * GIB:,} are free on its cuda:0"
    assert needs in decision.message
    assert decision.retry_after_s is not None


def test_more_replicas_than_there_should_be_may_leave() -> None:
    offered = catalogue(NEW, entry("old", 10, pinned=True, max_replicas=2))
    two = fleet(full(replica("old")), on_b(replica("old", on="b"), free=0))
    assert place(NEW, two, catalogue=offered) == evicting("old")


def test_nobody_leaves_where_it_is_unknown_whether_that_makes_room() -> None:
    unknown, held = entry("new"), fleet(full(replica("old")))
    assert place(unknown, held, catalogue=catalogue(unknown, OLD)) == evicting()
    assert isinstance(place(NEW, held), Reject), "no priorities are known"
    failed = fleet(full(replica("old", FAILED)))
    assert isinstance(place(NEW, failed, catalogue=OFFERED), Reject), "it holds nothing"


def test_a_replica_on_two_cards_leaves_both() -> None:
    wide = entry("new", 40, min_devices=2)
    both = ("cuda:0", "cuda:1")
    pair = cards("a", 4, 4, holds=(replica("old", gib=40, devices=both),))
    decision = place(wide, fleet(pair), catalogue=catalogue(wide, entry("old", 40, min_devices=2)))
    assert decision == Load(neuron="a", model="new", devices=both, evict=("old",))


LARGER = entry("new", needs_gib=14)
TO_B = Load(neuron="b", model="old", devices=("cuda:0",))
TO_ITS_OTHER_CARD = Load(neuron="a", model="old", devices=("cuda:1",))
LONG_AGO = {"last_used_age_s": 3e5, "status_age_s": 3e5}


def pieces(held: ReplicaView, *more: ReplicaView, b_free: float = 12) -> FleetSnapshot:
    a = cards("a", 6, total=16, holds=(held,))
    return fleet(a, cards("b", b_free, total=16, holds=more))


@each_case(
    ("what", "snapshot", "old", "moves"),
    [
        ("it moves", pieces(replica("old")), OLD, (TO_B,)),
        ("however long ago it was used", pieces(replica("old", **LONG_AGO)), OLD, (TO_B,)),
        ("nobody knows what it needs", pieces(replica("old")), entry("old"), (TO_B,)),
        (
            "another card of its host has room",
            fleet(cards("a", 6, 12, total=16, holds=(replica("old"),))),
            OLD,
            (TO_ITS_OTHER_CARD,),
        ),
        ("no other neuron has room", pieces(replica("old"), b_free=9), OLD, ()),
        ("it is busy", pieces(busy("old")), OLD, ()),
        ("it is pinned", pieces(replica("old")), entry("old", 10, pinned=True), ()),
        ("it may run there only", pieces(replica("old")), entry("old", 10, pinned_on=("a",)), ()),
        ("another one has it", pieces(replica("old"), replica("old", on="b")), OLD, ()),
        ("another one loads it", pieces(replica("old"), replica("old", LOADING, on="b")), OLD, ()),
        ("the catalogue has it no more", pieces(replica("old")), None, ()),
    ],
)
def test_what_leaves(what: str, snapshot: FleetSnapshot, old: Any, moves: tuple[Load, ...]) -> None:
    offered = catalogue(LARGER, *([] if old is None else [old]))
    assert moves_for(evicting("old"), snapshot, offered) == moves, what


def test_what_can_move_leaves_rather_than_what_would_be_lost() -> None:
    """``large`` was used longer ago, and fits nowhere else; ``small`` fits into what c has free."""
    lost = replica("large", on="b", gib=15, last_used_age_s=900, status_age_s=900)
    snapshot = fleet(
        cards("a", 6, holds=(replica("small"),)),
        cards("b", 1, holds=(lost,)),
        cards("c", 12),
    )
    for pinned_on, evicted in (((), ("small",)), (("a",), ("large",))):
        small = entry("small", needs_gib=10, pinned_on=pinned_on)
        offered = catalogue(LARGER, small, entry("large", needs_gib=15))
        decision = loaded(place(LARGER, snapshot, catalogue=offered))
        assert decision.evict == evicted
        moves = [(move.model, move.neuron) for move in moves_for(decision, snapshot, offered)]
        assert moves == ([("small", "c")] if evicted == ("small",) else [])
