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
    READY,
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

BIG_CARD = KnownDevice(kind="cuda", total_memory_bytes=24 * GIB)


def drained(*hosts: Any, for_s: float = 12.0, away_s: float | None = None) -> FleetSnapshot:
    """``hosts``, while an operator drains "a"."""
    known = KnownHost(devices=(BIG_CARD,), draining_s=for_s, away_s=away_s)
    states = DesiredStates(by_neuron={"a": DesiredState(drain=True, host=known)})
    return fleet(*hosts, desired_states=states)


def draining(*holds: Any):
    return host("a", *holds, is_draining=True)


def full(name: str, *holds: Any):
    return host(name, *holds, free=1)


ELSEWHERE = replica("tiny", LOADING, on="b")
SERVED = {
    "no other host can hold it": (drained(draining(busy("tiny")), full("b")), "Wait"),
    "it is idle": (drained(draining(replica("tiny")), full("b")), "Wait"),
    "it has left": (drained(draining(), full("b")), "Wait"),
    "its host restarts": (drained(full("b"), away_s=3.0), "Wait"),
    "another one failed just now": (
        drained(
            draining(busy("tiny")),
            full("b", replica("tiny", FAILED, on="b", status_age_s=1.0)),
        ),
        "Wait",
    ),
    "it moves": (drained(draining(busy("tiny")), full("b", ELSEWHERE)), "Route a"),
    "it can move": (drained(draining(busy("tiny")), host("b")), "Load b"),
    "it has moved": (
        drained(draining(busy("tiny")), full("b", replica("tiny", READY, on="b"))),
        "Route b",
    ),
    "the drain lasts too long": (
        drained(draining(busy("tiny")), full("b"), for_s=DRAIN_WAIT_S),
        "Reject",
    ),
}


def outcome(decision: Any) -> str:
    named = f" {decision.neuron}" if isinstance(decision, Route | Load) else ""
    return type(decision).__name__ + named


@each_case(("snapshot", "expected"), SERVED.values(), ids=SERVED.keys())
def test_a_host_that_drains_gets_no_new_request_but_while_its_model_moves(
    snapshot, expected
) -> None:
    assert outcome(place(entry("tiny", 20), snapshot)) == expected.replace("Load b", "Wait")
    assert outcome(place(PLAIN, snapshot, catalogue=catalogue(PLAIN))) == expected


def test_whoever_waits_is_told_for_what_and_for_how_long() -> None:
    decision = place(PLAIN, drained(draining(busy("tiny", in_flight=2)), full("b")))
    assert decision == Wait(
        neuron="a",
        model="tiny",
        reason="tiny waits for a, which has been draining for 12 s and finishes 2 of its requests",
        eta_s=12.0,
        is_for_drain=True,
    )


ENDED = {
    "what runs": busy("tiny"),
    "what loads": replica("tiny", LOADING),
    "what has been unloading for long": replica("tiny", DRAINING, in_flight=1),
    "what sleeps": replica("tiny", ReplicaStatus.ASLEEP),
}


@each_case("held", ENDED.values(), ids=ENDED.keys())
def test_what_is_left_after_a_drains_time_ends(held) -> None:
    unloading = frozenset({("tiny", "a")})
    for tiny in (PLAIN, PINNED):
        known = {"overdue": frozenset({"a"}), "unloading": unloading}
        (ended,) = act(catalogue(tiny), fleet(draining(held), full("b")), **known)
        assert (ended.neuron, ended.model, ended.at_once) == ("a", "tiny", True)


def test_nothing_else_ends_then() -> None:
    failed = fleet(draining(replica("tiny", FAILED)), host("b", busy("other", on="b")))
    offered = catalogue(PLAIN, entry("other", 10))
    assert act(offered, failed, overdue=frozenset({"a"})) == ()


ON_B = entry("tiny", 10, pinned=True, pinned_on=("b",))
ALLOWED_ON_B = entry("tiny", 10, pinned_on=("b",))
MOVES = {
    "it is loaded where it is to be": (ON_B, [host("a", busy("tiny")), host("b")], [load("b")]),
    "nothing leaves before that": (ON_B, [host("a", busy("tiny")), host("b", ELSEWHERE)], []),
    "then it leaves": (
        ON_B,
        [host("a", replica("tiny")), host("b", replica("tiny", on="b"))],
        [
            Unload(
                neuron="a",
                model="tiny",
                reason="its pinned_on names other neurons, and another one has it",
            )
        ],
    ),
    "idle models make room": (
        ON_B,
        [host("a", busy("tiny")), full("b", replica("other", on="b"))],
        [load("b", "other")],
    ),
    "it stays while it has no room there": (ON_B, [host("a", busy("tiny")), full("b")], []),
    "and while that host is away": (ON_B, [host("a", replica("tiny"))], []),
    "what need not be loaded moves, too": (
        ALLOWED_ON_B,
        [host("a", replica("tiny")), host("b")],
        [load("b")],
    ),
    "for an idle one nobody makes room": (
        ALLOWED_ON_B,
        [host("a", replica("tiny")), full("b", replica("other", on="b"))],
        [],
    ),
}


