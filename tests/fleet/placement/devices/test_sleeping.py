"""Models that sleep: waking is the cheapest load, it makes room as a load does, and models that are
not worth a device's memory sleep where the operator allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from fleet.live.snapshot import NeuronView, ReplicaView
from fleet.placement import Load, Wait, place, place_on
from fleet.placement.devices.capacity import freed_on
from fleet.placement.leaving import SLEEP_AGAIN_S
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import AsleepBytes, DeviceMemory
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    GIB,
    LOADING,
    act,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    loaded,
    neuron,
    processor,
    replica,
)
from tests.fleet.placement.fleets import sleepy_report as report
from tests.fleet.placement.worlds import brief, briefs

TINY, OTHER = entry("tiny", 10), entry("other", 10)
OFFERED = catalogue(TINY, OTHER)
ON_A, ON_B = "load tiny a/cuda:0", "load tiny b/cuda:0"


def sleeping(model: str = "tiny", **changes: Any) -> ReplicaView:
    values: dict[str, Any] = {
        "gib": 1,
        "report": report(),
        "host_memory_bytes": 9 * GIB,
        "spec_digest": entry(model, 10).spec_digest(),
    }
    return replica(model, ReplicaStatus.ASLEEP, **values | changes)


def host(name: str = "a", *holds: ReplicaView, free: float = 12, ram: float = 60) -> NeuronView:
    holds = tuple(replace(view, neuron=name) for view in holds)
    return neuron(name, card(free=free), processor(free=ram), holds=holds)


def divided() -> ReplicaView:
    """Asleep, of 10 GiB on a card and 20 of the host; awake it takes 9 and 2 GiB more."""
    memory = [
        DeviceMemory(device=name, actual_bytes=gib * GIB, process_bytes=0)
        for name, gib in (("cuda:0", 10), ("cpu", 20))
    ]
    by_device = {"cuda:0": GIB, "cpu": 18 * GIB}
    asleep = AsleepBytes(device_bytes=19 * GIB, host_bytes=9 * GIB, by_device=by_device)
    own = msgspec.structs.replace(
        report(30), device="cuda:0, cpu", stage_memory=memory, asleep=asleep
    )
    return sleeping(gib=19, report=own, devices=("cuda:0", "cpu"))


@each_case(
    ("what", "card_gib", "host_gib", "others", "evicted"),
    [
        ("room", 9, 2, [], ()),
        ("the card makes room", 0, 2, [replica("other")], ("other",)),
        ("the host makes room", 9, 1, [replica("other", devices=("cpu",))], ("other",)),
        ("the card lacks", 8, 60, [], None),
        ("the host lacks", 20, 1, [], None),
    ],
)
def test_one_that_is_divided_wakes_where_each_of_its_devices_has_room(
    what: str, card_gib: int, host_gib: int, others: list[ReplicaView], evicted: Any
) -> None:
    snapshot = fleet(host("a", divided(), *others, free=card_gib, ram=host_gib))
    decision = place(TINY, snapshot, catalogue=OFFERED)
    assert isinstance(decision, Load) == (evicted is not None), what
    if isinstance(decision, Load):
        assert (set(decision.devices), decision.evict) == ({"cuda:0", "cpu"}, evicted), what


def test_one_that_is_divided_frees_what_it_holds_asleep() -> None:
    view = host("a", divided())
    assert [freed_on(divided(), name, view) for name in ("cuda:0", "cpu")] == [GIB, 18 * GIB]


FAILED_WAKE = {"failure": LoadFailure(code="does_not_fit", message="full"), "status_age_s": 1.0}
OUTDATED = sleeping(spec_digest="older")


@each_case(
    ("what", "hosts", "expected"),
    [
        ("it wakes where it sleeps", [host("a", sleeping())], ON_A),
        ("not elsewhere", [host("a", sleeping(), free=9), host("b", free=20)], ON_A),
        ("a ready one serves", [host("a", sleeping()), host("b", replica("tiny"))], "route b"),
        ("one that wakes", [host("a", replica("tiny", LOADING))], "wait a"),
        ("lacking room", [host("a", sleeping(), free=8), host("b", free=20)], ON_B),
        ("others leave", [host("a", sleeping(), replica("other"), free=1)], f"{ON_A} -other"),
        ("it does not leave for itself", [host("a", sleeping(), free=8.5)], "not_enough_memory"),
        ("what sleeps leaves", [host("a", sleeping("other", gib=3), free=8)], f"{ON_A} -other"),
        ("an older spec", [host("a", OUTDATED, free=9.5), host("b", free=20)], ON_B),
        ("one that has just failed to wake", [host("a", sleeping(**FAILED_WAKE))], "wait a"),
    ],
)
def test_where_a_request_for_a_sleeping_model_goes(what, hosts, expected: str) -> None:
    assert brief(place(TINY, fleet(*hosts), catalogue=OFFERED)) == expected, what


def test_a_failed_wake_is_named() -> None:
    decision = place(TINY, fleet(host("a", sleeping(**FAILED_WAKE))), catalogue=OFFERED)
    assert isinstance(decision, Wait) and decision.eta_s == 5.0
    assert decision.reason == "tiny sleeps on a and could not be woken just now"


def test_it_waits_for_a_time_slice_where_it_sleeps_and_an_operator_wakes_it_there() -> None:
    users = host("a", sleeping(), busy("other", report=report()), free=1)
    assert brief(place(TINY, fleet(users), catalogue=OFFERED)) == "slice a"
    here = host("a", sleeping(), replica("other"), free=1)
    assert brief(place_on(TINY, here, fleet(here), OFFERED)) == f"{ON_A} -other"


def test_of_two_that_are_as_idle_the_one_that_can_sleep_makes_room() -> None:
    cold = replica("cold", report=report(asleep_gib=None))
    warm = replica("warm", report=report())
    offered = catalogue(TINY, entry("cold", 10), entry("warm", 10))
    for ram, leaves in ((60, "warm"), (15, "cold")):  # a tenth of the host is not to be had
        snapshot = fleet(host("a", cold, warm, free=1, ram=ram))
        assert loaded(place(TINY, snapshot, catalogue=offered)).evict == (leaves,)


SLEEP = {"idle_ttl_s": 60, "idle_action": "sleep"}
IDLE = entry("tiny", 10, **SLEEP)
ABLE = replica("tiny", report=report())
JUST, LONG_AGO = (replace(ABLE, sleep_refused_age_s=SLEEP_AGAIN_S - s) for s in (1, 0))
DRAINS = replace(host("a", sleeping()), is_draining=True)


@each_case(
    ("what", "model", "there", "expected"),
    [
        ("an idle one sleeps where that is chosen", IDLE, host("a", ABLE), "sleep tiny a"),
        ("not chosen", entry("tiny", 10, idle_ttl_s=60), host("a", ABLE), "unload tiny a"),
        ("it cannot", IDLE, host("a", replica("tiny")), "unload tiny a"),
        ("the host has no room", IDLE, host("a", ABLE, ram=20), "unload tiny a"),
        ("its neuron has just refused", IDLE, host("a", JUST), "unload tiny a"),
        ("it may be asked again later", IDLE, host("a", LONG_AGO), "sleep tiny a"),
        ("one in use stays", IDLE, host("a", busy("tiny", report=report())), ""),
        ("a pinned one stays", entry("tiny", 10, pinned=True, **SLEEP), host("a", ABLE), ""),
        ("one that sleeps stays asleep", IDLE, host("a", sleeping()), ""),
        ("it is missed", entry("tiny", 10, pinned=True), host("a", sleeping()), ON_A),
        ("one that nobody offers goes", OTHER, host("a", sleeping()), "unload tiny a"),
        ("a neuron that drains keeps nothing asleep", TINY, DRAINS, "unload tiny a"),
    ],
)
def test_what_a_tick_does(what: str, model: Any, there: NeuronView, expected: str) -> None:
    actions = act(catalogue(model), fleet(there))
    assert briefs(actions) == expected, what
    if model is IDLE:
        assert all(one.reason == "idle for 60 s" for one in actions), what
        falling = frozenset({("tiny", "a")})
        assert not act(catalogue(IDLE), fleet(there), unloading=falling), "it is not asked again"
