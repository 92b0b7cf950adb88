"""A model that no host could hold lies on several, where it may; no other one does. What leaves
those hosts for it, and what never does."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.live.snapshot import FleetSnapshot, HeldStageView, NeuronView
from fleet.placement import Load, Reject, Wait, place, place_on
from fleet.placement.decisions import Unload
from fleet.placement.devices.moves import moves_for
from fleet.placement.expected import with_load
from inference.protocol.heartbeat import HeldStageStatus
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import DeviceMemory, StageReport
from tests.cases import each_case
from tests.fleet.conftest import report as load_report
from tests.fleet.conftest import stage as held_stage
from tests.fleet.placement.divided import (
    check,
    free_bytes,
    host,
    neurons_of,
    placed,
    stage_bytes,
    wide,
)
from tests.fleet.placement.fleets import (
    GIB,
    act,
    catalogue,
    entry,
    fleet,
    loaded,
    refused,
    replica,
    took,
)
from tests.fleet.placement.worlds import host_of

A, B, C = (host(f"{name} 24") for name in "abc")


def held(status: str, age_s: float = 1.0, code: str = "") -> HeldStageView:
    """The second stage, on ``b``."""
    values: dict[str, Any] = {"engine_neuron": "a", "layers": (30, 48), "memory_bytes": 0}
    if code:
        values["failure"] = LoadFailure(code=code, message="no room")
    one = held_stage(**values | {"status": HeldStageStatus(status)})
    return HeldStageView(neuron="b", stage=one, status_age_s=age_s)


def holding(stage: HeldStageView, free: float = 24) -> NeuronView:
    return host(f"b {free}", held_stages=(stage,))


def test_two_hosts_hold_together_what_neither_does() -> None:
    load = loaded(placed(wide(), A, B))
    assert (load.neuron, load.devices) == ("a", ("cuda:0",)), "the first stage's has the engine"
    assert neurons_of(load) == ["", "b"] and not load.evictions
    check(load, fleet(A, B), wide())
    for spread in ("host", "device"):
        assert refused(placed(wide(spread=spread), A, B)).code == "exceeds_device"
    assert isinstance(place_on(wide(), A, fleet(A, B)), Reject), "one is named"


def test_only_hosts_that_lend_stages_count() -> None:
    for changes in ({"stage_host": ""}, {"is_draining": True}, {"speaks_our_protocol": False}):
        assert not isinstance(placed(wide(), A, host("b 24", **changes)), Load)
    decision = refused(placed(wide(), A, "b 24"))
    assert decision.code == "exceeds_device"
    assert "of all hosts with HELEXA_STAGE_LISTEN" in decision.message


def test_what_one_device_or_host_could_hold_does_not_span() -> None:
    used = host("c 2 2 old,busy,gib=22,age=1 more,busy,gib=22,age=1,on=cuda:1")
    decision = placed(wide(), A, B, used, others=[entry("old"), entry("more")])
    assert isinstance(decision, Wait) and decision.neuron == "c", "it waits for its time slice"
    load = loaded(placed(wide(), A, B, "c cpu100"))
    assert (load.neuron, load.stages) == ("c", ())


def test_while_stages_are_ordered_requests_wait() -> None:
    for status in ("loading", "listening", "ready"):
        there = holding(held(status), free=4)
        decision = placed(wide(), A, there)
        assert isinstance(decision, Wait) and "stages of it are on b" in decision.reason
        assert placed(wide(), host("a 4 large"), there).neuron == "a"


def test_a_neuron_that_just_failed_is_left_out() -> None:
    failing = holding(held("failed", code="does_not_fit"))
    decision = refused(placed(wide(), A, failing))
    assert decision.code == "load_failed" and "its layers 30 to 47: no room" in decision.message
    assert decision.retry_after_s == 29.0
    assert neurons_of(loaded(placed(wide(), A, failing, C))) == ["", "c"]
    for there, options in (
        (failing, {"tries_again": True}),
        (holding(held("failed", age_s=31.0, code="does_not_fit")), {}),
        (holding(held("failed", code="lost_its_room")), {}),
    ):
        assert neurons_of(loaded(placed(wide(), A, there, **options))) == ["", "b"]
    refused(placed(wide(), A, holding(held("failed", age_s=31.0, code="missing_file"))))


def test_where_its_engine_failed_it_goes_elsewhere() -> None:
    load = loaded(placed(wide(), host("a 24 large,failed,age=1,code=x"), B, C))
    assert {load.neuron, *neurons_of(load)} == {"b", "", "c"}


def spanning() -> FleetSnapshot:
    """The model on ``a`` and ``b``, of which ``b`` drains."""
    values: dict[str, Any] = {"execution": "", "estimated_bytes": 1, "kv_bytes": 1}
    stages = [
        StageReport(device="cuda:0", layers=layers, neuron=on, **values)
        for layers, on in (((0, 30), ""), ((30, 48), "b"))
    ]
    memory = [DeviceMemory(device="cuda:0", actual_bytes=22 * GIB, process_bytes=0)]
    report = load_report(stages=stages, stage_memory=memory)
    a = host("a 2", replicas=(replica("large", gib=22, report=report),))
    return fleet(a, host("b 6 draining", held_stages=(held("ready"),)))


def test_a_stage_on_a_draining_neuron_leaves_with_its_model() -> None:
    (action,) = act(catalogue(wide()), spanning())
    assert isinstance(action, Unload) and (action.neuron, action.model) == ("a", "large")


def test_what_leaves_frees_its_own_neurons_memory() -> None:
    """The stage of ``b`` has a device of the same name, and does not count on ``a``."""
    small, more = entry("small", 23), entry("small", 25)
    assert loaded(place(small, spanning(), catalogue=catalogue(small, wide()))).evict == ("large",)
    refused(place(more, spanning(), catalogue=catalogue(more, wide())))


OLD, OTHER = (
    entry(model, measured_loads=(took(on, 20),)) for model, on in (("old", "a"), ("other", "b"))
)
USED_A, USED_B = host("a 4 old,gib=20"), host("b 4 other,gib=20")
OFFERED = catalogue(wide(), OLD, OTHER)
BOTH = (("a", "old"), ("b", "other"))


def over(*hosts: NeuronView, **changes: Any) -> Any:
    """``changes`` are those of ``other``'s entry."""
    other = entry("other", measured_loads=(took("b", 20),), **changes)
    return placed(wide(), *hosts, others=[OLD, other])


