"""A model that no device could hold is divided over devices of one neuron; no other one is."""

from __future__ import annotations

from typing import Any

from fleet.live.desired_state import TimeSlice, decode_time_slices, encode_time_slices
from fleet.live.snapshot import ReplicaView
from fleet.placement import Load, Wait, place, place_on
from fleet.placement.decisions import Waiting
from fleet.placement.devices.needs import Needs
from fleet.placement.expected import with_load
from fleet.placement.returning import is_large_enough
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import DeviceMemory
from tests.cases import each_case
from tests.fleet.conftest import report as load_report
from tests.fleet.placement.divided import (
    MIXED,
    check,
    free_bytes,
    large,
    placed,
)
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    card,
    catalogue,
    dense,
    entry,
    fleet,
    loaded,
    neuron,
    plan,
    refused,
    replica,
)
from tests.fleet.placement.worlds import host_of, world


def test_uneven_cards_of_one_neuron_hold_it_together() -> None:
    load = loaded(placed(large(), "a 24", MIXED))
    assert (load.neuron, load.devices) == ("box", ("cuda:0", "cuda:1", "cuda:2"))
    check(load, fleet(host_of("a 24"), MIXED), large())
    assert len(loaded(place_on(large(), MIXED, fleet(MIXED))).stages) == 3, "by hand, too"


def test_what_one_device_could_hold_is_not_divided() -> None:
    for old, decides in (("old,gib=46", Load), ("old,gib=46,busy,age=1", Wait)):
        decision = placed(large(), f"a 2/48 {old}", MIXED, others=[entry("old", 46)])
        assert isinstance(decision, decides) and decision.neuron == "a"
        assert not getattr(decision, "stages", ())
    assert loaded(placed(large(), "a cpu60", MIXED)).devices == ("cpu",)


@each_case(
    ("what", "changes", "there", "devices"),
    [
        ("a card and processors", {}, "box 24 cpu24/32", "cuda:0 cpu"),
        ("not processors", {"device": "cuda"}, "box 24 cpu24/32", ""),
        ("cards of a size", {"min_device_vram_mb": 20_000}, "box 24 12/12 20", "cuda:0 cuda:2"),
        ("not there", {"pinned_on": ("elsewhere",)}, "box 24 12/12 8/8", ""),
    ],
)
def test_which_devices_it_may_use(what, changes, there, devices: str) -> None:
    decision = placed(large(**changes), there)
    assert (decision.devices if isinstance(decision, Load) else ()) == tuple(devices.split()), what


@each_case(
    ("changes", "why"),
    [
        ({"spread": "device"}, "spread is device"),
        ({"speculation": "mtp"}, "speculation is mtp"),
        ({"prefix_disk_bytes": 10**9}, "prefix_disk_bytes is set"),
    ],
    ids=str,
)
def test_settings_that_keep_it_whole_are_named(changes: dict[str, Any], why: str) -> None:
    decision = refused(placed(large(needs_gib=36, **changes), MIXED))
    assert decision.code == "exceeds_device"
    assert decision.suggestion.endswith(f"It is not divided over devices: {why}.")


def test_what_is_too_large_even_so_is_refused_with_the_numbers() -> None:
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


def test_a_divided_replica_frees_what_it_holds_of_each_device() -> None:
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
    waiting = {"large": Waiting(num_requests=1, oldest_s=9.0)}
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


def test_a_promise_to_another_model_is_kept() -> None:
    time_slice = TimeSlice(model="other", neuron="box", devices=("cuda:1",), device_bytes=20 * GIB)
    boxes = world("box 24 24", time_slices=(time_slice,))
    decision = place(large(), boxes, catalogue=catalogue(large()))
    assert isinstance(decision, Wait) and decision.needs_time_slice


def failed(code: str, *devices: str) -> ReplicaView:
    failure = LoadFailure(code=code, message="no room", needed_bytes=36 * GIB)
    changes = {"status_age_s": 0.0, "num_failed_loads": 3, "memory_bytes": None}
    return replica("large", FAILED, on="box", devices=devices, failure=failure, **changes)


@each_case(
    ("code", "refusal"),
    [("does_not_fit", "load_failed"), ("exceeds_device", "not_enough_memory")],
)
def test_a_device_that_was_too_small_for_all_of_it_does_not_count(code: str, refusal: str) -> None:
    whole = neuron("box", *MIXED.devices, holds=(failed(code, "cuda:0"),))
    assert len(loaded(placed(large(), whole)).stages) == 3
    parts = neuron("box", *MIXED.devices, holds=(failed(code, "cuda:0", "cuda:1"),))
    assert refused(placed(large(), parts)).code == refusal


def test_an_estimate_larger_than_any_device_is_checked_by_a_load() -> None:
    """Its neuron then reports what the layers take."""
    boxes = fleet(host_of("a 30"), MIXED)
    load = loaded(place(entry("large", vram_mb=36_000), boxes))
    assert (load.neuron, load.devices, load.stages) == ("box", ("cuda:0",), ())
    kept_whole = entry("large", vram_mb=36_000, spread="device")
    assert refused(place(kept_whole, boxes)).code == "exceeds_device"
