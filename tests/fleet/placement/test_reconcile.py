"""The control's actions in a tick: missing models are loaded, surplus ones unloaded."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot
from fleet.placement.decisions import Unload
from fleet.placement.leaving import EXTRA_IDLE_S, SETTLED_S, UNKNOWN_GRACE_S
from fleet.placement.reconcile import MAX_LOADS_A_TICK, QUEUE_LONG_S
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
    cards,
    catalogue,
    entry,
    fleet,
    host,
    load,
    plan,
    replica,
)

OTHER = entry("other", 10)
UP_TO_2, UP_TO_3 = (entry("tiny", 10, max_replicas=most) for most in (2, 3))
LOCAL = entry("tiny", 10, source="path:/models/tiny", pinned=True)


def failed(code: str = "bad_file", **changes: Any) -> Any:
    return host("a", replica("tiny", FAILED, failure=LoadFailure(code=code, message=""), **changes))


@each_case(
    ("what", "tiny", "hosts", "expected"),
    [
        ("a pinned model that is nowhere", PINNED, [host()], [load("a")]),
        ("as many as there should be", TWICE, [host("a"), host("b")], [load("a"), load("b")]),
        ("what loads counts", PINNED, [host("a", replica("tiny", LOADING)), host("b")], []),
        ("what recovers counts", PINNED, [host("a", replica("tiny", RECOVERING)), host("b")], []),
        ("leaving", PINNED, [host("a", replica("tiny", DRAINING)), host("b")], [load("b")]),
        ("others leave", PINNED, [host("a", replica("other"), free=2)], [load("a", "other")]),
        ("what nobody asked for is not loaded", PLAIN, [host()], []),
        ("a failure that no retry cures", PINNED, [failed(), host("b")], []),
        ("of a spec that is no longer meant", PINNED, [failed(spec_digest="old")], [load("a")]),
        ("of a host's own files", LOCAL, [failed("missing_file"), host("b")], [load("b")]),
    ],
)
def test_what_is_missing(what, tiny, hosts, expected) -> None:
    assert list(act(catalogue(tiny, OTHER), fleet(*hosts))) == expected, what


@each_case(
    ("what", "offered", "hosts", "known", "expected"),
    [
        ("what is wanted is loaded", PINNED, [host("a", replica("tiny"))], {}, True),
        ("nothing is wanted", PLAIN, [host()], {}, True),
        ("it is missing, and has no room", PINNED, [host("a", free=0)], {}, False),
        ("it loads", PINNED, [host("a", replica("tiny", LOADING))], {}, False),
        ("it failed", PLAIN, [host("a", replica("tiny", FAILED))], {}, False),
        ("it is not offered", PLAIN, [host("a", replica("unknown"))], {}, False),
        ("idle time", entry("tiny", 10, idle_ttl_s=60), [host("a", replica("tiny"))], {}, False),
        ("a load failed lately", PLAIN, [host()], {"num_failures": {"tiny": 1}}, False),
        ("several hosts", PINNED, [host("a", replica("tiny")), host("b")], {}, False),
    ],
)
def test_at_rest_time_changes_nothing(what, offered, hosts, known, expected) -> None:
    assert plan(catalogue(offered), fleet(*hosts), **known).is_at_rest is expected, what


def test_a_load_that_no_heartbeat_has_yet_counts() -> None:
    two = fleet(host("a"), host("b"))
    assert act(catalogue(PINNED), two, loading=frozenset({("tiny", "a")})) == ()
    assert act(catalogue(TWICE), two, loading=frozenset({("tiny", "a")})) == (load("b"),)


@each_case(("num", "wait_s"), [(1, 10), (2, 20), (4, 80), (8, 600), (99, 600)])
def test_failures_put_off_the_next_try(num: int, wait_s: float) -> None:
    for age_s in (wait_s - 1, wait_s + 1):
        known = {"num_failures": {"tiny": num}, "failed_age_s": {"tiny": age_s}}
        assert bool(act(catalogue(PINNED), fleet(host()), **known)) == (age_s > wait_s)


def test_a_neuron_that_blinks_is_waited_for_and_two_copies_do_not_stay() -> None:
    """A pinned model used to be loaded elsewhere after four seconds, and both copies stayed."""
    holder = host("a", replica("tiny"))
    assert act(catalogue(PINNED), fleet(host("b"), absent=(holder,))) == ()
    assert act(catalogue(PINNED), fleet(host("b"))) == (load("b"),)
    back = fleet(holder, host("b", replica("tiny", on="b", last_used_age_s=30.0)))
    (unload,) = act(catalogue(PINNED), back)
    assert (unload.neuron, unload.model) == ("a", "tiny"), "the one that is idle longest"
    assert "one of 2, and at most 1 stay" in unload.reason


CROWDED = host("a", busy("tiny", queue_depth=9))
COMING = host("b", replica("tiny", LOADING, on="b"))


@each_case(
    ("what", "tiny", "hosts", "long_s", "expected"),
    [
        ("where there is room", UP_TO_3, [CROWDED, host("b")], QUEUE_LONG_S, [load("b")]),
        ("not beyond the most", PLAIN, [CROWDED, host("b")], QUEUE_LONG_S, []),
        ("not for a moment's queue", UP_TO_3, [CROWDED, host("b")], QUEUE_LONG_S - 1, []),
        ("one is on its way", UP_TO_3, [CROWDED, COMING, host("c")], QUEUE_LONG_S, []),
        (
            "nobody leaves for it",
            UP_TO_3,
            [CROWDED, host("b", replica("other", on="b"), free=2)],
            QUEUE_LONG_S,
            [],
        ),
    ],
)
def test_a_long_queue_calls_for_one_more(what, tiny, hosts, long_s, expected) -> None:
    offered = catalogue(tiny, OTHER)
    assert list(act(offered, fleet(*hosts), queue_long_s={"tiny": long_s})) == expected, what


@each_case(
    ("what", "tiny", "idle_s", "age_s", "leaves"),
    [
        ("a second one is idle", UP_TO_2, EXTRA_IDLE_S, 600.0, True),
        ("not for long", UP_TO_2, EXTRA_IDLE_S - 1, 600.0, False),
        ("not below the least", TWICE, EXTRA_IDLE_S, 600.0, False),
        ("one too many, settled", PLAIN, 0.5, SETTLED_S, True),
        ("not settled", PLAIN, 0.5, SETTLED_S - 1, False),
    ],
)
def test_a_second_replica_goes(what, tiny, idle_s: float, age_s: float, leaves: bool) -> None:
    second = replica("tiny", on="b", last_used_age_s=idle_s, status_age_s=age_s)
    actions = act(catalogue(tiny), fleet(host("a", busy("tiny")), host("b", second)))
    assert [(one.neuron, one.model) for one in actions] == [("b", "tiny")] * leaves, what


@each_case(
    ("what", "tiny", "idle_s"),
    [
        ("above the most", PLAIN, 0.0),
        ("an extra one that is idle", UP_TO_2, EXTRA_IDLE_S),
        ("idle for its time", entry("tiny", 10, max_replicas=2, idle_ttl_s=5), 5.0),
    ],
)
def test_what_has_least_room_goes_however_long_others_are_idle(what, tiny, idle_s: float) -> None:
    cramped = host("b", replica("tiny", on="b", last_used_age_s=idle_s), free=1)
    for roomy in (host("a", replica("tiny"), free=60), host("c", replica("tiny", on="c"), free=9)):
        (unload,) = act(catalogue(tiny), fleet(roomy, cramped))
        assert (unload.neuron, unload.model) == ("b", "tiny"), what


def test_an_outdated_one_and_a_substitute_go_first() -> None:
    fresh = replica("tiny", spec_digest=PLAIN.spec_digest())
    outdated = host("b", busy("tiny", on="b", spec_digest="o"))
    (unload,) = act(catalogue(PLAIN), fleet(host("a", fresh), outdated))
    assert unload.neuron == "b"
    home, substitute = host("a", replica("tiny")), host("b", replica("tiny", on="b"), free=60)
    (unload,) = act(catalogue(PLAIN), fleet(home, substitute), to_restore={"a": ("tiny",)})
    assert unload.neuron == "b", "even from a roomier host"


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
    assert len(act(catalogue(tiny), fleet(host("a", replica("tiny"))))) == expected
    assert act(catalogue(tiny), fleet(host("a", busy("tiny")))) == ()


def test_what_nobody_offers_any_more_goes() -> None:
    def gone(age_s: float, **known: Any):
        return act({}, fleet(host("a", busy("tiny", status_age_s=age_s))), **known)

    assert gone(UNKNOWN_GRACE_S - 1) == ()
    (unload,) = gone(UNKNOWN_GRACE_S)
    assert unload.reason == "the catalogue does not offer it"
    assert gone(UNKNOWN_GRACE_S, unloading=frozenset({("tiny", "a")})) == (), "it does already"
    assert act({}, fleet(host("a", replica("tiny", DRAINING)))) == ()


def test_two_loads_of_one_tick_do_not_share_a_card_and_a_tick_starts_a_few() -> None:
    offered = catalogue(entry("one", 10, pinned=True), entry("two", 10, pinned=True))
    actions = act(offered, fleet(cards("a", 12, 12)))
    assert [action.devices for action in actions] == [("cuda:0",), ("cuda:1",)]
    assert len(act(offered, fleet(host()))) == 1
    many = catalogue(*(entry(f"m{number}", 1, pinned=True) for number in range(20)))
    assert len(act(many, fleet(host(free=24)))) == MAX_LOADS_A_TICK


@given(st.data())
def test_ticks_come_to_rest(data: st.DataObject) -> None:
    """Whatever the fleet is like: once all decisions are carried out, none follows."""
    draw = data.draw
    offered = catalogue(
        *(
            entry(
                f"m{number}",
                draw(st.sampled_from([4, 8, 12])),
                pinned=draw(st.booleans()),
                max_replicas=draw(st.integers(1, 2)),
            )
            for number in range(4)
        )
    )
    snapshot = standing(
        {name: draw(st.sets(st.sampled_from([*offered]), max_size=3)) for name in "abc"}, offered
    )
    for _ in range(12):
        actions = act(offered, snapshot)
        if not actions:
            return
        held = {view.name: {one.model for one in view.replicas} for view in snapshot.neurons}
        for action in actions:
            if isinstance(action, Unload):
                held[action.neuron] -= {action.model}
            else:
                held[action.neuron] = held[action.neuron] - {*action.evict} | {action.model}
        snapshot = standing(held, offered)
    raise AssertionError(f"still at it: {actions}")


def standing(held: dict[str, set[str]], offered) -> FleetSnapshot:
    """Hosts with one card of 36 GiB each, and these models."""
    gib = {name: one.weight_bytes / 2**30 for name, one in offered.items()}
    return fleet(
        *(
            host(
                name,
                *(replica(model, on=name, gib=gib[model]) for model in models),
                free=36 - sum(gib[model] for model in models),
            )
            for name, models in held.items()
        )
    )
