"""The control's actions in a tick: missing models are loaded, surplus ones unloaded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot
from fleet.placement.decisions import Jobs, Observed, Unload
from fleet.placement.leaving import EXTRA_IDLE_S, SETTLED_S, UNKNOWN_GRACE_S
from fleet.placement.reconcile import MAX_LOADS_A_TICK, reconcile
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    LOADING,
    PINNED,
    PLAIN,
    RECOVERING,
    TWICE,
    act,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    host,
    load,
    neuron,
    replica,
)

IDLING = entry("tiny", 10, idle_ttl_s=60)
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


@each_case(("tiny", "hosts", "expected"), MISSING.values(), ids=MISSING.keys())
def test_what_is_missing(tiny, hosts, expected) -> None:
    offered = catalogue(tiny, entry("other", 10))
    assert list(act(offered, fleet(*hosts))) == expected


@each_case(
    ("what", "offered", "hosts", "known", "expected"),
    [
        ("what is wanted is loaded", PINNED, [host("a", replica("tiny"))], {}, True),
        ("nothing is wanted", PLAIN, [host()], {}, True),
        ("it is missing, and has no room", PINNED, [host("a", free=0)], {}, False),
        ("it loads", PINNED, [host("a", replica("tiny", LOADING))], {}, False),
        ("it failed", PLAIN, [host("a", replica("tiny", FAILED))], {}, False),
        ("it is not offered", PLAIN, [host("a", replica("unknown"))], {}, False),
        ("it has an idle time", IDLING, [host("a", replica("tiny"))], {}, False),
        ("a load failed lately", PLAIN, [host()], {"num_failures": {"tiny": 1}}, False),
        ("several hosts", PINNED, [host("a", replica("tiny")), host("b")], {}, False),
    ],
)
def test_at_rest_time_changes_nothing(what, offered, hosts, known, expected) -> None:
    plan = reconcile(catalogue(offered), fleet(*hosts), jobs=Jobs(**known), observed=Observed())
    assert plan.is_at_rest is expected, what


def test_a_load_that_no_heartbeat_has_yet_counts() -> None:
    two = fleet(host("a"), host("b"))
    assert act(catalogue(PINNED), two, loading=frozenset({("tiny", "a")})) == ()
    assert act(catalogue(TWICE), two, loading=frozenset({("tiny", "a")})) == (load("b"),)


@each_case(("num", "wait_s"), [(1, 10), (2, 20), (4, 80), (8, 600), (99, 600)])
def test_failures_put_off_the_next_try(num: int, wait_s: float) -> None:
    def tried(age_s: float) -> bool:
        known = {"num_failures": {"tiny": num}, "failed_age_s": {"tiny": age_s}}
        return bool(act(catalogue(PINNED), fleet(host()), **known))

    assert not tried(wait_s - 1)
    assert tried(wait_s + 1)


def test_a_neuron_that_blinks_is_waited_for_and_two_copies_do_not_stay() -> None:
    """A pinned model used to be loaded elsewhere after four seconds, and both copies stayed."""
    holder = host("a", replica("tiny"))
    blinking = fleet(host("b"), absent=(holder,))
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


@each_case(("most", "hosts", "long", "expected"), MORE.values(), ids=MORE.keys())
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


SURPLUS = {
    "above the most": (PLAIN, 0.0),
    "an extra one that is idle": (entry("tiny", 10, max_replicas=2), EXTRA_IDLE_S),
    "idle for its time": (entry("tiny", 10, max_replicas=2, idle_ttl_s=5), 5.0),
}


@each_case(("tiny", "idle_s"), SURPLUS.values(), ids=SURPLUS.keys())
def test_what_has_least_room_goes_however_long_others_are_idle(tiny, idle_s: float) -> None:
    cramped = host("b", replica("tiny", on="b", last_used_age_s=idle_s), free=1)
    for roomy in (host("a", replica("tiny"), free=60), host("c", replica("tiny", on="c"), free=9)):
        (unload,) = act(catalogue(tiny), fleet(roomy, cramped))
        assert (unload.neuron, unload.model) == ("b", "tiny")


def test_a_substitute_goes_first_even_from_a_roomier_host() -> None:
    home, substitute = host("a", replica("tiny")), host("b", replica("tiny", on="b"), free=60)
    (unload,) = act(catalogue(PLAIN), fleet(home, substitute), to_restore={"a": ("tiny",)})
    assert (unload.neuron, unload.model) == ("b", "tiny")


def test_an_outdated_surplus_goes_first() -> None:
    tiny = entry("tiny", 10)
    fresh = replica("tiny", spec_digest=tiny.spec_digest())
    (unload,) = act(
        catalogue(tiny), fleet(host("a", fresh), host("b", busy("tiny", on="b", spec_digest="o")))
    )
    assert unload.neuron == "b"


@each_case(
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


def test_two_loads_of_one_tick_do_not_share_a_card() -> None:
    one, two = entry("one", 10, pinned=True), entry("two", 10, pinned=True)
    snapshot = fleet(neuron("a", card(0, free=12), card(1, free=12)))
    actions = act(catalogue(one, two), snapshot)
    assert [action.devices for action in actions] == [("cuda:0",), ("cuda:1",)]
    assert len(act(catalogue(one, two), fleet(host()))) == 1


def test_a_tick_starts_a_few_loads() -> None:
    many = [entry(f"m{number}", 1, pinned=True) for number in range(20)]
    assert len(act(catalogue(*many), fleet(host(free=24)))) == MAX_LOADS_A_TICK


@given(st.data())
def test_ticks_come_to_rest(data: st.DataObject) -> None:
    """Whatever the fleet is like: once all decisions are carried out, none follows."""
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
