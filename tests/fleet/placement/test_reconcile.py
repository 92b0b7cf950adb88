"""The control's actions in a tick, and time slices: none thrashes, none starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot
from fleet.placement import place
from fleet.placement.capacity import MIN_TIME_SLICE_S
from fleet.placement.decisions import Unload
from fleet.placement.leaving import EXTRA_IDLE_S, SETTLED_S, UNKNOWN_GRACE_S
from fleet.placement.reconcile import MAX_LOADS_A_TICK, MAX_PROMISE_S, QUEUE_LONG_S
from inference.protocol.heartbeat import WaitingModel
from tests.cases import each_case
from tests.fleet.conftest import GIB
from tests.fleet.conftest import report as load_report
from tests.fleet.placement.fleets import (
    PINNED,
    PLAIN,
    TWICE,
    act,
    brief,
    briefs,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    host_of,
    neuron,
    plan,
    world,
)

OTHER = entry("other", 10)
UP_TO_2, UP_TO_3 = (entry("tiny", 10, max_replicas=most) for most in (2, 3))
LOCAL = entry("tiny", 10, source="path:/models/tiny", pinned=True)
TO_A, TO_B = "load tiny a/cuda:0", "load tiny b/cuda:0"
LOADING_THERE = frozenset({("tiny", "a")})


CROWDED = "a 12 tiny,busy,queued=9"


@each_case(
    ("what", "tiny", "there", "expected"),
    [
        ("a pinned model that is nowhere", PINNED, "a 12", TO_A),
        ("as many as there should be", TWICE, "a 12; b 12", f"{TO_A}, {TO_B}"),
        ("what is loading counts", PINNED, "a 12 tiny,loading; b 12", ""),
        ("what recovers counts", PINNED, "a 12 tiny,recovering; b 12", ""),
        ("what is leaving does not", PINNED, "a 12 tiny,draining; b 12", TO_B),
        ("idle models leave for it", PINNED, "a 2 other", f"{TO_A} -other"),
        ("what nobody asked for is not loaded", PLAIN, "a 12", ""),
        ("a failure that no retry cures", PINNED, "a 12 tiny,failed,code=bad_file; b 12", ""),
        ("of an older spec", PINNED, "a 12 tiny,failed,code=bad_file,spec=old", TO_A),
        ("of a host's own files", LOCAL, "a 12 tiny,failed,code=missing_file; b 12", TO_B),
        ("a long queue calls for one more", UP_TO_3, f"{CROWDED}; b 12", TO_B),
        ("not beyond the most", PLAIN, f"{CROWDED}; b 12", ""),
        ("one comes", UP_TO_3, f"{CROWDED}; b 12 tiny,loading; c 12", ""),
        ("nobody leaves for one more", UP_TO_3, f"{CROWDED}; b 2 other", ""),
    ],
)
def test_what_is_missing(what, tiny, there: str, expected: str) -> None:
    long = {"tiny": QUEUE_LONG_S}
    assert briefs(act(catalogue(tiny, OTHER), world(there), queue_long_s=long)) == expected, what
    if "busy" in there:  # not for a moment's queue
        long = {"tiny": QUEUE_LONG_S - 1}
        assert not act(catalogue(tiny, OTHER), world(there), queue_long_s=long), what


@each_case(
    ("what", "offered", "there", "known", "expected"),
    [
        ("what is wanted is loaded", PINNED, "a 12 tiny", {}, True),
        ("nothing is wanted", PLAIN, "a 12", {}, True),
        ("it is missing, and has no room", PINNED, "a 0", {}, False),
        ("it loads", PINNED, "a 12 tiny,loading", {}, False),
        ("it failed", PLAIN, "a 12 tiny,failed", {}, False),
        ("it is not offered", PLAIN, "a 12 unknown", {}, False),
        ("it has an idle time", entry("tiny", 10, idle_ttl_s=60), "a 12 tiny", {}, False),
        ("a load failed lately", PLAIN, "a 12", {"num_failures": {"tiny": 1}}, False),
        ("several hosts", PINNED, "a 12 tiny; b 12", {}, False),
    ],
)
def test_at_rest_time_changes_nothing(what, offered, there: str, known, expected) -> None:
    assert plan(catalogue(offered), world(there), **known).is_at_rest is expected, what


def test_a_neuron_that_blinks_is_waited_for_and_two_copies_do_not_stay() -> None:
    """A pinned model used to be loaded elsewhere after four seconds, and both copies stayed."""
    assert act(catalogue(PINNED), world("b 12", absent=(host_of("a 12 tiny"),))) == ()
    assert briefs(act(catalogue(PINNED), world("b 12"))) == TO_B
    (unload,) = act(catalogue(PINNED), world("a 12 tiny; b 12 tiny,used=30"))
    assert brief(unload) == "unload tiny a", "the one that is idle longest"
    assert "one of 2, and at most 1 stay" in unload.reason
    there = world("a 12 tiny; b 60 tiny")
    actions = act(catalogue(PLAIN), there, to_restore={"a": ("tiny",)})
    assert briefs(actions) == "unload tiny b", "a substitute, even from a roomier host"
    # Two loads of one tick do not share a card, and a tick starts a few.
    offered = catalogue(entry("one", 10, pinned=True), entry("two", 10, pinned=True))
    assert briefs(act(offered, world("a 12 12"))) == "load one a/cuda:0, load two a/cuda:1"
    assert len(act(offered, world("a 12"))) == 1
    many = catalogue(*(entry(f"m{number}", 1, pinned=True) for number in range(20)))
    assert len(act(many, world("a 24"))) == MAX_LOADS_A_TICK
    two = world("a 12; b 12")  # a load that no heartbeat has yet counts
    assert act(catalogue(PINNED), two, loading=LOADING_THERE) == ()
    assert briefs(act(catalogue(TWICE), two, loading=LOADING_THERE)) == TO_B
    for num, wait_s in ((1, 10), (2, 20), (4, 80), (8, 600), (99, 600)):
        for age_s in (wait_s - 1, wait_s + 1):
            known = {"num_failures": {"tiny": num}, "failed_age_s": {"tiny": age_s}}
            assert bool(act(catalogue(PINNED), world("a 12"), **known)) == (age_s > wait_s)


EXTRA, SETTLED = f"used={EXTRA_IDLE_S}", f"used=0.5,age={SETTLED_S}"
NOT_YET, NOT_SETTLED = f"used={EXTRA_IDLE_S - 1}", f"used=0.5,age={SETTLED_S - 1}"
FOR_5_S = entry("tiny", 10, max_replicas=2, idle_ttl_s=5)
FRESH = f"a 12 tiny,spec={PLAIN.spec_digest()}"


@each_case(
    ("what", "tiny", "there", "leaves"),
    [
        ("a second one is idle", UP_TO_2, f"a 12 tiny,busy; b 12 tiny,{EXTRA}", "b"),
        ("not for long", UP_TO_2, f"a 12 tiny,busy; b 12 tiny,{NOT_YET}", ""),
        ("not below the least", TWICE, f"a 12 tiny,busy; b 12 tiny,{EXTRA}", ""),
        ("one too many, settled", PLAIN, f"a 12 tiny,busy; b 12 tiny,{SETTLED}", "b"),
        ("not settled", PLAIN, f"a 12 tiny,busy; b 12 tiny,{NOT_SETTLED}", ""),
        ("least room, above the most", PLAIN, "a 60 tiny; b 1 tiny,used=0", "b"),
        ("least room", PLAIN, "b 1 tiny,used=0; c 9 tiny", "b"),
        ("least room, an extra one", UP_TO_2, f"a 60 tiny; b 1 tiny,{EXTRA}", "b"),
        ("least room, idle for its time", FOR_5_S, "a 60 tiny; b 1 tiny,used=5", "b"),
        ("an outdated one", PLAIN, f"{FRESH}; b 12 tiny,busy,spec=old", "b"),
        ("idle for its time", entry("tiny", 10, idle_ttl_s=600), "a 12 tiny", "a"),
        ("not in use", entry("tiny", 10, idle_ttl_s=600), "a 12 tiny,busy", ""),
        ("not yet", entry("tiny", 10, idle_ttl_s=601), "a 12 tiny", ""),
        ("not if pinned", entry("tiny", 10, idle_ttl_s=5, pinned=True), "a 12 tiny", ""),
        ("not without a time", PLAIN, "a 12 tiny", ""),
        ("not offered, for a moment", None, f"a 12 tiny,busy,age={UNKNOWN_GRACE_S - 1}", ""),
        ("not offered", None, f"a 12 tiny,busy,age={UNKNOWN_GRACE_S}", "a"),
        ("not offered, and draining", None, "a 12 tiny,draining", ""),
    ],
)
def test_what_is_surplus(what, tiny, there: str, leaves: str) -> None:
    offered = {} if tiny is None else catalogue(tiny)
    actions = act(offered, world(there))
    assert briefs(actions) == (f"unload tiny {leaves}" if leaves else ""), what
    known = frozenset({("tiny", leaves)})
    assert not act(offered, world(there), unloading=known), "it is not asked again"


MODELS = st.tuples(st.sampled_from([4, 8, 12]), st.booleans(), st.integers(1, 2))


@given(
    st.lists(MODELS, min_size=4, max_size=4),
    st.fixed_dictionaries(dict.fromkeys("abc", st.sets(st.sampled_from("0123"), max_size=3))),
)
def test_ticks_come_to_rest(models: list[tuple[int, bool, int]], held: dict[str, set[str]]) -> None:
    offered = catalogue(
        *(
            entry(str(number), gib, pinned=pinned, max_replicas=most)
            for number, (gib, pinned, most) in enumerate(models)
        )
    )
    for _ in range(12):
        hosts = []
        for name, there in held.items():
            gib = {model: models[int(model)][0] for model in sorted(there)}
            replicas = " ".join(f"{model},gib={gib[model]}" for model in gib)
            hosts.append(f"{name} {36 - sum(gib.values())}/36 {replicas}")
        actions = act(offered, world("; ".join(hosts)))
        if not actions:
            return
        for action in actions:
            held[action.neuron] -= {action.model, *getattr(action, "evict", ())}
            if not isinstance(action, Unload):
                held[action.neuron] |= {action.model}
    raise AssertionError(f"still at it: {actions}")


ONE, TWO, THREE = entry("one", 20), entry("two", 20), entry("three", 20)
THE_THREE = catalogue(ONE, TWO, THREE)
TIME_SLICE = TimeSlice(
    model="two", neuron="a", devices=("cuda:0",), device_bytes=20 * GIB, evicted=("one",)
)


def tick(snapshot: FleetSnapshot, *, time_slices=(), **waiting: float):
    waits = {model: WaitingModel(num_requests=1, oldest_s=age) for model, age in waiting.items()}
    return plan(THE_THREE, snapshot, waiting=waits, time_slices=time_slices)


def test_one_in_use_is_drained_after_a_time_slice_that_its_load_was_worth() -> None:
    def after(age_s: float, load_s: float | None, **waiting: float):
        report = load_report(load_seconds=load_s) if load_s else None
        used = busy("one", gib=20, report=report, status_age_s=age_s)
        return tick(fleet(neuron("a", card(free=4), holds=(used,))), **waiting)

    leaves = Unload(neuron="a", model="one", reason="two has waited for its time slice")
    for load_s, slice_s in ((None, MIN_TIME_SLICE_S), (1, 30), (60, 120), (600, 300)):
        assert after(999, load_s).actions == (), "nobody waits"
        early, due = after(slice_s - 1, load_s, two=99), after(slice_s, load_s, two=99)
        assert (early.actions, early.time_slices) == ((), ())
        assert (due.actions, due.time_slices) == ((leaves,), (TIME_SLICE,))
    # Who waits longest comes first, and has the room that comes free.
    plan = tick(world("a 4 one,busy,gib=20"), two=5, three=50)
    assert [time_slice.model for time_slice in plan.time_slices] == ["three"]
    assert len(plan.actions) == 1
    free = world("a 24", time_slices=(TIME_SLICE,))
    assert brief(place(TWO, free, catalogue=THE_THREE)) == "load two a/cuda:0"
    assert brief(place(ONE, free, catalogue=THE_THREE)) == "slice a", "it has just left"


LEAVING = world("a 4 one,draining,gib=20")


@each_case(
    ("what", "snapshot", "waiting", "age_s", "is_kept"),
    [
        ("its room is being made", LEAVING, {"two": 9}, 0, True),
        ("no request waits", LEAVING, {}, 0, False),
        ("it is loaded", world("a 0 two,loading"), {"two": 9}, 0, False),
        ("its neuron is away", fleet(), {"two": 9}, 0, False),
        ("for too long", world("a 0"), {"two": 9}, MAX_PROMISE_S, False),
    ],
)
def test_a_time_slice_is_kept(what, snapshot, waiting, age_s: float, is_kept: bool) -> None:
    given = structs.replace(TIME_SLICE, age_s=age_s)
    assert tick(snapshot, time_slices=[given], **waiting).time_slices == (given,) * is_kept, what