def test_idle_models_leave_each_host_that_lacks_room() -> None:
    load = loaded(over(USED_A, USED_B))
    first, second = load.stages
    assert (load.neuron, load.evict, first.evict) == ("a", ("old",), [])
    assert (second.neuron, second.evict) == ("b", ["other"])
    assert load.evictions == BOTH
    after, taken = with_load(fleet(USED_A, USED_B), load, wide()), stage_bytes(load)
    assert free_bytes(after) == {where: 24 * GIB - taken[where] for where in taken}
    assert [one.model for one in after.replicas()] == ["large"]
    assert loaded(over(USED_A, B)).evictions == (("a", "old"),)
    roomy = loaded(over(A, USED_B, C))
    assert roomy.evictions == () and neurons_of(roomy) == ["", "c"]
    kept = catalogue(wide(pinned=True), OLD, OTHER)
    (by_itself,) = act(kept, fleet(USED_A, USED_B))
    assert isinstance(by_itself, Load) and by_itself.evictions == BOTH


@each_case("why", [{"pinned": True}, {"residency_priority": 900}], ids=["pinned", "worth more"])
def test_what_is_pinned_or_worth_more_stays(why: dict[str, Any]) -> None:
    decision = refused(over(USED_A, USED_B, **why))
    assert decision.code == "not_enough_memory"
    assert "is in use, or may not leave for it" in decision.message
    load = loaded(over(USED_A, USED_B, C, **why))
    assert load.evictions == (("a", "old"),)
    assert {load.neuron, *neurons_of(load)} == {"a", "", "c"}


