"""Models that sleep: waking is the cheapest load, it makes room as a load does, and what is not
worth a device's memory sleeps where the operator says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Catalogue, Decision, Load, Reject, Wait, place, place_on
from fleet.placement.devices.sleeping import SLEEP_AGAIN_S, may_sleep, waking_bytes
from fleet.placement.plan import Jobs, Observed, Sleep, Unload
from fleet.placement.reconcile import reconcile
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import AsleepBytes, LoadFailure, LoadReport
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
    READY,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    neuron,
    processor,
    replica,
)

ASLEEP = ReplicaStatus.ASLEEP
TINY = entry("tiny", 10)
OTHER = entry("other", 10)


def report(gib: float = 10, asleep_gib: float | None = 1, host_gib: float = 9) -> LoadReport:
    """Of one that takes ``gib``, and ``asleep_gib`` of that while it sleeps; ``None``: it
    cannot."""
    asleep = None
    if asleep_gib is not None:
        asleep = AsleepBytes(device_bytes=int(asleep_gib * GIB), host_bytes=int(host_gib * GIB))
    return LoadReport(
        architecture="llama",
        device="cuda:0",
        dtype="bfloat16",
        num_parameters=1,
        weight_bytes=1,
        kv_bytes=1,
        num_kv_blocks=1,
        kv_block_tokens=32,
        context_tokens=32,
        vocab_size=8,
        quantization="",
        compiled="",
        load_seconds=10.0,
        tokenizer_dir="",
        actual_bytes=int(gib * GIB),
        asleep=asleep,
    )


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


def load(on: str = "a", *evict: str) -> Load:
    return Load(neuron=on, model="tiny", devices=("cuda:0",), evict=evict)


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


@pytest.mark.parametrize(("hosts", "expected"), PLACED.values(), ids=PLACED.keys())
def test_where_a_request_for_a_sleeping_model_goes(
    hosts: list[NeuronView], expected: Decision | None
) -> None:
    decision = place(TINY, fleet(*hosts), catalogue=catalogue(TINY, OTHER))
    if expected is None:
        assert isinstance(decision, Reject)
    else:
        assert decision == expected


def test_it_waits_for_its_turn_where_it_sleeps() -> None:
    users = host("a", sleeping(), busy("other", report=report()), free=1)
    decision = place(TINY, fleet(users), catalogue=catalogue(TINY, OTHER))
    assert isinstance(decision, Wait) and decision.needs_turn and decision.neuron == "a"


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


@pytest.mark.parametrize(("model", "hosts", "expected"), TICKS.values(), ids=TICKS.keys())
def test_what_a_tick_does(model: Any, hosts: list[NeuronView], expected: list[Any]) -> None:
    assert act(catalogue(model), *hosts) == expected


def test_what_falls_asleep_is_not_asked_again() -> None:
    assert not act(catalogue(IDLE), host("a", ABLE), unloading=frozenset({("tiny", "a")}))


def test_a_neuron_that_drains_keeps_nothing_asleep() -> None:
    drains = replace(host("a", sleeping()), is_draining=True)
    assert act(catalogue(TINY), drains) == [
        Unload(neuron="a", model="tiny", reason="its neuron drains")
    ]


MODELS = ["tiny", "a1", "a2"]
STATUSES = [READY, READY, ASLEEP, ASLEEP, LOADING, FAILED, DRAINING]


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    """A card of 24 and a host of 64 each."""

    def replicas(name: str) -> list[ReplicaView]:
        found = []
        for model in draw(st.sets(st.sampled_from(MODELS))):
            status = draw(
                st.sampled_from([READY, READY, ASLEEP, ASLEEP, LOADING, FAILED, DRAINING])
            )
            load_report = report(
                draw(st.sampled_from([4, 10])), draw(st.sampled_from([None, 0, 1])), 4
            )
            found.append(
                replica(
                    model,
                    status,
                    on=name,
                    gib=1 if status is ASLEEP else 10,
                    host_memory_bytes=4 * GIB if status is ASLEEP else 0,
                    report=load_report,
                    status_age_s=draw(st.sampled_from([1.0, 500.0])),
                    last_used_age_s=draw(st.sampled_from([0.5, 400.0])),
                    in_flight=draw(st.sampled_from([0, 2])) if status is READY else 0,
                )
            )
        return found

    sizes = st.sampled_from([0, 2, 6, 12])
    return fleet(
        *(
            host(name, *replicas(name), free=draw(sizes), ram=draw(st.sampled_from([4, 8, 40])))
            for name in draw(st.sets(st.sampled_from("ab"), min_size=1))
        )
    )


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    return catalogue(
        *(
            entry(
                model,
                10,
                pinned=draw(st.booleans()),
                residency_priority=draw(st.sampled_from([None, 50, 200])),
                idle_ttl_s=draw(st.sampled_from([None, 60])),
                idle_action=draw(st.sampled_from(["unload", "sleep"])),
            )
            for model in MODELS
        )
    )


@given(catalogues(), fleets())
def test_what_holds_for_every_waking(offered: Catalogue, snapshot: FleetSnapshot) -> None:
    decision = place(offered["tiny"], snapshot, catalogue=offered)
    if not isinstance(decision, Load):
        return
    view = snapshot.neuron(decision.neuron)
    assert view is not None
    held = view.replica_of("tiny")
    if held is None or held.status is not ASLEEP:
        return
    assert decision.devices == held.devices, "it wakes where it sleeps"
    gone = [view.replica_of(model) for model in decision.evict]
    for evictable in gone:
        assert evictable is not None and evictable.status in (READY, ASLEEP)
        assert evictable.is_idle, "never one in use"
        least = offered[evictable.model]
        num_held = sum(
            other.status in (READY, LOADING) for other in snapshot.replicas_of(evictable.model)
        )
        is_only_one = evictable.status is READY and num_held <= 1
        assert not (least.pinned and is_only_one), "never a pinned one"
        assert least.effective_priority <= offered["tiny"].effective_priority
    (info,) = [one for one in view.devices if one.kind == "cuda"]
    freed = sum(evictable.memory_bytes or 0 for evictable in gone if evictable is not None)
    assert info.free_memory_bytes + freed >= waking_bytes(held), "it makes room"


@given(catalogues(), fleets())
def test_what_holds_for_every_sleep(offered: Catalogue, snapshot: FleetSnapshot) -> None:
    plan = reconcile(offered, snapshot, jobs=Jobs(), observed=Observed())
    for action in plan.actions:
        if not isinstance(action, Sleep):
            continue
        view = snapshot.neuron(action.neuron)
        assert view is not None
        evictable = view.replica_of(action.model)
        assert evictable is not None and evictable.status is READY
        assert evictable.is_idle and may_sleep(evictable, view), "its host has room"
        assert offered[action.model].idle_action == "sleep"
        others = [other for other in snapshot.replicas_of(action.model) if other.status is READY]
        assert not offered[action.model].pinned or len(others) > 1, "never a pinned one"
