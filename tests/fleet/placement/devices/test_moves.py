"""What leaves for a load moves where memory is free: one table, and what holds of every fleet."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Load, place
from fleet.placement.devices.moves import moves_for
from fleet.placement.expected import with_load
from inference.protocol.heartbeat import device_name
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    GIB,
    LOADING,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    neuron,
    replica,
    took,
)

NEW = entry("new", needs_gib=14)
OLD = entry("old", needs_gib=10)
LOAD = Load(neuron="a", model="new", devices=("cuda:0",), evict=("old",))
TO_B = Load(neuron="b", model="old", devices=("cuda:0",))


def pieces(held: ReplicaView, b_free: float = 12, *more: ReplicaView) -> FleetSnapshot:
    return fleet(
        neuron("a", card(free=6, total=16), holds=(held,)),
        neuron("b", card(free=b_free, total=16), holds=more),
    )


TABLE: dict[str, tuple[FleetSnapshot, Any, tuple[Load, ...]]] = {
    "it moves": (pieces(replica("old")), OLD, (TO_B,)),
    "no other neuron has room": (pieces(replica("old"), 9), OLD, ()),
    "it is busy": (pieces(busy("old")), OLD, ()),
    "it is pinned": (pieces(replica("old")), entry("old", needs_gib=10, pinned=True), ()),
    "it may run there only": (
        pieces(replica("old")),
        entry("old", needs_gib=10, pinned_on=("a",)),
        (),
    ),
    "another card of its host has room": (
        fleet(
            neuron("a", card(free=6, total=16), card(1, free=12, total=16), holds=(replica("old"),))
        ),
        OLD,
        (Load(neuron="a", model="old", devices=("cuda:1",)),),
    ),
    "nobody has used it for days": (
        pieces(replica("old", last_used_age_s=3e5, status_age_s=3e5)),
        OLD,
        (TO_B,),
    ),
    "another neuron has it": (pieces(replica("old"), 12, replica("old", on="b")), OLD, ()),
    "another neuron loads it": (
        pieces(replica("old"), 12, replica("old", LOADING, on="b")),
        OLD,
        (),
    ),
    "nobody knows what it needs": (pieces(replica("old")), entry("old"), (TO_B,)),
    "the catalogue has it no more": (pieces(replica("old")), None, ()),
}


@each_case(("snapshot", "old", "moves"), TABLE.values(), ids=TABLE.keys())
def test_what_leaves(snapshot: FleetSnapshot, old: Any, moves: tuple[Load, ...]) -> None:
    offered = catalogue(NEW, *([] if old is None else [old]))
    assert moves_for(LOAD, snapshot, offered) == moves


def test_what_can_move_leaves_rather_than_what_would_be_lost() -> None:
    """``large`` was used longer ago, and fits nowhere else; ``small`` fits into what c has free."""
    small, large = entry("small", needs_gib=10), entry("large", needs_gib=15)
    snapshot = fleet(
        neuron("a", card(free=6, total=22), holds=(replica("small", gib=10),)),
        neuron(
            "b",
            card(free=1, total=16),
            holds=(replica("large", on="b", gib=15, last_used_age_s=900, status_age_s=900),),
        ),
        neuron("c", card(free=12, total=16)),
    )
    offered = catalogue(NEW, small, large)
    decision = place(NEW, snapshot, catalogue=offered)
    assert isinstance(decision, Load) and decision.evict == ("small",)
    (move,) = moves_for(decision, snapshot, offered)
    assert (move.model, move.neuron) == ("small", "c")
    # Where it may not go there, the one of longer ago leaves.
    offered = catalogue(NEW, entry("small", needs_gib=10, pinned_on=("a",)), large)
    decision = place(NEW, snapshot, catalogue=offered)
    assert isinstance(decision, Load) and decision.evict == ("large",)


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    """Cards of 24 GiB, filled with replicas of all kinds, each model on one neuron."""
    hosts, models = [], iter(range(100))
    for name in ("a", "b", "c", "d")[: draw(st.integers(1, 4))]:
        free, held = 24.0, []
        for size in draw(st.lists(st.integers(1, 12), max_size=4)):
            if size > free:
                continue
            free -= size
            make = draw(st.sampled_from([replica, busy]))
            age_s = 0.0 if make is busy else draw(st.sampled_from([60.0, 600.0, 99_999.0]))
            held.append(
                make(f"m{next(models)}", on=name, gib=size, last_used_age_s=age_s, status_age_s=1e6)
            )
        hosts.append(neuron(name, card(free=free), holds=tuple(held)))
    return fleet(*hosts)


@given(snapshot=fleets(), needs_gib=st.integers(1, 24), pinned=st.sets(st.integers(0, 15)))
def test_moves_take_free_memory_alone_and_only_what_is_idle_and_unpinned(
    snapshot: FleetSnapshot, needs_gib: int, pinned: set[int]
) -> None:
    offered = catalogue(
        entry("new", needs_gib=needs_gib),
        *(
            entry(
                one.model,
                measured_loads=(took("elsewhere", (one.memory_bytes or 0) / GIB),),
                pinned=int(one.model[1:]) in pinned,
            )
            for one in snapshot.replicas()
        ),
    )
    decision = place(offered["new"], snapshot, catalogue=offered)
    if not isinstance(decision, Load):
        return
    moves = moves_for(decision, snapshot, offered)
    before = {one.model: one for one in snapshot.replicas()}
    assert {move.model for move in moves} <= set(decision.evict)
    assert len({move.model for move in moves}) == len(moves)
    expected = with_load(snapshot, decision, offered["new"])
    for move in moves:
        moved = before[move.model]
        assert moved.is_idle and not offered[move.model].pinned and not move.evict
        assert (move.neuron, *move.devices) != (moved.neuron, *moved.devices)
        host = expected.neuron(move.neuron)
        assert host is not None
        free = {device_name(one): one.free_memory_bytes for one in host.devices}
        assert all(free[device] >= (moved.memory_bytes or 0) for device in move.devices)
        expected = with_load(expected, move, offered[move.model])
