"""What holds in every fleet: of decisions, evictions and wakings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Catalogue, Load, place
from fleet.placement.devices.capacity import (
    IDLE_TIME_SLICE_S,
    QUIET_S,
    idle_age_s,
    waking_bytes,
)
from inference.protocol.heartbeat import ReplicaStatus, device_name
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
    READY,
    RECOVERING,
    card,
    catalogue,
    entry,
    fleet,
    neuron,
    processor,
    replica,
    sleepy_report,
)

ASLEEP = ReplicaStatus.ASLEEP
MODELS = ("new", "m1", "m2", "m3", "m4")
STATUSES = (READY, READY, READY, ASLEEP, ASLEEP, LOADING, RECOVERING, DRAINING, FAILED)


@st.composite
def replicas(draw: st.DrawFn, on: str, model: str, cards: list[str]) -> ReplicaView:
    status = draw(st.sampled_from(STATUSES))
    is_asleep = status is ASLEEP
    devices = st.sets(st.sampled_from(cards), min_size=1, max_size=1 if is_asleep else 2)
    return replica(
        model,
        status,
        on=on,
        gib=1 if is_asleep else draw(st.sampled_from([4, 8, 16])),
        devices=tuple(sorted(draw(devices))),
        host_memory_bytes=4 * GIB if is_asleep else 0,
        report=sleepy_report(
            draw(st.sampled_from([4, 10])), draw(st.sampled_from([None, 0, 1])), 4
        ),
        status_age_s=draw(st.sampled_from([1.0, 20.0, 500.0])),
        last_used_age_s=draw(st.sampled_from([None, 0.5, 10.0, 400.0])),
        in_flight=draw(st.sampled_from([0, 0, 3])) if status is READY else 0,
    )


@st.composite
def hosts(draw: st.DrawFn, name: str) -> NeuronView:
    """One with one to three cards of 24 GiB, and processors with or without room to sleep."""
    free = draw(st.lists(st.sampled_from([0, 2, 4, 8, 12]), min_size=1, max_size=3))
    cards = [card(index, free=gib) for index, gib in enumerate(free)]
    names = [device_name(one) for one in cards]
    models = draw(st.sets(st.sampled_from(MODELS)))
    holds = tuple(draw(replicas(name, model, names)) for model in sorted(models))
    return neuron(name, *cards, processor(free=draw(st.sampled_from([4, 8, 40]))), holds=holds)


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    return fleet(*(draw(hosts(name)) for name in sorted(draw(st.sets(st.sampled_from("abc"))))))


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    return catalogue(
        *(
            entry(
                model,
                draw(st.sampled_from([None, 3, 9, 20])),
                device="cuda",
                pinned=draw(st.booleans()),
                residency_priority=draw(st.sampled_from([None, 50, 200])),
                min_devices=draw(st.sampled_from([1, 1, 2])),
                idle_ttl_s=draw(st.sampled_from([None, 60])),
                idle_action=draw(st.sampled_from(["unload", "sleep"])),
            )
            for model in MODELS
        )
    )


@given(catalogues(), fleets())
def test_a_load_makes_the_room_that_it_needs_and_no_more(
    offered: Catalogue, snapshot: FleetSnapshot
) -> None:
    new = offered["new"]
    decision = place(new, snapshot, catalogue=offered)
    if not isinstance(decision, Load):
        return
    view = snapshot.neuron(decision.neuron)
    assert view is not None
    held = view.replica_of("new")
    gone = [view.replica_of(model) for model in decision.evict]
    for evictable in gone:
        assert evictable is not None and evictable.status in {READY, ASLEEP}
        assert evictable.is_idle, "never one in use"
        if evictable.status is READY:
            assert (idle_age_s(evictable) or 0) >= QUIET_S
            assert evictable.status_age_s >= IDLE_TIME_SLICE_S, "never before its time slice"
        kept = offered[evictable.model]
        num_held = sum(
            other.status in {READY, LOADING, RECOVERING}
            for other in snapshot.replicas_of(evictable.model)
        )
        assert evictable.status is ASLEEP or not kept.pinned or num_held > 1, "never a pinned one"
        assert kept.effective_priority <= new.effective_priority
    free = {device_name(one): one.free_memory_bytes for one in view.devices}
    if held is not None and held.status is ASLEEP:
        assert decision.devices == held.devices, "it wakes where it sleeps"
        needs = {name: waking_bytes(held, name) for name in held.devices}
    elif new.weight_bytes is None:
        assert not decision.evict
        return
    else:
        assert len(decision.devices) == new.min_devices
        needs = dict.fromkeys(decision.devices, -(-new.weight_bytes // new.min_devices))

    def room(evicted: list[ReplicaView]) -> bool:
        return all(
            free[name]
            + sum(
                (one.memory_bytes or 0) // len(one.devices)
                for one in evicted
                if name in one.devices
            )
            >= needed
            for name, needed in needs.items()
        )

    assert room(gone), "it makes room"
    for one in gone:
        if len(needs) == 1:
            assert not room([other for other in gone if other is not one]), "no more than needed"
