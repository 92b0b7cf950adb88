"""Replicas that are to leave where they are, and hosts that come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.live.desired_state import Admission, DesiredState, DesiredStates, KnownDevice, KnownHost
from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Load, Wait, place, place_on
from fleet.placement.decisions import Unload
from fleet.placement.leaving import why_not_loaded_on
from fleet.placement.returning import DRAIN_WAIT_S, MAX_RETURN_S, MIN_RETURN_S
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    GIB,
    PINNED,
    PLAIN,
    act,
    brief,
    briefs,
    catalogue,
    entry,
    host_of,
    plan,
    refused,
    world,
)

OTHER = entry("other", 10)


def drained(there: str, for_s: float = 12.0, away_s: float | None = None) -> FleetSnapshot:
    """These hosts, while an operator drains "a"."""
    big_card = KnownDevice(kind="cuda", total_memory_bytes=24 * GIB)
    known = KnownHost(devices=(big_card,), draining_s=for_s, away_s=away_s)
    states = DesiredStates(by_neuron={"a": DesiredState(drain=True, host=known)})
    return world(there, desired_states=states)


@each_case(
    ("what", "there", "known", "expected"),
    [
        ("no other host can hold it", "a 12 tiny,busy draining; b 1", {}, "wait a"),
        ("it is idle", "a 12 tiny draining; b 1", {}, "wait a"),
        ("it has left", "a 12 draining; b 1", {}, "wait a"),
        ("its host restarts", "b 1", {"away_s": 3.0}, "wait a"),
        ("another failed", "a 12 tiny,busy draining; b 1 tiny,failed,age=1", {}, "wait a"),
        ("it moves", "a 12 tiny,busy draining; b 1 tiny,loading", {}, "route a"),
        ("it can move", "a 12 tiny,busy draining; b 12", {}, "load tiny b/cuda:0"),
        ("it has moved", "a 12 tiny,busy draining; b 1 tiny", {}, "route b"),
        ("too long", "a 12 tiny,busy draining; b 1", {"for_s": DRAIN_WAIT_S}, "not_enough_memory"),
    ],
)
def test_a_drained_host_gets_requests_while_its_model_moves(what, there, known, expected) -> None:
    assert brief(place(PLAIN, drained(there, **known), catalogue=catalogue(PLAIN))) == expected
    large = brief(place(entry("tiny", 20), drained(there, **known)))
    assert large == expected.replace("load tiny b/cuda:0", "wait a"), what


def test_whoever_waits_is_told_for_what_and_what_is_left_after_its_time_ends() -> None:
    assert place(PLAIN, drained("a 12 tiny,running=2 draining; b 1")) == Wait(
        neuron="a",
        model="tiny",
        reason="tiny waits for a, which has been draining for 12 s and finishes 2 of its requests",
        eta_s=12.0,
        is_for_drain=True,
    )
    known = {"overdue": frozenset({"a"}), "unloading": frozenset({("tiny", "a")})}
    for tiny in (PLAIN, PINNED):
        for held in ("busy", "loading", "draining,running=1", "asleep"):
            (ended,) = act(catalogue(tiny), world(f"a 12 tiny,{held} draining; b 1"), **known)
            assert (ended.neuron, ended.model, ended.at_once) == ("a", "tiny", True), held
    failed = world("a 12 tiny,failed draining; b 12 other,busy")
    assert act(catalogue(PLAIN, OTHER), failed, overdue=frozenset({"a"})) == ()
    # What makes room on its own neuron is loaded there again once it has left.
    offered = catalogue(PLAIN, entry("new", 10))
    known = {"to_restore": {"a": ("tiny",)}, "loading": frozenset({("new", "a")})}
    leaves = frozenset({("tiny", "a")})
    there = plan(offered, world("a 12 tiny"), evicting=leaves, **known)
    assert (there.actions, there.restored) == ((), {})
    gone = plan(offered, world("a 12 new,loading"), evicting=leaves, **known)
    assert (briefs(gone.actions), gone.restored) == ("load tiny a/cuda:0", {})
    stayed = plan(offered, world("a 12 tiny"), to_restore={"a": ("tiny",)})
    assert (stayed.actions, stayed.restored) == ((), {"a": {"tiny"}})
    # Why an operator's load would be undone.
    for flag, why in (
        ("", "tiny is loaded on b, and by its max_replicas on 1 at most"),
        ("refused", "a is not admitted: admit it first"),
        ("leaving", "a is stopping: it is loaded there once it is back"),
        ("draining", "a is draining: resume it first"),
        ("unready", "a takes no loads now: its problems are on its page"),
    ):
        there = world(f"a 12 {flag}; b 12 tiny")
        assert why_not_loaded_on(PLAIN, there.neurons[0], there, ()).startswith(why)
    assert "may run on b only" in why_not_loaded_on(ON_B, host_of("a 12"), there, ())


ON_B = entry("tiny", 10, pinned=True, pinned_on=("b",))
MAY_ON_B = entry("tiny", 10, pinned_on=("b",))
TO_B = "load tiny b/cuda:0"


MOVED = "pinned_on names other neurons, and another one has it"
THERE = "its neuron drains, and another one has it"


@each_case(
    ("what", "tiny", "there", "expected", "reason"),
    [
        ("it is loaded where it is to be", ON_B, "a 12 tiny,busy; b 12", TO_B, ""),
        ("nothing leaves before that", ON_B, "a 12 tiny,busy; b 12 tiny,loading", "", ""),
        ("then it leaves", ON_B, "a 12 tiny; b 12 tiny", "unload tiny a", MOVED),
        ("idle models make room", ON_B, "a 12 tiny,busy; b 1 other", f"{TO_B} -other", ""),
        ("it stays while it has no room there", ON_B, "a 12 tiny,busy; b 1", "", ""),
        ("and while that host is away", ON_B, "a 12 tiny", "", ""),
        ("what need not be loaded moves, too", MAY_ON_B, "a 12 tiny; b 12", TO_B, ""),
        ("for an idle one nobody makes room", MAY_ON_B, "a 12 tiny; b 1 other", "", ""),
        ("what is pinned moves first", PINNED, "a 12 tiny draining; b 12", TO_B, ""),
        ("what is in use moves", PLAIN, "a 12 tiny,busy draining; b 12", TO_B, ""),
        ("and leaves", PINNED, "a 12 tiny draining; b 12 tiny", "unload tiny a", THERE),
        ("its requests run", PINNED, "a 12 tiny,busy draining; b 12 tiny", "", ""),
        ("not before", PINNED, "a 12 tiny,busy draining; b 12 tiny,loading", "", ""),
        ("what is in use stays where there is no room", PLAIN, "a 12 tiny,busy draining", "", ""),
        ("idle", PLAIN, "a 12 tiny draining; b 12", "unload tiny a", "its neuron drains"),
        ("what is pinned stays where there is no room", PINNED, "a 12 tiny draining", "", ""),
    ],
)
def test_a_replica_goes_by_pinned_on_or_a_drain(what, tiny, there, expected, reason) -> None:
    actions = act(catalogue(tiny, OTHER), world(there))
    assert briefs(actions) == expected, what
    reasons = [one.reason for one in actions if isinstance(one, Unload)]
    assert len(reasons) == bool(reason) and reason in "".join(reasons)
    if "draining" not in there:
        serving = "b" if reasons else "a"
        assert brief(place(tiny, world(there))) == f"route {serving}", "it is served meanwhile"


@each_case(
    ("what", "models", "there", "expected", "restored"),
    [
        ("the last used first", "tiny other", "a 12", "load tiny a/cuda:0", {"other"}),
        ("not before its neuron takes loads", "tiny", "a 12 draining", "", None),
        ("nor while it is away", "tiny", "b 12", "", None),
        ("what loads is waited for", "tiny", "a 12 tiny,loading", "", None),
        ("what is there again is done", "tiny", "a 12 tiny", "", {"tiny"}),
        ("what failed is not tried again", "tiny", "a 12 tiny,failed,age=900", "", {"tiny"}),
        ("what the catalogue lost is done", "lost", "a 12", "", {"lost"}),
        ("what has no room evicts nobody", "tiny", "a 2 other", "", {"tiny"}),
        ("it has a substitute", "tiny", "a 12; b 12 tiny,busy", "load tiny a/cuda:0", None),
        ("which still loads", "tiny", "a 12 tiny; b 12 tiny,loading", "", None),
        ("and leaves", "tiny", "a 12 tiny,age=0.5; b 12 tiny,busy", "unload tiny b", None),
    ],
)
def test_after_a_drain(what, models: str, there: str, expected: str, restored) -> None:
    to_restore = {"a": tuple(models.split())}
    found = plan(catalogue(PLAIN, OTHER), world(there), to_restore=to_restore)
    assert briefs(found.actions) == expected, what
    assert found.restored == ({} if restored is None else {"a": restored}), what


SMALL = "small 10/12"
CARD = KnownDevice(kind="cuda", total_memory_bytes=24 * GIB)
PROCESSOR = KnownDevice(kind="cpu", total_memory_bytes=128 * GIB)
REFUSED = Admission.REFUSED


def known(*devices: KnownDevice, **changes: Any) -> DesiredState:
    """The desired state of a host whose devices are on record, away for 70 s by default."""
    desired = {name: changes.pop(name) for name in ("drain", "admission") if name in changes}
    return DesiredState(**desired, host=KnownHost(devices=devices, **{"away_s": 70.0} | changes))


def away(there: str, **hosts: DesiredState) -> FleetSnapshot:
    return world(there, desired_states=DesiredStates(by_neuron=hosts))


def gone(*devices: KnownDevice, **changes: Any) -> FleetSnapshot:
    """The large host is silent."""
    return away(SMALL, big=known(*devices, **changes))


TOO_LARGE, NO_ROOM = "exceeds_device", "not_enough_memory"
LARGE = entry(needs_gib=20)
ON_A_CARD = entry(needs_gib=20, device="cuda")
PAIR = entry(needs_gib=30, min_devices=2)
OF_SIZE = entry(needs_gib=2, min_device_vram_mb=20_000, device="cuda")
REFUSED_IT = "small 10 tiny,failed,code=exceeds_device"
FAILED_THERE = f"{SMALL}; big 24 tiny,failed,age=99,code=exceeds_device draining"


@each_case(
    ("what", "model", "snapshot"),
    [
        ("drains", LARGE, world(f"{SMALL}; big 24 draining")),
        ("stops", LARGE, world(f"{SMALL}; big 24 leaving")),
        ("is not ready", LARGE, world(f"{SMALL}; big 24 unready")),
        ("is of another version", LARGE, world(f"{SMALL}; big 24 other-protocol")),
        ("is silent", LARGE, gone(CARD)),
        ("and drained for long", LARGE, gone(CARD, drain=True, draining_s=DRAIN_WAIT_S)),
        ("all are silent", LARGE, away("", big=known(CARD))),
        ("of unknown size", entry(), away("", big=known(CARD))),
        ("several devices", PAIR, gone(CARD, CARD)),
        ("devices of a least size", OF_SIZE, gone(CARD)),
        ("pinned on", entry(needs_gib=2, pinned_on=("big",)), gone(CARD)),
        ("a small one has refused it", entry(), away(REFUSED_IT, big=known(CARD))),
        ("a processor", LARGE, away("small cpu3/4", big=known(PROCESSOR))),
    ],
)
def test_comes_back_with_its_host(what, model, snapshot: FleetSnapshot) -> None:
    decision = refused(place(model, snapshot))
    assert decision.code == "model_recovering", what
    assert "big" in decision.message
    assert decision.retry_after_s is not None
    assert MIN_RETURN_S <= decision.retry_after_s <= MAX_RETURN_S


@each_case(
    ("what", "model", "snapshot", "code"),
    [
        ("too large for all", entry(needs_gib=40, device="cuda"), gone(CARD), TOO_LARGE),
        ("not admitted", ON_A_CARD, gone(CARD, admission=REFUSED), TOO_LARGE),
        ("never reported", ON_A_CARD, away(SMALL, big=DesiredState()), TOO_LARGE),
        ("is no card", ON_A_CARD, gone(PROCESSOR), TOO_LARGE),
        (
            "is not where it may run",
            replace(ON_A_CARD, pinned_on=("small",)),
            gone(CARD),
            TOO_LARGE,
        ),
        ("has room but for now", replace(ON_A_CARD, weight_bytes=11 * GIB), gone(CARD), NO_ROOM),
        ("the large one has refused it", ON_A_CARD, world(FAILED_THERE), TOO_LARGE),
    ],
)
def test_no_host_of_the_fleet_holds_it(what, model, snapshot, code: str) -> None:
    assert refused(place(model, snapshot)).code == code, what


def test_how_long_it_is_waited_for_and_by_whom_it_is_loaded_meanwhile() -> None:
    day_s = 86_400.0
    for away_s, retry_after_s in (
        (None, MIN_RETURN_S),
        (1.0, MIN_RETURN_S),
        (70.0, 70.0),
        (day_s, MAX_RETURN_S),
    ):
        found = refused(place(LARGE, gone(CARD, away_s=away_s)))
        assert found.retry_after_s == retry_after_s, "as long again"
    hosts = {"long": known(CARD, away_s=200.0), "soon": known(CARD, away_s=20.0)}
    decision = refused(place(LARGE, away(SMALL, **hosts)))
    assert decision.retry_after_s == 20.0 and "soon" in decision.message
    decision = place(LARGE, away(f"{SMALL}; other 22", big=known(CARD)))
    assert decision == Load(neuron="other", model="tiny", devices=("cuda:0",))
    # A load on one host is not about others.
    small = host_of(SMALL)
    assert refused(place_on(ON_A_CARD, small, gone(CARD))).code == "exceeds_device"
    decision = refused(place_on(entry(min_devices=2), small, away(f"{SMALL}; two 9 9")))
    wanted = "tiny needs 2 cards of one host, and no host has so many: small has 1"
    assert (decision.code, decision.message) == ("exceeds_device", wanted)
    assert decision.retry_after_s is None
    # A host that was revoked is not waited for.
    out = known(CARD, admission=REFUSED)
    for model, snapshot, hosts in (
        (entry(pinned_on=("big",)), away(SMALL, big=out), "big"),
        (entry(), away("", big=out), "big"),
        (LARGE, away("", big=out, other=out), "big, other"),
    ):
        decision = refused(place(model, snapshot))
        assert (decision.code, decision.retry_after_s) == ("no_neuron", None)
        assert f"tiny can run on {hosts} only, which was refused or revoked" in decision.message
