"""What the control does in a tick: what is missing is loaded, what is too much goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import Absence, FleetSnapshot
from fleet.placement import Load
from fleet.placement.devices.surplus import EXTRA_IDLE_S, SETTLED_S, UNKNOWN_GRACE_S
from fleet.placement.plan import Jobs, Observed, Plan, Unload
from fleet.placement.reconcile import MAX_LOADS_A_TICK, reconcile
from inference.protocol.load import LoadFailure
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    LOADING,
    RECOVERING,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    neuron,
    replica,
)

PINNED = entry("tiny", 10, pinned=True)
TWICE = entry("tiny", 10, min_replicas=2, max_replicas=3)
PLAIN = entry("tiny", 10)


def act(offered, snapshot: FleetSnapshot, **known: Any) -> tuple[Any, ...]:
    return plan(offered, snapshot, **known).actions


def plan(offered, snapshot: FleetSnapshot, **known: Any) -> Plan:
    observed = Observed(
        waiting=known.pop("waiting", {}), queue_long_s=known.pop("queue_long_s", {})
    )
    turns = known.pop("turns", ())
    return reconcile(offered, snapshot, jobs=Jobs(**known), observed=observed, turns=turns)


def load(on: str, *evict: str, model: str = "tiny") -> Load:
    return Load(neuron=on, model=model, devices=("cuda:0",), evict=evict)


def host(name: str = "a", *holds, free: float = 12, **changes: Any):
    return neuron(name, card(free=free), holds=tuple(holds), **changes)


MISSING = {
    "a pinned model that is nowhere": (PINNED, [host()], [load("a")]),
    "as many as there should be": (TWICE, [host("a"), host("b")], [load("a"), load("b")]),
    "what is loading counts": (PINNED, [host("a", replica("tiny", LOADING)), host("b")], []),
    "what recovers counts": (PINNED, [host("a", replica("tiny", RECOVERING)), host("b")], []),
    "what is leaving does not": (
        PINNED,
        [host("a", replica("tiny", DRAINING)), host("b")],
        [load("b")],
    ),
    "idle models leave for it": (
        PINNED,
        [host("a", replica("other"), free=2)],
        [load("a", "other")],
    ),
    "what nobody asked for is not loaded": (PLAIN, [host()], []),
    "a failure that no retry cures": (
        PINNED,
        [
            host(
                "a",
                replica("tiny", FAILED, failure=LoadFailure(code="bad_file", message="broken")),
            ),
            host("b"),
        ],
        [],
    ),
    "the same, of a spec that is no longer meant": (
        PINNED,
        [
            host(
                "a",
                replica(
                    "tiny",
                    FAILED,
                    failure=LoadFailure(code="bad_file", message="broken"),
                    spec_digest="of-another",
                ),
            )
        ],
        [load("a")],
    ),
    "files of a host's own fail on that host": (
        entry("tiny", 10, source="path:/models/tiny", pinned=True),
        [
            host(
                "a",
                replica("tiny", FAILED, failure=LoadFailure(code="missing_file", message="none")),
            ),
            host("b"),
        ],
        [load("b")],
    ),
}


@pytest.mark.parametrize(("tiny", "hosts", "expected"), MISSING.values(), ids=MISSING.keys())
def test_what_is_missing(tiny, hosts, expected) -> None:
    offered = catalogue(tiny, entry("other", 10))
    assert list(act(offered, fleet(*hosts))) == expected


def test_a_load_that_no_heartbeat_has_yet_counts() -> None:
    two = fleet(host("a"), host("b"))
    assert act(catalogue(PINNED), two, loading=frozenset({("tiny", "a")})) == ()
    assert act(catalogue(TWICE), two, loading=frozenset({("tiny", "a")})) == (load("b"),)


@pytest.mark.parametrize(("num", "wait_s"), [(1, 10), (2, 20), (4, 80), (8, 600), (99, 600)])
def test_failures_put_off_the_next_try(num: int, wait_s: float) -> None:
    def tried(age_s: float) -> bool:
        known = {"num_failures": {"tiny": num}, "failed_age_s": {"tiny": age_s}}
        return bool(act(catalogue(PINNED), fleet(host()), **known))

    assert not tried(wait_s - 1)
    assert tried(wait_s + 1)


def test_a_neuron_that_blinks_is_waited_for_and_two_copies_do_not_stay() -> None:
    """A pinned model used to be loaded elsewhere after four seconds, and both copies stayed."""
    holder = host("a", replica("tiny"))
    blinking = fleet(host("b"), absent=(Absence(neuron=holder, silent_s=5.0),))
    assert act(catalogue(PINNED), blinking) == ()
    lost = fleet(host("b"))
    assert act(catalogue(PINNED), lost) == (load("b"),)
    back = fleet(holder, host("b", replica("tiny", on="b", last_used_age_s=30.0)))
    (unload,) = act(catalogue(PINNED), back)
    assert (unload.neuron, unload.model) == ("a", "tiny"), "the one that is idle longest"
    assert "one of 2, and at most 1 stay" in unload.reason


LONG = {"tiny": 11.0}


def crowded(on: str = "a"):
    return busy("tiny", on=on, queue_depth=9)


MORE = {
    "where there is room": (3, [host("a", crowded()), host("b")], LONG, [load("b")]),
    "not beyond the most": (1, [host("a", crowded()), host("b")], LONG, []),
    "not for a moment's queue": (3, [host("a", crowded()), host("b")], {"tiny": 3.0}, []),
    "not while one is on its way": (
        3,
        [host("a", crowded()), host("b", replica("tiny", LOADING, on="b")), host("c")],
        LONG,
        [],
    ),
    "nobody leaves for it": (
        3,
        [host("a", crowded()), host("b", replica("other", on="b"), free=2)],
        LONG,
        [],
    ),
}


@pytest.mark.parametrize(("most", "hosts", "long", "expected"), MORE.values(), ids=MORE.keys())
def test_a_long_queue_calls_for_one_more(most, hosts, long, expected) -> None:
    tiny = entry("tiny", 10, max_replicas=most)
    offered = catalogue(tiny, entry("other", 10))
    assert list(act(offered, fleet(*hosts), queue_long_s=long)) == expected


def both(idle_s: float, age_s: float = 600.0):
    return fleet(
        host("a", busy("tiny")),
        host("b", replica("tiny", on="b", last_used_age_s=idle_s, status_age_s=age_s)),
    )


def test_a_second_replica_goes_when_it_is_idle() -> None:
    tiny = entry("tiny", 10, max_replicas=2)
    assert act(catalogue(tiny), both(EXTRA_IDLE_S - 1)) == ()
    (unload,) = act(catalogue(tiny), both(EXTRA_IDLE_S))
    assert (unload.neuron, unload.model) == ("b", "tiny")
    assert act(catalogue(TWICE), both(EXTRA_IDLE_S)) == (), "not below the least"


def test_surplus_goes_once_things_have_settled() -> None:
    assert act(catalogue(PLAIN), both(0.5, SETTLED_S - 1)) == ()
    (unload,) = act(catalogue(PLAIN), both(0.5, SETTLED_S))
    assert unload.neuron == "b"


def test_an_outdated_surplus_goes_first() -> None:
    tiny = entry("tiny", 10)
    fresh = replica("tiny", spec_digest=tiny.spec_digest())
    (unload,) = act(
        catalogue(tiny), fleet(host("a", fresh), host("b", busy("tiny", on="b", spec_digest="o")))
    )
    assert unload.neuron == "b"


@pytest.mark.parametrize(
    ("tiny", "expected"),
    [
        (entry("tiny", 10, idle_ttl_s=600), 1),
        (entry("tiny", 10, idle_ttl_s=601), 0),
        (entry("tiny", 10, idle_ttl_s=5, pinned=True), 0),
        (PLAIN, 0),
    ],
)
def test_idle_models_are_unloaded(tiny, expected: int) -> None:
    snapshot = fleet(host("a", replica("tiny")))
    assert len(act(catalogue(tiny), snapshot)) == expected
    assert act(catalogue(tiny), fleet(host("a", busy("tiny")))) == ()


def test_what_nobody_offers_any_more_goes() -> None:
    def gone(age_s: float):
        return act({}, fleet(host("a", busy("tiny", status_age_s=age_s))))

    assert gone(UNKNOWN_GRACE_S - 1) == ()
    assert gone(UNKNOWN_GRACE_S) == (
        Unload(neuron="a", model="tiny", reason="the catalogue does not offer it"),
    )


def test_what_is_being_unloaded_is_not_asked_again() -> None:
    snapshot = fleet(host("a", busy("tiny")))
    assert act({}, snapshot, unloading=frozenset({("tiny", "a")})) == ()
    assert act({}, fleet(host("a", replica("tiny", DRAINING)))) == ()


def draining(*holds):
    return host("a", *holds, is_draining=True)


EMPTIED = {
    "what is pinned moves first": (PINNED, [draining(replica("tiny")), host("b")], [load("b")]),
    "what is in use moves": (PLAIN, [draining(busy("tiny")), host("b")], [load("b")]),
    "and leaves when it is there": (
        PINNED,
        [draining(busy("tiny")), host("b", replica("tiny", on="b"))],
        [Unload(neuron="a", model="tiny", reason="its neuron drains, and another one has it")],
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


@pytest.mark.parametrize(("tiny", "hosts", "expected"), EMPTIED.values(), ids=EMPTIED.keys())
def test_a_neuron_that_drains_is_emptied(tiny, hosts, expected) -> None:
    assert list(act(catalogue(tiny), fleet(*hosts))) == expected


def test_two_loads_of_one_tick_do_not_share_a_card() -> None:
    one, two = entry("one", 10, pinned=True), entry("two", 10, pinned=True)
    snapshot = fleet(neuron("a", card(0, free=12), card(1, free=12)))
    actions = act(catalogue(one, two), snapshot)
    assert [action.devices for action in actions] == [("cuda:0",), ("cuda:1",)]
    assert len(act(catalogue(one, two), fleet(host()))) == 1


def test_a_tick_starts_a_few_loads() -> None:
    many = [entry(f"m{number}", 1, pinned=True) for number in range(20)]
    assert len(act(catalogue(*many), fleet(host(free=24)))) == MAX_LOADS_A_TICK


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


@pytest.mark.parametrize(
    ("to_restore", "hosts", "expected", "restored"), RESTORED.values(), ids=RESTORED.keys()
)
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


@given(st.data())
def test_ticks_come_to_rest(data: st.DataObject) -> None:
    """Whatever the fleet is like: once what was decided is there, nothing more is decided."""
    models = [
        entry(
            f"m{number}",
            data.draw(st.sampled_from([4, 8, 12])),
            pinned=data.draw(st.booleans()),
            max_replicas=data.draw(st.integers(1, 2)),
        )
        for number in range(4)
    ]
    offered = catalogue(*models)
    hosts = []
    for name in "abc":
        held = data.draw(st.sets(st.sampled_from([m.name for m in models]), max_size=3))
        holds = [replica(model, on=name, gib=offered[model].weight_bytes / 2**30) for model in held]
        taken = sum(view.memory_bytes or 0 for view in holds) / 2**30
        hosts.append(host(name, *holds, free=36 - taken))
    snapshot = fleet(*hosts)
    for _ in range(12):
        actions = act(offered, snapshot)
        if not actions:
            return
        snapshot = carried_out(snapshot, actions, offered)
    raise AssertionError(f"still at it: {actions}")


def carried_out(snapshot: FleetSnapshot, actions, offered) -> FleetSnapshot:
    hosts = {}
    for view in snapshot.neurons:
        holds = {r.model: r for r in view.replicas}
        for action in actions:
            if action.neuron == view.name and isinstance(action, Unload):
                holds.pop(action.model, None)
            elif action.neuron == view.name:
                for model in (*action.evict, action.model):
                    holds.pop(model, None)
                gib = offered[action.model].weight_bytes / 2**30
                holds[action.model] = replica(action.model, on=view.name, gib=gib)
        taken = sum(r.memory_bytes or 0 for r in holds.values()) / 2**30
        hosts[view.name] = host(view.name, *holds.values(), free=36 - taken)
    return fleet(*hosts.values())
