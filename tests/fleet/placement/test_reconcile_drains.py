"""Neurons that drain: their models go elsewhere and come back after it."""

from __future__ import annotations

from fleet.placement.decisions import Unload
from tests.cases import each_case
from tests.fleet.placement.fleets import FAILED, LOADING, busy, catalogue, entry, fleet, replica
from tests.fleet.placement.ticks import PINNED, PLAIN, act, host, load, plan


def draining(*holds):
    return host("a", *holds, is_draining=True)


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
