"""Models that sleep: waking is the cheapest load, it makes room as a load does, and models that are
not worth a device's memory sleep where the operator allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from fleet.live.snapshot import NeuronView, ReplicaView
from fleet.placement import Catalogue, Decision, Load, Reject, Wait, place, place_on
from fleet.placement.decisions import Jobs, Observed, Sleep, Unload
from fleet.placement.devices.capacity import freed_on
from fleet.placement.leaving import SLEEP_AGAIN_S
from fleet.placement.reconcile import reconcile
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import (
    LoadFailure,
)
from inference.protocol.load_report import (
    AsleepBytes,
    DeviceMemory,
)
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    GIB,
    LOADING,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    load,
    neuron,
    processor,
    replica,
)
from tests.fleet.placement.fleets import sleepy_report as report

ASLEEP = ReplicaStatus.ASLEEP
TINY = entry("tiny", 10)
OTHER = entry("other", 10)


def sleeping(model: str = "tiny", **changes: Any) -> ReplicaView:
    values: dict[str, Any] = {
        "gib": 1,
        "report": report(),
        "host_memory_bytes": 9 * GIB,
        "spec_digest": entry(model, 10).spec_digest(),
    }
    return replica(model, ASLEEP, **values | changes)


def host(name: str = "a", *holds: ReplicaView, free: float = 12, ram: float = 60) -> NeuronView:
    holds = tuple(replica_on(view, name) for view in holds)
    return neuron(name, card(free=free), processor(free=ram), holds=holds)


def replica_on(view: ReplicaView, name: str) -> ReplicaView:
    return replace(view, neuron=name)


def divided() -> ReplicaView:
    """Asleep, of 10 GiB on a card and 20 of the host; awake it takes 9 and 2 GiB more."""
    memory = [
        DeviceMemory(device=name, actual_bytes=gib * GIB, process_bytes=0)
        for name, gib in (("cuda:0", 10), ("cpu", 20))
    ]
    asleep = AsleepBytes(
        device_bytes=19 * GIB, host_bytes=9 * GIB, by_device={"cuda:0": GIB, "cpu": 18 * GIB}
    )
    own = msgspec.structs.replace(
        report(30), device="cuda:0, cpu", stage_memory=memory, asleep=asleep
    )
    return sleeping(gib=19, report=own, devices=("cuda:0", "cpu"))


@each_case(
    ("card_gib", "host_gib", "others", "evicted"),
    [
        (9, 2, [], ()),
        (0, 2, [replica("other")], ("other",)),
        (9, 1, [replica("other", devices=("cpu",))], ("other",)),
        (8, 60, [], None),
        (20, 1, [], None),
    ],
    ids=["room", "the card makes room", "the host makes room", "the card lacks", "the host lacks"],
)
def test_one_that_is_divided_wakes_where_each_of_its_devices_has_room(
    card_gib: int, host_gib: int, others: list[ReplicaView], evicted: tuple[str, ...] | None
) -> None:
    snapshot = fleet(host("a", divided(), *others, free=card_gib, ram=host_gib))
    decision = place(TINY, snapshot, catalogue=catalogue(TINY, OTHER))
    if evicted is None:
        assert not isinstance(decision, Load)
    else:
        assert isinstance(decision, Load), decision
        assert (set(decision.devices), decision.evict) == ({"cuda:0", "cpu"}, evicted)


def test_one_that_is_divided_frees_what_it_holds_asleep() -> None:
    view = host("a", divided())
    assert [freed_on(divided(), name, view) for name in ("cuda:0", "cpu")] == [GIB, 18 * GIB]


PLACED: dict[str, tuple[list[NeuronView], Decision]] = {
    "it wakes where it sleeps": ([host("a", sleeping())], load("a")),
    "rather than be loaded where more is free": (
        [host("a", sleeping(), free=9), host("b", free=20)],
        load("a"),
    ),
    "a ready one serves": (
        [host("a", sleeping()), host("b", replica("tiny"))],
        place(TINY, fleet(host("b", replica("tiny")))),
    ),
    "one that wakes is waited for": (
        [host("a", replica("tiny", LOADING))],
        Wait(neuron="a", model="tiny", reason="tiny is loading on a"),
    ),
    "loaded elsewhere where it lacks room": (
        [host("a", sleeping(), free=8), host("b", free=20)],
        load("b"),
    ),
    "idle models leave for it": (
        [host("a", sleeping(), replica("other"), free=1)],
        load("a", "other"),
    ),
    "it does not leave for itself": ([host("a", sleeping(), free=8.5)], None),
    "what sleeps leaves for a load": (
        [host("a", sleeping("other", gib=3), free=8)],
        load("a", "other"),
    ),
    "one of an older spec is loaded anew": (
        [host("a", sleeping(spec_digest="older"), free=9.5), host("b", free=20)],
        load("b"),
    ),
    "one that has just failed to wake is waited for": (
        [
            host(
                "a",
                sleeping(
                    failure=LoadFailure(code="does_not_fit", message="full"), status_age_s=1.0
                ),
            )
        ],
        Wait(
            neuron="a",
            model="tiny",
            reason="tiny sleeps on a and could not be woken just now",
            eta_s=5.0,
        ),
    ),
}


@each_case(("hosts", "expected"), PLACED.values(), ids=PLACED.keys())
def test_where_a_request_for_a_sleeping_model_goes(
    hosts: list[NeuronView], expected: Decision | None
) -> None:
    decision = place(TINY, fleet(*hosts), catalogue=catalogue(TINY, OTHER))
    if expected is None:
        assert isinstance(decision, Reject)
    else:
        assert decision == expected


def test_it_waits_for_a_time_slice_where_it_sleeps() -> None:
    users = host("a", sleeping(), busy("other", report=report()), free=1)
    decision = place(TINY, fleet(users), catalogue=catalogue(TINY, OTHER))
    assert isinstance(decision, Wait) and decision.needs_time_slice and decision.neuron == "a"


def test_an_operator_wakes_it_on_its_neuron() -> None:
    here = host("a", sleeping(), replica("other"), free=1)
    offered = catalogue(TINY, OTHER)
    assert place_on(TINY, here, fleet(here), offered) == load("a", "other")


def test_of_two_that_are_as_idle_the_one_that_can_sleep_makes_room() -> None:
    cold = replica("cold", report=report(asleep_gib=None))
    warm = replica("warm", report=report())
    offered = catalogue(TINY, entry("cold", 10), entry("warm", 10))
    assert place(TINY, fleet(host("a", cold, warm, free=1)), catalogue=offered) == load("a", "warm")
    full = fleet(host("a", cold, warm, free=1, ram=15))  # a tenth of the host is not to be had
    assert place(TINY, full, catalogue=offered) == load("a", "cold")


def act(offered: Catalogue, *hosts: NeuronView, **known: Any) -> list[Any]:
    snapshot = fleet(*hosts)
    return list(reconcile(offered, snapshot, jobs=Jobs(**known), observed=Observed()).actions)


IDLE = entry("tiny", 10, idle_ttl_s=60, idle_action="sleep")
LEAVES = Unload(neuron="a", model="tiny", reason="idle for 60 s")
SLEEPS = Sleep(neuron="a", model="tiny", reason="idle for 60 s")
ABLE = replica("tiny", report=report())

TICKS: dict[str, tuple[Any, list[NeuronView], list[Any]]] = {
    "an idle one sleeps where that is chosen": (IDLE, [host("a", ABLE)], [SLEEPS]),
    "and is unloaded where it is not": (
        entry("tiny", 10, idle_ttl_s=60),
        [host("a", ABLE)],
        [LEAVES],
    ),
    "or where it cannot": (IDLE, [host("a", replica("tiny"))], [LEAVES]),
    "or the host has no room": (IDLE, [host("a", ABLE, ram=20)], [LEAVES]),
    "or its neuron has just refused": (
        IDLE,
        [host("a", replace(ABLE, sleep_refused_age_s=SLEEP_AGAIN_S - 1))],
        [LEAVES],
    ),
    "it may be asked again later": (
        IDLE,
        [host("a", replace(ABLE, sleep_refused_age_s=SLEEP_AGAIN_S))],
        [SLEEPS],
    ),
    "one in use stays": (IDLE, [host("a", busy("tiny", report=report()))], []),
    "a pinned one stays": (
        entry("tiny", 10, idle_ttl_s=60, idle_action="sleep", pinned=True),
        [host("a", ABLE)],
        [],
    ),
    "one that sleeps stays asleep": (IDLE, [host("a", sleeping())], []),
    "unless it is missed": (entry("tiny", 10, pinned=True), [host("a", sleeping())], [load("a")]),
    "one that nobody offers goes": (
        OTHER,
        [host("a", sleeping())],
        [Unload(neuron="a", model="tiny", reason="the catalogue does not offer it")],
    ),
}


@each_case(("model", "hosts", "expected"), TICKS.values(), ids=TICKS.keys())
def test_what_a_tick_does(model: Any, hosts: list[NeuronView], expected: list[Any]) -> None:
    assert act(catalogue(model), *hosts) == expected


def test_what_falls_asleep_is_not_asked_again() -> None:
    assert not act(catalogue(IDLE), host("a", ABLE), unloading=frozenset({("tiny", "a")}))


def test_a_neuron_that_drains_keeps_nothing_asleep() -> None:
    drains = replace(host("a", sleeping()), is_draining=True)
    assert act(catalogue(TINY), drains) == [
        Unload(neuron="a", model="tiny", reason="its neuron drains")
    ]
