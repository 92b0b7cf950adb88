"""Replicas that are to leave where they are, and come back: hosts that drain, and a changed
``pinned_on``."""

from __future__ import annotations

from typing import Any

from fleet.live.desired_state import DesiredState, DesiredStates, KnownDevice, KnownHost
from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Load, Route, Wait, place
from fleet.placement.decisions import Unload
from fleet.placement.returning import DRAIN_WAIT_S
from inference.protocol.heartbeat import ReplicaStatus
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
    PINNED,
    PLAIN,
    act,
    busy,
    catalogue,
    entry,
    fleet,
    host,
    load,
    plan,
    replica,
)


def drained(*hosts: Any, for_s: float = 12.0, away_s: float | None = None) -> FleetSnapshot:
    """``hosts``, while an operator drains "a"."""
    big_card = KnownDevice(kind="cuda", total_memory_bytes=24 * GIB)
    known = KnownHost(devices=(big_card,), draining_s=for_s, away_s=away_s)
    states = DesiredStates(by_neuron={"a": DesiredState(drain=True, host=known)})
    return fleet(*hosts, desired_states=states)


def draining(*holds: Any):
    return host("a", *holds, is_draining=True)


def full(name: str, *holds: Any):
    return host(name, *holds, free=1)


READY_A, READY_B = replica("tiny"), replica("tiny", on="b")
LOADS_B = replica("tiny", LOADING, on="b")
BUSY_A, BUSY_B = busy("tiny"), busy("tiny", on="b")
FAILED_B = replica("tiny", FAILED, on="b", status_age_s=1.0)
OTHER_A, OTHER_B = replica("other"), replica("other", on="b")


def outcome(decision: Any) -> str:
    named = f" {decision.neuron}" if isinstance(decision, Route | Load) else ""
    return type(decision).__name__ + named


@each_case(
    ("what", "snapshot", "expected"),
    [
        ("no other host can hold it", drained(draining(BUSY_A), full("b")), "Wait"),
        ("it is idle", drained(draining(READY_A), full("b")), "Wait"),
        ("it has left", drained(draining(), full("b")), "Wait"),
        ("its host restarts", drained(full("b"), away_s=3.0), "Wait"),
        ("another failed just now", drained(draining(BUSY_A), full("b", FAILED_B)), "Wait"),
        ("it moves", drained(draining(BUSY_A), full("b", LOADS_B)), "Route a"),
        ("it can move", drained(draining(BUSY_A), host("b")), "Load b"),
        ("it has moved", drained(draining(BUSY_A), full("b", READY_B)), "Route b"),
        ("too long", drained(draining(BUSY_A), full("b"), for_s=DRAIN_WAIT_S), "Reject"),
    ],
)
def test_a_host_that_drains_gets_no_new_request_but_while_its_model_moves(
    what, snapshot, expected
) -> None:
    assert outcome(place(PLAIN, snapshot, catalogue=catalogue(PLAIN))) == expected, what
    too_large = outcome(place(entry("tiny", 20), snapshot))
    assert too_large == expected.replace("Load b", "Wait"), what


def test_whoever_waits_is_told_for_what_and_for_how_long() -> None:
    decision = place(PLAIN, drained(draining(busy("tiny", in_flight=2)), full("b")))
    assert decision == Wait(
        neuron="a",
        model="tiny",
        reason="tiny waits for a, which has been draining for 12 s and finishes 2 of its requests",
        eta_s=12.0,
        is_for_drain=True,
    )


@each_case("tiny", [PLAIN, PINNED], ids=["plain", "pinned"])
@each_case(
    "held",
    [
        BUSY_A,
        replica("tiny", LOADING),
        replica("tiny", DRAINING, in_flight=1),
        replica("tiny", ReplicaStatus.ASLEEP),
    ],
    ids=["it runs", "it loads", "it has been unloading for long", "it sleeps"],
)
def test_what_is_left_after_a_drains_time_ends(tiny, held) -> None:
    known = {"overdue": frozenset({"a"}), "unloading": frozenset({("tiny", "a")})}
    (ended,) = act(catalogue(tiny), fleet(draining(held), full("b")), **known)
    assert (ended.neuron, ended.model, ended.at_once) == ("a", "tiny", True)


def test_nothing_else_ends_then() -> None:
    failed = fleet(draining(replica("tiny", FAILED)), host("b", busy("other", on="b")))
    offered = catalogue(PLAIN, entry("other", 10))
    assert act(offered, failed, overdue=frozenset({"a"})) == ()


ON_B = entry("tiny", 10, pinned=True, pinned_on=("b",))
ALLOWED_ON_B = entry("tiny", 10, pinned_on=("b",))
MOVED = "its pinned_on names other neurons, and another one has it"


def unload(reason: str, on: str = "a") -> Unload:
    return Unload(neuron=on, model="tiny", reason=reason)


