"""Replicas that are to leave where they are: hosts that drain, and a changed ``pinned_on``."""

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
    READY,
    busy,
    catalogue,
    entry,
    fleet,
    replica,
)
from tests.fleet.placement.ticks import PINNED, PLAIN, act, host, load

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
