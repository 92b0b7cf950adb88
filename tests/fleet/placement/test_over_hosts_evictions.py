"""What leaves several hosts for a model that lies on them together, and what never does."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Load, Reject, Wait, place
from fleet.placement.decisions import Jobs, Observed
from fleet.placement.devices.moves import moves_for
from fleet.placement.expected import with_load
from fleet.placement.reconcile import reconcile
from inference.protocol.heartbeat import device_name
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    GIB,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    neuron,
    replica,
    took,
)
from tests.fleet.placement.test_over_hosts import held, host, large, loaded


def used(*, free: float = 4, **changes: Any) -> FleetSnapshot:
    """Two hosts, each with an idle model of 20 GiB on its card. ``changes`` are those of the
    second."""
    old = replica("old", on="a", gib=20)
    other = replica("other", **{"on": "b", "gib": 20} | changes)
    return fleet(
        host("a", card(free=free), holds=(old,)), host("b", card(free=free), holds=(other,))
    )


def offered(**changes: Any) -> Any:
    """``changes`` are those of ``other``'s entry."""
    small = entry("old", measured_loads=(took("a", 20),))
    other = entry("other", **{"measured_loads": (took("b", 20),)} | changes)
    return catalogue(large(), small, other)


def placed(snapshot: FleetSnapshot, **changes: Any) -> Any:
    models = offered(**changes)
    return place(models["large"], snapshot, catalogue=models)


def test_idle_models_leave_each_host_that_lacks_room() -> None:
    load = loaded(placed(used()))
    first, second = load.stages
    assert (load.neuron, load.evict, first.evict) == ("a", ("old",), [])
    assert (second.neuron, second.evict) == ("b", ["other"])
    assert load.evictions == (("a", "old"), ("b", "other"))
    after = with_load(used(), load, large())
    for name, stage in zip("ab", load.stages, strict=True):
        view = after.neuron(name)
        assert view is not None
        assert view.devices[0].free_memory_bytes == 24 * GIB - stage.memory_bytes
        assert not {"old", "other"} & {one.model for one in view.replicas}


def test_nothing_leaves_where_free_memory_is_enough() -> None:
    one = host("a", card(free=24))
    snapshot = fleet(one, *used().neurons[1:], host("c", card(free=24)))
    load = loaded(placed(snapshot))
    assert load.evictions == () and {stage.neuron for stage in load.stages} == {"", "c"}


def test_only_the_host_that_lacks_room_is_cleared() -> None:
    snapshot = fleet(used().neurons[0], host("b", card(free=24)))
    load = loaded(placed(snapshot))
    assert len(load.evictions) == 1 and load.evictions[0] == ("a", "old")


@each_case("why", [{"pinned": True}, {"residency_priority": 900}], ids=["pinned", "worth more"])
def test_what_is_pinned_or_worth_more_stays(why: dict[str, Any]) -> None:
    decision = placed(used(), **why)
    assert isinstance(decision, Reject) and decision.code == "not_enough_memory"
    assert "is in use, or may not leave for it" in decision.message
    third = fleet(*used().neurons, host("c", card(free=24)))
    load = loaded(placed(third, **why))
    assert load.evictions == (("a", "old"),)
    assert {load.neuron, *(stage.neuron for stage in load.stages)} == {"a", "", "c"}


def test_a_model_in_use_stays() -> None:
    for of in ("a", "b"):
        snapshot = used() if of == "a" else used(in_flight=1, last_used_age_s=0.0)
        if of == "a":
            running = busy("old", on="a", gib=20)
            snapshot = fleet(host("a", card(free=4), holds=(running,)), snapshot.neurons[1])
        assert isinstance(placed(snapshot), Reject)


def test_a_model_that_has_just_come_stays() -> None:
    assert isinstance(placed(used(status_age_s=1.0, last_used_age_s=1.0)), Reject)


