"""Who leaves for whom: idle, unpinned, least valuable, and only where that makes room. What leaves
moves where memory is free."""

from __future__ import annotations

from typing import Any

from fleet.placement import Load, Wait, place
from fleet.placement.devices.capacity import IDLE_TIME_SLICE_S, QUIET_S
from fleet.placement.devices.moves import moves_for
from tests.cases import each_case
from tests.fleet.placement.fleets import GIB, catalogue, entry, loaded, refused
from tests.fleet.placement.worlds import brief, briefs, world

NEW, OLD, OLDER = entry("new", 12), entry("old", 10), entry("older", 10)
OFFERED = catalogue(NEW, OLD, OLDER, entry("third", 12))
A_SMALL_ONE = "a 0 older,gib=1,used=900 old,gib=12"
EIGHT_EACH = "a 0 old,gib=8,used=50 older,gib=8,used=50"


@each_case(
    ("what", "there", "expected"),
    [
        ("an idle one", "a 2 old", "a/cuda:0 -old"),
        ("the least recently used", "a 2 old,used=30 older,used=90", "a/cuda:0 -older"),
        ("wherever that is", "a 2 old,used=30; b 2 older,used=90", "b/cuda:0 -older"),
        ("rather one than two", f"{EIGHT_EACH}; b 0 third,gib=12,used=40", "b/cuda:0 -third"),
        ("both where one is not enough", EIGHT_EACH, "a/cuda:0 -old -older"),
        ("not a small one that makes no difference", A_SMALL_ONE, "a/cuda:0 -old"),
        ("what nobody offers any more", "a 2 gone,used=5 old,used=900", "a/cuda:0 -gone"),
        ("nobody, where there is room", "a 2 old; b 12", "b/cuda:0"),
        ("lost its room, at once", "a 2 new,failed,code=lost_its_room,age=0 old", "a/cuda:0 -old"),
    ],
)
def test_who_leaves(what: str, there: str, expected: str) -> None:
    assert brief(place(NEW, world(there), catalogue=OFFERED)) == f"load new {expected}", what


@each_case(
    "old",
    [
        "busy",
        "loading,age=1",
        f"age={IDLE_TIME_SLICE_S - 1},used=never",
        f"used={QUIET_S / 2}",
        "draining",
    ],
)
def test_who_does_not_leave_yet(old: str) -> None:
    """The one that waits gets its time slice."""
    decision = place(NEW, world(f"a 2 old,{old}"), catalogue=OFFERED)
    assert isinstance(decision, Wait)
    assert decision.needs_time_slice
    assert "cuda:0 of a, which old use" in decision.reason


@each_case(
    "kept",
    [{"pinned": True}, {"residency_priority": 101}, {"pinned_on": ("a",)}, {"min_replicas": 1}],
    ids=str,
)
@each_case("there", ["a 2 old", "a 2 old,busy"])
def test_who_never_leaves(kept: dict[str, Any], there: str) -> None:
    decision = refused(place(NEW, world(there), catalogue=catalogue(NEW, entry("old", 10, **kept))))
    assert decision.code == "not_enough_memory"
    needs = f"needs {12 * GIB:,} bytes of free memory on a, and {2 * GIB:,} are free on its cuda:0"
    assert needs in decision.message
    assert decision.retry_after_s is not None


def test_more_replicas_than_there_should_be_may_leave() -> None:
    offered = catalogue(NEW, entry("old", 10, pinned=True, max_replicas=2))
    assert loaded(place(NEW, world("a 2 old; b 0 old"), catalogue=offered)).evict == ("old",)


def test_nobody_leaves_where_it_is_unknown_whether_that_makes_room() -> None:
    unknown, held = entry("new"), world("a 2 old")
    assert loaded(place(unknown, held, catalogue=catalogue(unknown, OLD))).evict == ()
    assert brief(place(NEW, held)) == "not_enough_memory", "no priorities are known"
    failed = world("a 2 old,failed")
    assert brief(place(NEW, failed, catalogue=OFFERED)) == "not_enough_memory", "it holds nothing"


def test_a_replica_on_two_cards_leaves_both() -> None:
    wide, old = (entry(name, 40, min_devices=2) for name in ("new", "old"))
    decision = place(
        wide, world("a 4 4 old,gib=40,on=cuda:0+cuda:1"), catalogue=catalogue(wide, old)
    )
    assert brief(decision) == "load new a/cuda:0+cuda:1 -old"


LARGER = entry("new", needs_gib=14)


@each_case(
    ("what", "there", "old", "moves"),
    [
        ("it moves", "a 6/16 old; b 12/16", OLD, "load old b/cuda:0"),
        ("however old", "a 6/16 old,used=3e5,age=3e5; b 12/16", OLD, "load old b/cuda:0"),
        ("of unknown need", "a 6/16 old; b 12/16", entry("old"), "load old b/cuda:0"),
        ("to another card of its host", "a 6/16 12/16 old", OLD, "load old a/cuda:1"),
        ("no other neuron has room", "a 6/16 old; b 9/16", OLD, ""),
        ("it is busy", "a 6/16 old,busy; b 12/16", OLD, ""),
        ("it is pinned", "a 6/16 old; b 12/16", entry("old", 10, pinned=True), ""),
        ("it may run there only", "a 6/16 old; b 12/16", entry("old", 10, pinned_on=("a",)), ""),
        ("another one has it", "a 6/16 old; b 12/16 old", OLD, ""),
        ("another one loads it", "a 6/16 old; b 12/16 old,loading", OLD, ""),
        ("the catalogue has it no more", "a 6/16 old; b 12/16", None, ""),
    ],
)
def test_what_leaves(what: str, there: str, old: Any, moves: str) -> None:
    offered = catalogue(LARGER, *([] if old is None else [old]))
    load = Load(neuron="a", model="new", devices=("cuda:0",), evict=("old",))
    assert briefs(moves_for(load, world(there), offered)) == moves, what


def test_what_can_move_leaves_rather_than_what_would_be_lost() -> None:
    """``large`` was used longer ago, and fits nowhere else; ``small`` fits into what c has free."""
    snapshot = world("a 6 small; b 1 large,gib=15,used=900,age=900; c 12")
    for pinned_on, evicted, moves in (
        ((), "small", "load small c/cuda:0"),
        (("a",), "large", ""),
    ):
        small = entry("small", needs_gib=10, pinned_on=pinned_on)
        offered = catalogue(LARGER, small, entry("large", needs_gib=15))
        decision = loaded(place(LARGER, snapshot, catalogue=offered))
        assert decision.evict == (evicted,)
        assert briefs(moves_for(decision, snapshot, offered)) == moves