def test_a_model_that_is_in_use_or_has_just_come_stays() -> None:
    assert isinstance(over(host("a 4 old,gib=20,busy"), USED_B), Reject)
    for changes in ("busy", "age=1,used=1"):
        assert isinstance(over(USED_A, host(f"b 4 other,gib=20,{changes}")), Reject)


@each_case(
    ("changes", "moved"),
    [({"other": ("b", "c")}, "old"), ({"old": ("a",)}, "other")],
    ids=["one of two", "what may go there"],
)
def test_what_leaves_moves_where_memory_is_free(changes: dict[str, Any], moved: str) -> None:
    """``c`` lends no stages, and has room for one of the two."""
    snapshot = fleet(USED_A, USED_B, host_of("c 21"))
    load = loaded(place(wide(), snapshot, catalogue=OFFERED))
    offered = catalogue(
        wide(),
        entry("old", measured_loads=(took("a", 20),), pinned_on=changes.get("old", ())),
        entry("other", measured_loads=(took("b", 20),), pinned_on=changes.get("other", ())),
    )
    (move,) = moves_for(load, snapshot, offered)
    assert (move.neuron, move.model, move.evict) == ("c", moved, ())


def test_a_model_does_not_move_to_the_card_that_it_leaves() -> None:
    """It has another one on its host, where it may go."""
    there = host("b 4 21 other,gib=20")
    load = loaded(over(USED_A, there))
    for move in moves_for(load, fleet(USED_A, there), OFFERED):
        taken = {device for neuron, device in stage_bytes(load) if neuron == move.neuron}
        assert not {*move.devices} & taken


@settings(max_examples=80, deadline=None)
@given(
    hosts=st.lists(st.lists(st.integers(1, 24), min_size=1, max_size=2), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(["none", "idle", "busy", "pinned"]), min_size=8, max_size=8),
    lends=st.lists(st.sampled_from(["lan", "lan", ""]), min_size=4, max_size=4),
    gb=st.integers(4, 80),
)
def test_no_device_is_given_more_than_it_has_and_only_idle_models_leave(
    hosts: list[list[int]], kinds: list[str], lends: list[str], gb: int
) -> None:
    """Each card has so much free memory, and of its 24 GiB a model has the rest, or nobody."""
    views, models = [], [wide(gb)]
    for at, devices in enumerate(hosts):
        words = [f"n{at}"]
        for index, free in enumerate(devices):
            name, kind = f"m{at}{index}", kinds[2 * at + index]
            words.append(f"{free}")
            if kind != "none":
                used = ",busy" if kind == "busy" else ""
                words.append(f"{name},gib={24 - free},on=cuda:{index}{used}")
                models.append(entry(name, pinned=kind == "pinned"))
        views.append(host(" ".join(words), stage_host=lends[at]))
    snapshot, known = fleet(*views), catalogue(*models)
    decision = place(known["large"], snapshot, catalogue=known)
    if not isinstance(decision, Load) or not decision.stages:
        return
    check(decision, snapshot, known["large"])
    far = {*neurons_of(decision)} - {""}
    assert not decision.stages[0].neuron and decision.neuron not in far
    if far:
        assert {decision.neuron, *far} <= {view.name for view in views if view.stage_host}
        alone = [place_on(known["large"], view, fleet(view), known) for view in views]
        assert not any(isinstance(one, Load) for one in alone), "no host could hold it"
    free, needed = free_bytes(snapshot), stage_bytes(decision)
    on = {(one.neuron, one.model): one for one in snapshot.replicas()}
    assert len(decision.evictions) == len(set(decision.evictions))
    for neuron_name, model in decision.evictions:
        leaving = on[neuron_name, model]
        assert leaving.is_idle and not known[model].pinned
        where = (neuron_name, leaving.devices[0])
        assert needed[where] > free[where], "nothing leaves in vain"
        free[where] += leaving.memory_bytes or 0
    assert all(free[where] >= num_bytes for where, num_bytes in needed.items())
