"""Who leaves for whom, what leaves moves, and models that sleep instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from fleet.live.snapshot import ReplicaView
from fleet.placement import Load, Wait, place, place_on
from fleet.placement.capacity import IDLE_TIME_SLICE_S, QUIET_S, freed_on
from fleet.placement.leaving import SLEEP_AGAIN_S
from fleet.placement.place import moves_for
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import AsleepBytes, DeviceMemory
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    GIB,
    act,
    brief,
    briefs,
    catalogue,
    entry,
    fleet,
    host_of,
    loaded,
    refused,
    replica,
    sleepy_report,
    world,
)

NEW, OLD, OLDER = entry("new", 12), entry("old", 10), entry("older", 10)
OFFERED = catalogue(NEW, OLD, OLDER, entry("third", 12))
A_SMALL_ONE = "a 0 older,gib=1,used=900 old,gib=12"
EIGHT_EACH = "a 0 old,gib=8,used=50 older,gib=8,used=50"
TINY, OTHER = entry("tiny", 10), entry("other", 10)
KNOWN = OFFERED | catalogue(TINY, OTHER, entry("cold", 10), entry("warm", 10))
ON_A, ON_B = "load tiny a/cuda:0", "load tiny b/cuda:0"
NEW_A, NEW_B = "load new a/cuda:0", "load new b/cuda:0"


@each_case(
    ("what", "model", "there", "expected"),
    [
        ("an idle one", NEW, "a 2 old", f"{NEW_A} -old"),
        ("the least recently used", NEW, "a 2 old,used=30 older,used=90", f"{NEW_A} -older"),
        ("wherever that is", NEW, "a 2 old,used=30; b 2 older,used=90", f"{NEW_B} -older"),
        ("one, not two", NEW, f"{EIGHT_EACH}; b 0 third,gib=12,used=40", f"{NEW_B} -third"),
        ("both where one is not enough", NEW, EIGHT_EACH, f"{NEW_A} -old -older"),
        ("not a small one that makes no difference", NEW, A_SMALL_ONE, f"{NEW_A} -old"),
        ("what nobody offers any more", NEW, "a 2 gone,used=5 old,used=900", f"{NEW_A} -gone"),
        ("nobody, where there is room", NEW, "a 2 old; b 12", NEW_B),
        ("lost its room", NEW, "a 2 new,failed,code=lost_its_room,age=0 old", f"{NEW_A} -old"),
        ("it wakes where it sleeps", TINY, "a 12 cpu60 tiny,slept", ON_A),
        ("rather than be loaded where more is free", TINY, "a 9 tiny,slept; b 20", ON_A),
        ("a ready one serves", TINY, "a 12 tiny,slept; b 12 tiny", "route b"),
        ("one that wakes is waited for", TINY, "a 12 tiny,loading", "wait a"),
        ("loaded elsewhere where it lacks room", TINY, "a 8 tiny,slept; b 20", ON_B),
        ("idle models leave for it", TINY, "a 1 tiny,slept other", f"{ON_A} -other"),
        ("those in use after their time", TINY, "a 1 tiny,slept other,busy,able", "slice a"),
        ("it does not leave for itself", TINY, "a 8.5 tiny,slept", "not_enough_memory"),
        ("what sleeps leaves for a load", TINY, "a 8 other,slept,gib=3", f"{ON_A} -other"),
        ("one of an older spec is loaded anew", TINY, "a 9.5 tiny,slept,spec=old; b 20", ON_B),
        ("it just failed to wake", TINY, "a 12 tiny,slept,code=does_not_fit,age=1", "wait a"),
        ("of two as idle, one that can sleep", TINY, "a 1 cpu60 cold warm,able", f"{ON_A} -warm"),
        ("a tenth of the host is kept", TINY, "a 1 cpu15 cold warm,able", f"{ON_A} -cold"),
    ],
)
def test_who_leaves_or_wakes(what: str, model: Any, there: str, expected: str) -> None:
    assert brief(place(model, world(there), catalogue=KNOWN)) == expected, what


def test_who_never_leaves_or_not_yet() -> None:
    for kept in (
        {"pinned": True},
        {"residency_priority": 101},
        {"pinned_on": ("a",)},
        {"min_replicas": 1},
    ):
        for there in ("a 2 old", "a 2 old,busy"):
            offered = catalogue(NEW, entry("old", 10, **kept))
            decision = refused(place(NEW, world(there), catalogue=offered))
            assert decision.code == "not_enough_memory", kept
            needs = f"{12 * GIB:,} bytes of free memory on a, and {2 * GIB:,} are free on its cuda"
            assert needs in decision.message and decision.retry_after_s is not None
    young = f"age={IDLE_TIME_SLICE_S - 1},used=never"
    for old in ("busy", "loading,age=1", young, f"used={QUIET_S / 2}", "draining"):
        decision = place(NEW, world(f"a 2 old,{old}"), catalogue=OFFERED)
        assert isinstance(decision, Wait) and decision.needs_time_slice, "it gets its time slice"
        assert "cuda:0 of a, which old use" in decision.reason
    # Nobody leaves where it is unknown whether that makes room.
    unknown, held = entry("new"), world("a 2 old")
    assert loaded(place(unknown, held, catalogue=catalogue(unknown, OLD))).evict == ()
    assert brief(place(NEW, held)) == "not_enough_memory", "no priorities are known"
    failed = world("a 2 old,failed")
    assert brief(place(NEW, failed, catalogue=OFFERED)) == "not_enough_memory", "it holds nothing"
    # More replicas than there should be may leave, and one on two cards leaves both.
    offered = catalogue(NEW, entry("old", 10, pinned=True, max_replicas=2))
    assert loaded(place(NEW, world("a 2 old; b 0 old"), catalogue=offered)).evict == ("old",)
    wide, old = (entry(name, 40, min_devices=2) for name in ("new", "old"))
    there = world("a 4 4 old,gib=40,on=cuda:0+cuda:1")
    expected = "load new a/cuda:0+cuda:1 -old"
    assert brief(place(wide, there, catalogue=catalogue(wide, old))) == expected
    # What can move leaves rather than what would be lost.
    snapshot = world("a 6 small; b 1 large,gib=15,used=900,age=900; c 12")
    for pinned_on, evicted, moves in (((), "small", "load small c/cuda:0"), (("a",), "large", "")):
        small = entry("small", needs_gib=10, pinned_on=pinned_on)
        offered = catalogue(LARGER, small, entry("large", needs_gib=15))
        decision = loaded(place(LARGER, snapshot, catalogue=offered))
        assert decision.evict == (evicted,)
        assert briefs(moves_for(decision, snapshot, offered)) == moves
    # A failed wake is named, and an operator wakes it there.
    failed = world("a 12 tiny,slept,code=does_not_fit,age=1")
    decision = place(TINY, failed, catalogue=KNOWN)
    assert isinstance(decision, Wait) and decision.eta_s == 5.0
    assert decision.reason == "tiny sleeps on a and could not be woken just now"
    here = world("a 1 tiny,slept other")
    assert brief(place_on(TINY, here.neurons[0], here, KNOWN)) == f"{ON_A} -other"


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


def divided() -> ReplicaView:
    """Asleep, of 10 GiB on a card and 20 of the host; awake it takes 9 and 2 GiB more."""
    memory = [
        DeviceMemory(device=name, actual_bytes=gib * GIB, process_bytes=0)
        for name, gib in (("cuda:0", 10), ("cpu", 20))
    ]
    by_device = {"cuda:0": GIB, "cpu": 18 * GIB}
    asleep = AsleepBytes(device_bytes=19 * GIB, host_bytes=9 * GIB, by_device=by_device)
    own = msgspec.structs.replace(
        sleepy_report(30), device="cuda:0, cpu", stage_memory=memory, asleep=asleep
    )
    slept = {"report": own, "host_memory_bytes": 9 * GIB, "devices": ("cuda:0", "cpu")}
    return replica("tiny", ReplicaStatus.ASLEEP, gib=19, **slept)


@each_case(
    ("what", "there", "evicted"),
    [
        ("room", "a 9 cpu2", ()),
        ("the card makes room", "a 0 cpu2 other", ("other",)),
        ("the host makes room", "a 9 cpu1 other,on=cpu", ("other",)),
        ("the card lacks", "a 8 cpu60", None),
        ("the host lacks", "a 20 cpu1", None),
    ],
)
def test_one_that_is_divided_wakes_where_each_of_its_devices_has_room(what, there, evicted) -> None:
    host = host_of(there)
    host = replace(host, replicas=(*host.replicas, divided()))
    decision = place(TINY, fleet(host), catalogue=KNOWN)
    assert isinstance(decision, Load) == (evicted is not None), what
    if isinstance(decision, Load):
        assert (set(decision.devices), decision.evict) == ({"cuda:0", "cpu"}, evicted), what
    assert [freed_on(divided(), name, host) for name in ("cuda:0", "cpu")] == [GIB, 18 * GIB]


SLEEP = {"idle_ttl_s": 60, "idle_action": "sleep"}
IDLE = entry("tiny", 10, **SLEEP)
JUST, LONG_AGO = (f"able,refused-s={SLEEP_AGAIN_S - s}" for s in (1, 0))


@each_case(
    ("what", "model", "there", "expected"),
    [
        ("an idle one sleeps", IDLE, "a 12 cpu60 tiny,able", "sleep tiny a"),
        ("not chosen", entry("tiny", 10, idle_ttl_s=60), "a 12 cpu60 tiny,able", "unload tiny a"),
        ("it cannot", IDLE, "a 12 cpu60 tiny", "unload tiny a"),
        ("the host has no room", IDLE, "a 12 cpu20 tiny,able", "unload tiny a"),
        ("its neuron has just refused", IDLE, f"a 12 cpu60 tiny,{JUST}", "unload tiny a"),
        ("it may be asked again later", IDLE, f"a 12 cpu60 tiny,{LONG_AGO}", "sleep tiny a"),
        ("one in use stays", IDLE, "a 12 cpu60 tiny,able,busy", ""),
        ("pinned", entry("tiny", 10, pinned=True, **SLEEP), "a 12 cpu60 tiny,able", ""),
        ("one that sleeps stays asleep", IDLE, "a 12 cpu60 tiny,slept", ""),
        ("unless it is missed", entry("tiny", 10, pinned=True), "a 12 cpu60 tiny,slept", ON_A),
        ("one that nobody offers goes", OTHER, "a 12 cpu60 tiny,slept", "unload tiny a"),
        ("its neuron drains", TINY, "a 12 cpu60 tiny,slept draining", "unload tiny a"),
    ],
)
def test_what_a_tick_does(what: str, model: Any, there: str, expected: str) -> None:
    actions = act(catalogue(model), world(there))
    assert briefs(actions) == expected, what
    if model is IDLE:
        assert all(one.reason == "idle for 60 s" for one in actions), what
        falling = frozenset({("tiny", "a")})
        assert not act(catalogue(IDLE), world(there), unloading=falling), "it is not asked again"