@each_case(("tiny", "hosts", "expected"), MOVES.values(), ids=MOVES.keys())
def test_a_replica_goes_where_pinned_on_wants_it(tiny, hosts, expected) -> None:
    snapshot = fleet(*hosts)
    assert list(act(catalogue(tiny, entry("other", 10)), snapshot)) == expected
    serving = "b" if expected and isinstance(expected[0], Unload) else "a"
    assert outcome(place(tiny, snapshot)) == f"Route {serving}", "it is served meanwhile"


EMPTIED = {
    "what is pinned moves first": (PINNED, [draining(replica("tiny")), host("b")], [load("b")]),
    "what is in use moves": (PLAIN, [draining(busy("tiny")), host("b")], [load("b")]),
    "and leaves when it is there": (
        PINNED,
        [draining(replica("tiny")), host("b", replica("tiny", on="b"))],
        [Unload(neuron="a", model="tiny", reason="its neuron drains, and another one has it")],
    ),
    "once its requests are done": (
        PINNED,
        [draining(busy("tiny")), host("b", replica("tiny", on="b"))],
        [],
    ),
    "not before": (
        PINNED,
        [draining(busy("tiny")), host("b", replica("tiny", LOADING, on="b"))],
        [],
    ),
    "what is in use stays where there is no room": (PLAIN, [draining(busy("tiny"))], []),
    "what is idle leaves": (
        PLAIN,
        [draining(replica("tiny")), host("b")],
        [Unload(neuron="a", model="tiny", reason="its neuron drains")],
    ),
    "what is pinned stays where there is no room": (PINNED, [draining(replica("tiny"))], []),
}


@each_case(("tiny", "hosts", "expected"), EMPTIED.values(), ids=EMPTIED.keys())
def test_a_neuron_that_drains_is_emptied(tiny, hosts, expected) -> None:
    assert list(act(catalogue(tiny), fleet(*hosts))) == expected


RESTORED = {
    "what was loaded is loaded again, the last used first": (
        {"a": ("tiny", "other")},
        [host("a", free=12)],
        [load("a")],
        {"a": {"other"}},
    ),
    "not before its neuron takes loads": ({"a": ("tiny",)}, [draining()], [], {}),
    "nor while it is away": ({"a": ("tiny",)}, [host("b")], [], {}),
    "what loads is waited for": ({"a": ("tiny",)}, [host("a", replica("tiny", LOADING))], [], {}),
    "what is there again is done": (
        {"a": ("tiny",)},
        [host("a", replica("tiny"))],
        [],
        {"a": {"tiny"}},
    ),
    "what failed is not tried again": (
        {"a": ("tiny",)},
        [host("a", replica("tiny", FAILED, status_age_s=900.0))],
        [],
        {"a": {"tiny"}},
    ),
    "what the catalogue lost is done": ({"a": ("lost",)}, [host("a")], [], {"a": {"lost"}}),
    "what has no room is done, and evicts nobody": (
        {"a": ("tiny",)},
        [host("a", replica("other"), free=2)],
        [],
        {"a": {"tiny"}},
    ),
    "what stood in for it meanwhile does not keep it away": (
        {"a": ("tiny",)},
        [host("a"), host("b", busy("tiny", on="b"))],
        [load("a")],
        {},
    ),
    "one that still loads is waited for, and then leaves": (
        {"a": ("tiny",)},
        [host("a", replica("tiny")), host("b", replica("tiny", LOADING, on="b"))],
        [],
        {},
    ),
    "and leaves at once, though it is in use": (
        {"a": ("tiny",)},
        [host("a", replica("tiny", status_age_s=0.5)), host("b", busy("tiny", on="b"))],
        [Unload(neuron="b", model="tiny", reason="one of 2, and at most 1 stay")],
        {},
    ),
}


@each_case(("to_restore", "hosts", "expected", "restored"), RESTORED.values(), ids=RESTORED.keys())
def test_after_a_drain(to_restore, hosts, expected, restored) -> None:
    offered = catalogue(PLAIN, entry("other", 10))
    found = plan(offered, fleet(*hosts), to_restore=to_restore)
    assert list(found.actions) == expected
    assert found.restored == restored


def test_what_makes_room_on_its_own_neuron_is_loaded_there_again_once_it_has_left() -> None:
    offered = catalogue(PLAIN, entry("new", 10))
    known = {"to_restore": {"a": ("tiny",)}, "loading": frozenset({("new", "a")})}
    leaves = frozenset({("tiny", "a")})
    there = plan(offered, fleet(host("a", replica("tiny"))), evicting=leaves, **known)
    assert there.actions == () and there.restored == {}
    gone = plan(offered, fleet(host("a", replica("new", LOADING))), evicting=leaves, **known)
    assert gone.actions == (load("a"),) and gone.restored == {}
    stayed = plan(offered, fleet(host("a", replica("tiny"))), to_restore={"a": ("tiny",)})
    assert stayed.actions == () and stayed.restored == {"a": {"tiny"}}
