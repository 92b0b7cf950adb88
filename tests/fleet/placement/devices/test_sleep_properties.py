"""What holds in every fleet for every waking and for every sleep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Catalogue, Load, place
from fleet.placement.decisions import Jobs, Observed, Sleep
from fleet.placement.devices.sleeping import may_sleep, waking_bytes
from fleet.placement.reconcile import reconcile
from tests.fleet.placement.devices.sleepers import ASLEEP, host, report
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
    READY,
    catalogue,
    entry,
    fleet,
    replica,
)

MODELS = ["tiny", "a1", "a2"]
STATUSES = [READY, READY, ASLEEP, ASLEEP, LOADING, FAILED, DRAINING]


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    """A card of 24 and a host of 64 each."""

    def replicas(name: str) -> list[ReplicaView]:
        found = []
        for model in draw(st.sets(st.sampled_from(MODELS))):
            status = draw(st.sampled_from(STATUSES))
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
    assert info.free_memory_bytes + freed >= waking_bytes(held, info.name), "it makes room"


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
