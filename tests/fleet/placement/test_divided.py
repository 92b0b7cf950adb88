"""Models that no device could hold, over devices of one neuron or over several hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice, decode_time_slices, encode_time_slices
from fleet.live.snapshot import FleetSnapshot, HeldStageView, NeuronView
from fleet.placement import Load, Reject, Wait, place, place_on
from fleet.placement.decisions import Unload, with_load
from fleet.placement.division import is_large_enough
from fleet.placement.needs import Needs
from fleet.placement.place import moves_for
from inference.protocol.heartbeat import HeldStageStatus, WaitingModel, device_name
from inference.protocol.load_report import DeviceMemory, LoadFailure, StageReport
from tests.fleet.conftest import report as load_report
from tests.fleet.conftest import stage as held_stage
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    act,
    card,
    catalogue,
    dense,
    entry,
    fleet,
    host_of,
    loaded,
    neuron,
    plan,
    refused,
    replica,
    took,
    world,
)


def test_which_devices_of_one_neuron_hold_it_together() -> None:
    load = loaded(placed(large(), "a 24", MIXED))
    assert (load.neuron, load.devices) == ("box", ("cuda:0", "cuda:1", "cuda:2"))
    check(load, fleet(host_of("a 24"), MIXED), large())
    assert len(loaded(place_on(large(), MIXED, fleet(MIXED))).stages) == 3, "by hand, too"
    for changes, there, devices in (
        ({}, "box 24 cpu24/32", "cuda:0 cpu"),
        ({"device": "cuda"}, "box 24 cpu24/32", ""),
        ({"min_device_vram_mb": 20_000}, "box 24 12/12 20", "cuda:0 cuda:2"),
        ({"pinned_on": ("elsewhere",)}, "box 24 12/12 8/8", ""),
    ):
        decision = placed(large(**changes), there)
        assert getattr(decision, "devices", ()) == tuple(devices.split()), changes
    # What one device could hold is not divided.
    for old, decides in (("old,gib=46", Load), ("old,gib=46,busy,age=1", Wait)):
        decision = placed(large(), f"a 2/48 {old}", MIXED, others=[entry("old", 46)])
        assert isinstance(decision, decides) and decision.neuron == "a"
        assert not getattr(decision, "stages", ())
    assert loaded(placed(large(), "a cpu60", MIXED)).devices == ("cpu",)
    # An estimate larger than any device is checked by a load: its neuron then reports the layers.
    boxes = fleet(host_of("a 30"), MIXED)
    load = loaded(place(entry("large", vram_mb=36_000), boxes))
    assert (load.neuron, load.devices, load.stages) == ("box", ("cuda:0",), ())
    kept_whole = entry("large", vram_mb=36_000, spread="device")
    assert refused(place(kept_whole, boxes)).code == "exceeds_device"
    # Settings that keep it whole, and numbers, are named.
    for changes, why in (
        ({"spread": "device"}, "spread is device"),
        ({"speculation": "mtp"}, "speculation is mtp"),
        ({"prefix_disk_bytes": 10**9}, "prefix_disk_bytes is set"),
    ):
        decision = refused(placed(large(needs_gib=36, **changes), MIXED))
        assert decision.code == "exceeds_device"
        assert decision.suggestion.endswith(f"It is not divided over devices: {why}.")
    for hosts in ([MIXED], ["a 24", "b 24"]):
        decision = refused(placed(large(60), *hosts))
        assert (decision.code, decision.retry_after_s) == ("exceeds_device", None)
        assert "the devices of one host: its 48 layers need 60.0 GB" in decision.message
        assert "are missing: cuda:0 of" in decision.message
    assert is_large_enough(Needs(large()), "box", MIXED.devices)
    assert not is_large_enough(Needs(large(60, needs_gib=60)), "box", MIXED.devices)


def test_idle_models_leave_for_it_on_each_of_its_devices() -> None:
    there = "box 2 4 4 old,gib=20 small,gib=18,on=cuda:1"
    old, small = entry("old", 20), entry("small", 18)
    load = loaded(placed(large(), there, others=[old, small]))
    assert (load.devices, load.evict) == (("cuda:0", "cuda:1"), ("old", "small"))
    decision = refused(placed(large(), there, others=[old, entry("small", 18, pinned=True)]))
    assert decision.code == "not_enough_memory" and decision.retry_after_s == 30
    assert "fits no device, and is divided over box cuda:0 + cuda:1" in decision.message
    # A divided replica frees what it holds of each device.
    memory = [
        DeviceMemory(device=name, actual_bytes=gib * GIB, process_bytes=0)
        for name, gib in (("cuda:0", 20), ("cuda:1", 4))
    ]
    report = load_report(actual_bytes=24 * GIB, kv_bytes=0, stage_memory=memory)
    held = replica("old", gib=24, devices=("cuda:0", "cuda:1"), report=report)
    snapshot = fleet(neuron("box", card(free=4), card(1, free=8, total=16), holds=(held,)))
    new, old = entry("new", 23), entry("old", spread="host", costs=dense(24))
    load = loaded(place(new, snapshot, catalogue=catalogue(new, old)))
    assert (load.devices, load.evict) == (("cuda:0",), ("old",))
    after = free_bytes(with_load(snapshot, load, new))
    assert [num_bytes // GIB for num_bytes in after.values()] == [1, 12]


def test_models_in_use_keep_their_time_slice_and_each_device_is_promised() -> None:
    there = host_of("box 2 24 old,busy,gib=22")
    offered = catalogue(large(), entry("old", 22))
    decision = place(large(), fleet(there), catalogue=offered)
    assert isinstance(decision, Wait) and decision.needs_time_slice
    waiting = {"large": WaitingModel(num_requests=1, oldest_s=9.0)}
    given = plan(offered, fleet(there), waiting=waiting).time_slices
    (time_slice,) = given
    assert time_slice.devices == ("cuda:0", "cuda:1") and time_slice.evicted == ("old",)
    assert decode_time_slices(encode_time_slices(given)) == given
    assert 15 * GIB < sum(map(time_slice.promised_on, time_slice.devices)) < 40 * GIB
    assert time_slice.promised_on("cuda:0") != time_slice.promised_on("cuda:1")
    promised = fleet(there, time_slices=given)
    beside = place(entry("other", 20), promised)
    assert isinstance(beside, Wait) and beside.needs_time_slice
    room = Load(neuron="box", model="other", devices=("cuda:1",))
    assert place(entry("other", 11), promised) == room
    theirs = TimeSlice(model="other", neuron="box", devices=("cuda:1",), device_bytes=20 * GIB)
    boxes = world("box 24 24", time_slices=(theirs,))
    decision = place(large(), boxes, catalogue=catalogue(large()))
    assert isinstance(decision, Wait) and decision.needs_time_slice, "another's promise is kept"


def test_a_device_that_was_too_small_for_all_of_it_does_not_count() -> None:
    values = {"status_age_s": 0.0, "num_failed_loads": 3, "memory_bytes": None}
    for code, refusal in (("does_not_fit", "load_failed"), ("exceeds_device", "not_enough_memory")):
        failure = LoadFailure(code=code, message="no room", needed_bytes=36 * GIB)
        failed = replica("large", FAILED, on="box", failure=failure, **values)
        assert len(loaded(placed(large(), replace(MIXED, replicas=(failed,)))).stages) == 3
        parts = replace(failed, devices=("cuda:0", "cuda:1"))
        assert refused(placed(large(), replace(MIXED, replicas=(parts,)))).code == refusal


MIXED = host_of("box 24 12/12 8/8")


def large(gb: float = 36, **changes: Any) -> CatalogueEntry:
    return entry("large", **{"costs": dense(gb)} | changes)


def wide(gb: float = 40, **changes: Any) -> CatalogueEntry:
    """A model that may lie on several hosts."""
    return large(gb, **{"spread": "fleet"} | changes)


def host(text: str, **changes: Any) -> NeuronView:
    """A host that lends stages."""
    return replace(host_of(text), **{"stage_host": "lan"} | changes)


def placed(
    model: CatalogueEntry, *hosts: NeuronView | str, others: Any = (), **options: Any
) -> Any:
    """``hosts`` in words lend no stages."""
    neurons = [host_of(one) if isinstance(one, str) else one for one in hosts]
    return place(model, fleet(*neurons), catalogue=catalogue(model, *others), **options)


def neurons_of(load: Load) -> list[str]:
    return [stage.neuron for stage in load.stages]


def free_bytes(snapshot: FleetSnapshot) -> dict[tuple[str, str], int]:
    return {
        (view.name, device_name(one)): one.free_memory_bytes
        for view in snapshot.neurons
        for one in view.devices
    }


def stage_bytes(load: Load) -> dict[tuple[str, str], int]:
    return {
        (stage.neuron or load.neuron, stage.device): stage.memory_bytes for stage in load.stages
    }


def check(load: Load, snapshot: FleetSnapshot, model: CatalogueEntry) -> None:
    """All layers are there once, in order, and each device has room for its stage."""
    bounds = [0, *(stage.layers[1] for stage in load.stages)]
    assert [stage.layers[0] for stage in load.stages] == bounds[:-1] and bounds[-1] == 48
    assert bounds == sorted({*bounds}) and len(load.stages) > 1
    assert load.predicted_tokens_per_s is not None and load.predicted_tokens_per_s > 1
    if not load.evictions:
        free, taken = free_bytes(snapshot), stage_bytes(load)
        assert all(10**9 < taken[where] <= free[where] for where in taken)
        expected = {where: free[where] - taken.get(where, 0) for where in free}
        assert free_bytes(with_load(snapshot, load, model)) == expected


A, B, C = (host(f"{name} 24") for name in "abc")


def held(status: str, age_s: float = 1.0, code: str = "") -> HeldStageView:
    """The second stage, on ``b``."""
    values = {"engine_neuron": "a", "layers": (30, 48), "memory_bytes": 0}
    failure = LoadFailure(code=code, message="no room") if code else None
    one = held_stage(status=HeldStageStatus(status), failure=failure, **values)
    return HeldStageView(neuron="b", stage=one, status_age_s=age_s)


def holding(stage: HeldStageView, free: float = 24) -> NeuronView:
    return host(f"b {free}", held_stages=(stage,))


def test_two_hosts_that_lend_stages_hold_together_what_neither_does() -> None:
    load = loaded(placed(wide(), A, B))
    assert (load.neuron, load.devices) == ("a", ("cuda:0",)), "the first stage's has the engine"
    assert neurons_of(load) == ["", "b"] and not load.evictions
    check(load, fleet(A, B), wide())
    for spread in ("host", "device"):
        assert refused(placed(wide(spread=spread), A, B)).code == "exceeds_device"
    assert isinstance(place_on(wide(), A, fleet(A, B)), Reject), "one is named"
    for changes in ({"stage_host": ""}, {"is_draining": True}, {"speaks_our_protocol": False}):
        assert not isinstance(placed(wide(), A, host("b 24", **changes)), Load)
    decision = refused(placed(wide(), A, "b 24"))
    assert decision.code == "exceeds_device"
    assert "of all hosts with HELEXA_STAGE_LISTEN" in decision.message
    # What one device or host could hold does not span.
    used = host("c 2 2 old,busy,gib=22,age=1 more,busy,gib=22,age=1,on=cuda:1")
    decision = placed(wide(), A, B, used, others=[entry("old"), entry("more")])
    assert isinstance(decision, Wait) and decision.neuron == "c", "it waits for its time slice"
    load = loaded(placed(wide(), A, B, "c cpu100"))
    assert (load.neuron, load.stages) == ("c", ())
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
    elsewhere = loaded(placed(wide(), host("a 24 large,failed,age=1,code=x"), B, C))
    assert {elsewhere.neuron, *neurons_of(elsewhere)} == {"b", "", "c"}, "its engine failed on a"


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


def test_what_leaves_frees_its_own_neurons_memory() -> None:
    small, more = entry("small", 23), entry("small", 25)
    assert loaded(place(small, spanning(), catalogue=catalogue(small, wide()))).evict == ("large",)
    refused(place(more, spanning(), catalogue=catalogue(more, wide())))
    (action,) = act(catalogue(wide()), spanning())
    assert isinstance(action, Unload) and (action.neuron, action.model) == ("a", "large")


OLD, OTHER = (
    entry(model, measured_loads=(took(on, 20),)) for model, on in (("old", "a"), ("other", "b"))
)
USED_A, USED_B = host("a 4 old,gib=20"), host("b 4 other,gib=20")
OFFERED = catalogue(wide(), OLD, OTHER)
BOTH = (("a", "old"), ("b", "other"))


def over(*hosts: NeuronView, **changes: Any) -> Any:
    return placed(wide(), *hosts, others=[OLD, replace(OTHER, **changes)])


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
    # What leaves moves: c lends no stages, and has room for one of the two.
    snapshot = fleet(USED_A, USED_B, host_of("c 21"))
    load = loaded(place(wide(), snapshot, catalogue=OFFERED))
    for kept, moved in (
        (replace(OTHER, pinned_on=("b", "c")), "old"),
        (replace(OLD, pinned_on=("a",)), "other"),
    ):
        (move,) = moves_for(load, snapshot, {**OFFERED, kept.name: kept})
        assert (move.neuron, move.model, move.evict) == ("c", moved, ())
    # What is pinned or worth more stays.
    for why in ({"pinned": True}, {"residency_priority": 900}):
        decision = refused(over(USED_A, USED_B, **why))
        assert decision.code == "not_enough_memory"
        assert "is in use, or may not leave for it" in decision.message
        load = loaded(over(USED_A, USED_B, C, **why))
        assert load.evictions == (("a", "old"),)
        assert {load.neuron, *neurons_of(load)} == {"a", "", "c"}
    assert isinstance(over(host("a 4 old,gib=20,busy"), USED_B), Reject)
    for changes in ("busy", "age=1,used=1"):
        assert isinstance(over(USED_A, host(f"b 4 other,gib=20,{changes}")), Reject)
