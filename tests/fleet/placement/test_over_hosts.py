"""A model that no host could hold lies on several, where it may; no other one does. What leaves
those hosts for it, and what never does."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, HeldStageView, NeuronView
from fleet.placement import Load, Reject, Wait, place, place_on
from fleet.placement.decisions import Jobs, Observed, Unload
from fleet.placement.devices.moves import moves_for
from fleet.placement.expected import with_load
from fleet.placement.reconcile import reconcile
from inference.protocol.heartbeat import HeldStageStatus, device_name
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import DeviceMemory, StageReport
from tests.cases import each_case
from tests.fleet.conftest import report as load_report
from tests.fleet.conftest import stage as held_stage
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    busy,
    card,
    catalogue,
    dense,
    entry,
    fleet,
    loaded,
    neuron,
    processor,
    refused,
    replica,
    took,
)


def large(gb: float = 40, **changes: Any) -> CatalogueEntry:
    return entry("large", **{"costs": dense(gb), "spread": "fleet"} | changes)


def host(name: str, *devices: Any, **changes: Any) -> NeuronView:
    return neuron(name, *devices, **{"stage_host": f"{name}.lan"} | changes)


def placed(model: CatalogueEntry, snapshot: FleetSnapshot, **options: Any) -> Any:
    return place(model, snapshot, catalogue=catalogue(model), **options)


def held(on: str, status: str, age_s: float = 1.0, **changes: Any) -> HeldStageView:
    values: dict[str, Any] = {"engine_neuron": "a", "layers": (30, 48), "memory_bytes": 0}
    one = held_stage(**values | {"status": HeldStageStatus(status)} | changes)
    return HeldStageView(neuron=on, stage=one, status_age_s=age_s)


TWO = (host("a", card(0, free=24)), host("b", card(0, free=24)))


def test_two_hosts_hold_together_what_neither_does() -> None:
    snapshot = fleet(*TWO)
    load = loaded(placed(large(), snapshot))
    first, second = load.stages
    assert (load.neuron, load.devices) == ("a", ("cuda:0",)), "the first stage's has the engine"
    assert (first.neuron, second.neuron) == ("", "b")
    assert first.layers[0] == 0 and first.layers[1] == second.layers[0] and second.layers[1] == 48
    assert not load.evict and load.predicted_tokens_per_s
    after = with_load(snapshot, load, large())
    for name, stage in zip("ab", load.stages, strict=True):
        view = after.neuron(name)
        assert view is not None
        assert view.devices[0].free_memory_bytes == 24 * GIB - stage.memory_bytes


def test_only_hosts_that_lend_stages_count() -> None:
    for changes in ({"stage_host": ""}, {"is_draining": True}, {"speaks_our_protocol": False}):
        snapshot = fleet(TWO[0], host("b", card(0, free=24), **changes))
        assert not isinstance(placed(large(), snapshot), Load)
    decision = refused(placed(large(), fleet(TWO[0], neuron("b", card(0, free=24)))))
    assert decision.code == "exceeds_device"
    assert "of all hosts with HELEXA_STAGE_LISTEN" in decision.message


def test_without_the_operators_word_it_stays_on_one_host() -> None:
    snapshot = fleet(*TWO)
    for spread in ("host", "device"):
        assert refused(placed(large(spread=spread), snapshot)).code == "exceeds_device"
    assert isinstance(place_on(large(), snapshot.neurons[0], snapshot), Reject), "one is named"


def test_what_one_device_or_host_could_hold_does_not_span() -> None:
    wide = host("c", card(0, free=2, total=24), card(1, free=2, total=24))
    used = busy("old", on="c", gib=22, status_age_s=1.0)
    other = busy("more", on="c", gib=22, devices=("cuda:1",), status_age_s=1.0)
    wide = host("c", *wide.devices, holds=(used, other))
    model = large()
    decision = place(
        model, fleet(*TWO, wide), catalogue=catalogue(model, entry("old"), entry("more"))
    )
    assert isinstance(decision, Wait) and decision.neuron == "c", "it waits for its time slice"
    whole = fleet(*TWO, host("c", processor(free=100)))
    load = loaded(placed(model, whole))
    assert (load.neuron, load.stages) == ("c", ())


def test_while_stages_are_ordered_requests_wait() -> None:
    for status in ("loading", "listening", "ready"):
        snapshot = fleet(TWO[0], host("b", card(0, free=4), held_stages=(held("b", status),)))
        decision = placed(large(), snapshot)
        assert isinstance(decision, Wait) and "stages of it are on b" in decision.reason
        ready = replica("large", on="a")
        serving = fleet(host("a", card(0, free=4), holds=(ready,)), snapshot.neurons[1])
        assert placed(large(), serving).neuron == "a"


def test_a_neuron_that_just_failed_is_left_out() -> None:
    failure = LoadFailure(code="does_not_fit", message="no room")
    failing = host("b", card(0, free=24), held_stages=(held("b", "failed", failure=failure),))
    decision = refused(placed(large(), fleet(TWO[0], failing)))
    assert decision.code == "load_failed" and "its layers 30 to 47: no room" in decision.message
    assert decision.retry_after_s == 29.0
    load = loaded(placed(large(), fleet(TWO[0], failing, host("c", card(0, free=24)))))
    assert [stage.neuron for stage in load.stages] == ["", "c"]
    again = loaded(placed(large(), fleet(TWO[0], failing), tries_again=True))
    assert [stage.neuron for stage in again.stages] == ["", "b"]
    old = held("b", "failed", age_s=31.0, failure=failure)
    loaded(placed(large(), fleet(TWO[0], host("b", card(0, free=24), held_stages=(old,)))))
    lost = LoadFailure(code="missing_file", message="no such file")
    for_good = held("b", "failed", age_s=31.0, failure=lost)
    assert refused(
        placed(large(), fleet(TWO[0], host("b", card(0, free=24), held_stages=(for_good,))))
    )


def spanning() -> FleetSnapshot:
    """The model on ``a`` and ``b``, of which ``b`` drains."""
    stages = [
        StageReport(
            device="cuda:0", layers=layers, execution="", estimated_bytes=1, kv_bytes=1, neuron=on
        )
        for layers, on in (((0, 30), ""), ((30, 48), "b"))
    ]
    memory = [DeviceMemory(device="cuda:0", actual_bytes=22 * GIB, process_bytes=0)]
    report = load_report(stages=stages, stage_memory=memory)
    there = replica("large", on="a", gib=22, report=report)
    return fleet(
        host("a", card(0, free=2), holds=(there,)),
        host("b", card(0, free=6), is_draining=True, held_stages=(held("b", "ready"),)),
    )


def test_a_stage_on_a_draining_neuron_leaves_with_its_model() -> None:
    model = large()
    plan = reconcile(catalogue(model), spanning(), jobs=Jobs(), observed=Observed())
    (action,) = plan.actions
    assert isinstance(action, Unload) and (action.neuron, action.model) == ("a", "large")


def test_what_leaves_frees_its_own_neurons_memory() -> None:
    """The stage of ``b`` has a device of the same name, and does not count on ``a``."""
    small = entry("small", 23)
    decision = place(small, spanning(), catalogue=catalogue(small, large()))
    assert loaded(decision).evict == ("large",)
    wanted = entry("small", 25)
    assert refused(place(wanted, spanning(), catalogue=catalogue(wanted, large())))


def test_where_its_engine_failed_it_goes_elsewhere() -> None:
    failed = replica(
        "large", FAILED, on="a", status_age_s=1.0, failure=LoadFailure(code="x", message="")
    )
    others = (host("b", card(0, free=24)), host("c", card(0, free=24)))
    load = loaded(placed(large(), fleet(host("a", card(0, free=24), holds=(failed,)), *others)))
    assert {load.neuron, *(stage.neuron for stage in load.stages)} == {"b", "", "c"}


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


def over(snapshot: FleetSnapshot, **changes: Any) -> Any:
    models = offered(**changes)
    return place(models["large"], snapshot, catalogue=models)


def test_idle_models_leave_each_host_that_lacks_room() -> None:
    load = loaded(over(used()))
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


def test_only_hosts_that_lack_room_are_cleared() -> None:
    snapshot = fleet(used().neurons[0], host("b", card(free=24)))
    assert loaded(over(snapshot)).evictions == (("a", "old"),)
    roomy = host("a", card(free=24)), host("c", card(free=24))
    load = loaded(over(fleet(roomy[0], used().neurons[1], roomy[1])))
    assert load.evictions == () and {stage.neuron for stage in load.stages} == {"", "c"}


@each_case("why", [{"pinned": True}, {"residency_priority": 900}], ids=["pinned", "worth more"])
def test_what_is_pinned_or_worth_more_stays(why: dict[str, Any]) -> None:
    decision = refused(over(used(), **why))
    assert decision.code == "not_enough_memory"
    assert "is in use, or may not leave for it" in decision.message
    third = fleet(*used().neurons, host("c", card(free=24)))
    load = loaded(over(third, **why))
    assert load.evictions == (("a", "old"),)
    assert {load.neuron, *(stage.neuron for stage in load.stages)} == {"a", "", "c"}


def test_a_model_that_is_in_use_or_has_just_come_stays() -> None:
    running = busy("old", on="a", gib=20)
    there = used().neurons[1]
    for snapshot in (
        fleet(host("a", card(free=4), holds=(running,)), there),
        used(in_flight=1, last_used_age_s=0.0),
        used(status_age_s=1.0, last_used_age_s=1.0),
    ):
        assert isinstance(over(snapshot), Reject)


def test_a_kept_model_makes_room_by_itself() -> None:
    models = offered() | {"large": large(pinned=True)}
    plan = reconcile(models, used(), jobs=Jobs(), observed=Observed())
    (load,) = plan.actions
    assert isinstance(load, Load) and load.evictions == (("a", "old"), ("b", "other"))


def test_what_leaves_moves_where_memory_is_free() -> None:
    """``c`` lends no stages, and has room for one of the two."""
    snapshot = fleet(*used().neurons, neuron("c", card(free=21, total=24)))
    load = loaded(over(snapshot))
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
    load = loaded(over(snapshot, pinned=False))
    models = offered()
    for move in moves_for(load, snapshot, models):
        taken = [stage.device for stage in load.stages if (stage.neuron or "a") == move.neuron]
        assert not {*move.devices} & {*taken}


def test_where_a_model_was_in_use_after_all_the_next_load_comes_at_once() -> None:
    lost = LoadFailure(code="lost_its_room", message="other is in use")
    failed = held("b", "failed", failure=lost)
    clear = fleet(host("a", card(free=24)), host("b", card(free=24), held_stages=(failed,)))
    assert [stage.neuron for stage in loaded(over(clear)).stages] == ["", "b"]


@settings(max_examples=80, deadline=None)
@given(
    hosts=st.lists(st.lists(st.integers(1, 24), min_size=1, max_size=2), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(["none", "idle", "busy", "pinned"]), min_size=8, max_size=8),
    lends=st.lists(st.sampled_from([True, True, False]), min_size=4, max_size=4),
    gb=st.integers(4, 80),
)
def test_no_device_is_given_more_than_it_has_and_only_idle_models_leave(
    hosts: list[list[int]], kinds: list[str], lends: list[bool], gb: int
) -> None:
    """Each card has so much free memory, and of its 24 GiB a model has the rest, or nobody."""
    views, models = [], [large(gb)]
    for at, devices in enumerate(hosts):
        there = []
        for index, free in enumerate(devices):
            name, kind = f"m{at}{index}", kinds[2 * at + index]
            if kind == "none":
                continue
            make = busy if kind == "busy" else replica
            there.append(make(name, on=f"n{at}", gib=24 - free, devices=(f"cuda:{index}",)))
            models.append(entry(name, pinned=kind == "pinned"))
        cards = [card(index, free=free) for index, free in enumerate(devices)]
        lan = "lan" if lends[at] else ""
        views.append(host(f"n{at}", *cards, holds=tuple(there), stage_host=lan))
    snapshot, known = fleet(*views), catalogue(*models)
    decision = place(known["large"], snapshot, catalogue=known)
    if not isinstance(decision, Load) or not decision.stages:
        return
    far = {stage.neuron for stage in decision.stages} - {""}
    bounds = [0, *(stage.layers[1] for stage in decision.stages)]
    assert [stage.layers[0] for stage in decision.stages] == bounds[:-1] and bounds[-1] == 48
    assert bounds == sorted({*bounds}) and len(decision.stages) > 1
    assert not decision.stages[0].neuron and decision.neuron not in far
    if far:
        lending = {view.name for view in views if view.stage_host}
        assert {decision.neuron, *far} <= lending
        alone = [place_on(known["large"], view, fleet(view), known) for view in views]
        assert not any(isinstance(one, Load) for one in alone), "no host could hold it"
    free = {
        (view.name, device_name(one)): one.free_memory_bytes
        for view in views
        for one in view.devices
    }
    lacking = {
        (stage.neuron or decision.neuron, stage.device): stage.memory_bytes
        for stage in decision.stages
    }
    on = {(one.neuron, one.model): one for one in snapshot.replicas()}
    assert len(decision.evictions) == len(set(decision.evictions))
    for neuron_name, model in decision.evictions:
        leaving = on[neuron_name, model]
        assert leaving.is_idle and not known[model].pinned
        where = (neuron_name, leaving.devices[0])
        assert lacking[where] > free[where], "nothing leaves in vain"
        free[where] += leaving.memory_bytes or 0
    assert all(free[where] >= needed for where, needed in lacking.items())