def test_a_kept_model_makes_room_by_itself() -> None:
    models = offered() | {"large": large(pinned=True)}
    plan = reconcile(models, used(), jobs=Jobs(), observed=Observed())
    (load,) = plan.actions
    assert isinstance(load, Load) and load.evictions == (("a", "old"), ("b", "other"))


def test_what_leaves_moves_where_memory_is_free() -> None:
    """``c`` lends no stages, and has room for one of the two."""
    snapshot = fleet(*used().neurons, neuron("c", card(free=21, total=24)))
    load = loaded(placed(snapshot))
    assert load.evictions == (("a", "old"), ("b", "other"))
    (move,) = moves_for(load, snapshot, offered(pinned_on=("b", "c")))
    assert (move.neuron, move.model, move.evict) == ("c", "old", ())
    only_other = offered()
    only_other["old"] = entry("old", measured_loads=(took("a", 20),), pinned_on=("a",))
    (move,) = moves_for(load, snapshot, only_other)
    assert (move.neuron, move.model) == ("c", "other")


def test_a_model_does_not_move_to_the_card_that_it_leaves() -> None:
    """It has another one on its host, where it may go."""
    there = host("b", card(free=4), card(1, free=21, total=22), holds=used().neurons[1].replicas)
    snapshot = fleet(used().neurons[0], there)
    load = loaded(placed(snapshot, pinned=False))
    models = offered()
    for move in moves_for(load, snapshot, models):
        taken = [stage.device for stage in load.stages if (stage.neuron or "a") == move.neuron]
        assert not {*move.devices} & {*taken}


def test_where_a_model_was_in_use_after_all_the_next_load_comes_at_once() -> None:
    lost = LoadFailure(code="lost_its_room", message="other is in use")
    failed = held("b", "failed", failure=lost)
    clear = fleet(host("a", card(free=24)), host("b", card(free=24), held_stages=(failed,)))
    assert [stage.neuron for stage in loaded(placed(clear)).stages] == ["", "b"]


sizes = st.integers(1, 24)


@settings(max_examples=60, deadline=None)
@given(
    hosts=st.lists(st.lists(sizes, min_size=1, max_size=2), min_size=2, max_size=4),
    kinds=st.lists(st.sampled_from(["idle", "busy", "pinned"]), min_size=8, max_size=8),
    gb=st.integers(4, 80),
)
def test_only_idle_models_leave_and_memory_is_never_over(
    hosts: list[list[int]], kinds: list[str], gb: int
) -> None:
    """Each card of 24 GiB has so much free memory, and a model on the rest."""
    views, models = [], [large(gb)]
    for at, devices in enumerate(hosts):
        there = []
        for index, free in enumerate(devices):
            name, kind = f"m{at}{index}", kinds[2 * at + index]
            make = busy if kind == "busy" else replica
            there.append(make(name, on=f"n{at}", gib=24 - free, devices=(f"cuda:{index}",)))
            models.append(entry(name, pinned=kind == "pinned"))
        cards = [card(index, free=free) for index, free in enumerate(devices)]
        views.append(host(f"n{at}", *cards, holds=tuple(there)))
    snapshot, known = fleet(*views), catalogue(*models)
    decision = place(known["large"], snapshot, catalogue=known)
    if not isinstance(decision, Load) or not any(one.neuron for one in decision.stages):
        assert isinstance(decision, (Load, Wait, Reject))
        return
    free = {
        (view.name, device_name(one)): one.free_memory_bytes
        for view in views
        for one in view.devices
    }
    on = {(one.neuron, one.model): one for one in snapshot.replicas()}
    lacking = {
        (stage.neuron or decision.neuron, stage.device): stage.memory_bytes
        for stage in decision.stages
    }
    assert len(decision.evictions) == len(set(decision.evictions))
    for neuron_name, model in decision.evictions:
        leaving = on[neuron_name, model]
        assert leaving.is_idle and not known[model].pinned
        where = (neuron_name, leaving.devices[0])
        assert lacking[where] > free[where], "nothing leaves in vain"
        free[where] += leaving.memory_bytes or 0
    assert all(free[where] >= needed for where, needed in lacking.items())