@each_case(
    ("what", "tiny", "hosts", "expected"),
    [
        ("it is loaded where it is to be", ON_B, [host("a", BUSY_A), host("b")], [load("b")]),
        ("nothing leaves before that", ON_B, [host("a", BUSY_A), host("b", LOADS_B)], []),
        ("then it leaves", ON_B, [host("a", READY_A), host("b", READY_B)], [unload(MOVED)]),
        ("others make room", ON_B, [host("a", BUSY_A), full("b", OTHER_B)], [load("b", "other")]),
        ("it stays while it has no room there", ON_B, [host("a", BUSY_A), full("b")], []),
        ("and while that host is away", ON_B, [host("a", READY_A)], []),
        ("not kept, it moves, too", ALLOWED_ON_B, [host("a", READY_A), host("b")], [load("b")]),
        ("none makes room for it", ALLOWED_ON_B, [host("a", READY_A), full("b", OTHER_B)], []),
    ],
)
def test_a_replica_goes_where_pinned_on_wants_it(what, tiny, hosts, expected) -> None:
    snapshot = fleet(*hosts)
    assert list(act(catalogue(tiny, entry("other", 10)), snapshot)) == expected, what
    serving = "b" if expected == [unload(MOVED)] else "a"
    assert outcome(place(tiny, snapshot)) == f"Route {serving}", "it is served meanwhile"


MOVED_AWAY = "its neuron drains, and another one has it"


@each_case(
    ("what", "tiny", "hosts", "expected"),
    [
        ("what is pinned moves first", PINNED, [draining(READY_A), host("b")], [load("b")]),
        ("what is in use moves", PLAIN, [draining(BUSY_A), host("b")], [load("b")]),
        ("and leaves", PINNED, [draining(READY_A), host("b", READY_B)], [unload(MOVED_AWAY)]),
        ("once its requests are done", PINNED, [draining(BUSY_A), host("b", READY_B)], []),
        ("not before", PINNED, [draining(BUSY_A), host("b", LOADS_B)], []),
        ("in use, without room elsewhere", PLAIN, [draining(BUSY_A)], []),
        ("idle", PLAIN, [draining(READY_A), host("b")], [unload("its neuron drains")]),
        ("pinned, without room elsewhere", PINNED, [draining(READY_A)], []),
    ],
)
def test_a_neuron_that_drains_is_emptied(what, tiny, hosts, expected) -> None:
    assert list(act(catalogue(tiny), fleet(*hosts))) == expected, what


TINY_TO_A, DONE = {"a": ("tiny",)}, {"a": {"tiny"}}
FAILED_LONG_AGO = replica("tiny", FAILED, status_age_s=900.0)
JUST_BACK = replica("tiny", status_age_s=0.5)


@each_case(
    ("what", "to_restore", "hosts", "expected", "restored"),
    [
        ("the last used first", {"a": ("tiny", "other")}, [host()], [load("a")], {"a": {"other"}}),
        ("not before its neuron takes loads", TINY_TO_A, [draining()], [], {}),
        ("nor while it is away", TINY_TO_A, [host("b")], [], {}),
        ("it loads", TINY_TO_A, [host("a", replica("tiny", LOADING))], [], {}),
        ("it is there again", TINY_TO_A, [host("a", READY_A)], [], DONE),
        ("what failed is not tried again", TINY_TO_A, [host("a", FAILED_LONG_AGO)], [], DONE),
        ("the catalogue lost it", {"a": ("lost",)}, [host()], [], {"a": {"lost"}}),
        ("no room, and it evicts nobody", TINY_TO_A, [host("a", OTHER_A, free=2)], [], DONE),
        ("it has a substitute", TINY_TO_A, [host("a"), host("b", BUSY_B)], [load("a")], {}),
        ("which still loads", TINY_TO_A, [host("a", READY_A), host("b", LOADS_B)], [], {}),
        (
            "which leaves at once, though it is in use",
            TINY_TO_A,
            [host("a", JUST_BACK), host("b", BUSY_B)],
            [unload("one of 2, and at most 1 stay", on="b")],
            {},
        ),
    ],
)
def test_after_a_drain(what, to_restore, hosts, expected, restored) -> None:
    offered = catalogue(PLAIN, entry("other", 10))
    found = plan(offered, fleet(*hosts), to_restore=to_restore)
    assert (list(found.actions), found.restored) == (expected, restored), what


def test_what_makes_room_on_its_own_neuron_is_loaded_there_again_once_it_has_left() -> None:
    offered = catalogue(PLAIN, entry("new", 10))
    known = {"to_restore": TINY_TO_A, "loading": frozenset({("new", "a")})}
    leaves = frozenset({("tiny", "a")})
    there = plan(offered, fleet(host("a", READY_A)), evicting=leaves, **known)
    assert (there.actions, there.restored) == ((), {})
    gone = plan(offered, fleet(host("a", replica("new", LOADING))), evicting=leaves, **known)
    assert (gone.actions, gone.restored) == ((load("a"),), {})
    stayed = plan(offered, fleet(host("a", READY_A)), to_restore=TINY_TO_A)
    assert (stayed.actions, stayed.restored) == ((), DONE)
