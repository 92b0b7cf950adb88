"""A model that no device could hold is divided over devices of one neuron; no other one is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice, decode_time_slices, encode_time_slices
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Load, Wait, place, place_on
from fleet.placement.decisions import Jobs, Observed, Waiting
from fleet.placement.devices.needs import Needs
from fleet.placement.expected import with_load
from fleet.placement.reconcile import reconcile
from fleet.placement.returning import is_large_enough
from inference.protocol.heartbeat import device_name
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import DeviceMemory
from tests.cases import each_case
from tests.fleet.conftest import report as load_report
from tests.fleet.placement.fleets import (
    FAILED,
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
)

GIB = 1024**3
MIXED = (card(0, free=24), card(1, free=12, total=12), card(2, free=8, total=8))


def large(gb: float = 36, **changes: Any) -> CatalogueEntry:
    return entry("large", **{"costs": dense(gb)} | changes)


def placed(model: CatalogueEntry, *others: CatalogueEntry, snapshot: FleetSnapshot) -> Any:
    return place(model, snapshot, catalogue=catalogue(model, *others))


def taken(load: Load) -> dict[str, int]:
    return {stage.device: stage.memory_bytes for stage in load.stages}


def test_uneven_cards_of_one_neuron_hold_it_together() -> None:
    snapshot = fleet(neuron("a", card(0, free=24)), neuron("box", *MIXED))
    load = loaded(placed(large(), snapshot=snapshot))
    assert (load.neuron, load.devices, load.evict) == (
        "box",
        ("cuda:0", "cuda:1", "cuda:2"),
        (),
    )
    bounds = [stage.layers for stage in load.stages]
    assert bounds[0][0] == 0 and bounds[-1][1] == 48
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    free = {device_name(one): one.free_memory_bytes for one in MIXED}
    assert all(10**9 < taken(load)[name] <= free[name] for name in free)
    assert load.predicted_tokens_per_s is not None and load.predicted_tokens_per_s > 1
    after = with_load(snapshot, load, large()).neuron("box")
    assert after is not None
    assert [one.free_memory_bytes for one in after.devices] == [
        free[name] - taken(load)[name] for name in free
    ]


def test_what_one_device_could_hold_is_not_divided() -> None:
    wide = card(0, free=2, total=48)
    idle, used = replica("old", gib=46), busy("old", gib=46, status_age_s=1.0)
    old = entry("old", 46)
    for holder, decides in ((idle, Load), (used, Wait)):
        snapshot = fleet(neuron("a", wide, holds=(holder,)), neuron("box", *MIXED))
        decision = placed(large(), old, snapshot=snapshot)
        assert isinstance(decision, decides) and decision.neuron == "a"
        assert not getattr(decision, "stages", ())
    snapshot = fleet(neuron("a", processor(free=60)), neuron("box", *MIXED))
    assert loaded(placed(large(), snapshot=snapshot)).devices == ("cpu",)


def test_a_card_and_the_processors_hold_what_neither_does() -> None:
    snapshot = fleet(neuron("box", card(0, free=24), processor(free=24, total=32)))
    load = loaded(placed(large(), snapshot=snapshot))
    assert load.devices == ("cuda:0", "cpu")
    for changes in ({"device": "cuda"}, {"min_device_vram_mb": 1000}):
        assert refused(placed(large(**changes), snapshot=snapshot)).code == "exceeds_device"


def test_it_stays_where_it_is_pinned_and_on_cards_of_the_least_size() -> None:
    boxes = fleet(neuron("box", *MIXED), neuron("other", *MIXED))
    assert loaded(placed(large(pinned_on=("other",)), snapshot=boxes)).neuron == "other"
    box = fleet(neuron("box", *MIXED, card(3, free=20)))
    load = loaded(placed(large(min_device_vram_mb=20_000), snapshot=box))
    assert load.devices == ("cuda:0", "cuda:3")


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
    decision = refused(placed(large(needs_gib=36, **changes), snapshot=fleet(neuron("b", *MIXED))))
    assert decision.code == "exceeds_device"
    assert decision.suggestion.endswith(f"It is not divided over devices: {why}.")


def test_what_is_too_large_even_so_is_refused_with_the_numbers() -> None:
    two_hosts = fleet(neuron("a", card(0, free=24)), neuron("b", card(0, free=24)))
    for snapshot in (fleet(neuron("box", *MIXED)), two_hosts):
        decision = refused(placed(large(60), snapshot=snapshot))
        assert (decision.code, decision.retry_after_s) == ("exceeds_device", None)
        assert "its 48 layers need 60.0 GB" in decision.message
        assert "are missing: cuda:0 of" in decision.message


def test_idle_models_leave_for_it_on_each_of_its_devices() -> None:
    cards = [card(0, free=2), card(1, free=4), card(2, free=4)]
    old, small = entry("old", 20), entry("small", 18)
    holds = (replica("old", gib=20), replica("small", gib=18, devices=("cuda:1",)))
    snapshot = fleet(neuron("box", *cards, holds=holds))
    load = loaded(placed(large(), old, small, snapshot=snapshot))
    assert (load.devices, load.evict) == (("cuda:0", "cuda:1"), ("old", "small"))
    kept = entry("small", 18, pinned=True)
    decision = refused(placed(large(), old, kept, snapshot=snapshot))
    assert decision.code == "not_enough_memory" and decision.retry_after_s == 30
    assert "fits no device, and is divided over box cuda:0 + cuda:1" in decision.message


def test_a_divided_replica_frees_what_it_holds_of_each_device() -> None:
    memory = [
        DeviceMemory(device=name, actual_bytes=gib * GIB, process_bytes=0)
        for name, gib in (("cuda:0", 20), ("cuda:1", 4))
    ]
    report = load_report(actual_bytes=24 * GIB, kv_bytes=0, stage_memory=memory)
    held = replica("old", gib=24, devices=("cuda:0", "cuda:1"), report=report)
    cards = [card(0, free=4), card(1, free=8, total=16)]
    old = entry("old", spread="host", costs=dense(24))
    snapshot = fleet(neuron("box", *cards, holds=(held,)))
    new = entry("new", 23)
    load = loaded(place(new, snapshot, catalogue=catalogue(new, old)))
    assert (load.devices, load.evict) == (("cuda:0",), ("old",))
    alike = with_load(snapshot, load, new).neuron("box")
    assert alike is not None
    assert [one.free_memory_bytes // GIB for one in alike.devices] == [1, 12]


def test_models_in_use_keep_their_time_slice_and_each_device_is_promised() -> None:
    cards = [card(0, free=2), card(1, free=24)]
    used = busy("old", on="box", gib=22, status_age_s=600.0)
    offered = catalogue(large(), entry("old", 22))
    snapshot = fleet(neuron("box", *cards, holds=(used,)))
    decision = place(large(), snapshot, catalogue=offered)
    assert isinstance(decision, Wait) and decision.needs_time_slice
    waiting = Observed(waiting={"large": Waiting(num_requests=1, oldest_s=9.0)})
    plan = reconcile(offered, snapshot, jobs=Jobs(), observed=waiting, time_slices=())
    (time_slice,) = plan.time_slices
    assert time_slice.devices == ("cuda:0", "cuda:1") and time_slice.evicted == ("old",)
    assert decode_time_slices(encode_time_slices(plan.time_slices)) == plan.time_slices
    assert 15 * GIB < sum(map(time_slice.promised_on, time_slice.devices)) < 40 * GIB
    assert time_slice.promised_on("cuda:0") != time_slice.promised_on("cuda:1")
    beside = place(entry("other", 20), fleet(*snapshot.neurons, time_slices=plan.time_slices))
    assert isinstance(beside, Wait) and beside.needs_time_slice
    assert place(
        entry("other", 11), fleet(*snapshot.neurons, time_slices=plan.time_slices)
    ) == Load(neuron="box", model="other", devices=("cuda:1",))


def failed(code: str, *devices: str, **changes: Any) -> ReplicaView:
    failure = LoadFailure(code=code, message="no room", needed_bytes=36 * GIB)
    return replica(
        "large", FAILED, on="box", devices=devices, failure=failure, memory_bytes=None, **changes
    )


@each_case("code", ["does_not_fit", "exceeds_device"])
def test_a_device_that_was_too_small_for_all_of_it_does_not_count(code: str) -> None:
    whole = failed(code, "cuda:0", status_age_s=0.0, num_failed_loads=3)
    load = loaded(placed(large(), snapshot=fleet(neuron("box", *MIXED, holds=(whole,)))))
    assert len(load.stages) == 3
    parts = failed(code, "cuda:0", "cuda:1", status_age_s=0.0, num_failed_loads=3)
    decision = refused(placed(large(), snapshot=fleet(neuron("box", *MIXED, holds=(parts,)))))
    assert decision.code == ("load_failed" if code == "does_not_fit" else "not_enough_memory")


def test_an_estimate_larger_than_any_device_is_checked_by_a_load() -> None:
    """Its neuron then reports what the layers take."""
    unknown = entry("large", vram_mb=36_000)
    boxes = fleet(neuron("a", card(0, free=30, total=30)), neuron("box", *MIXED))
    load = loaded(place(unknown, boxes))
    assert (load.neuron, load.devices, load.stages) == ("box", ("cuda:0",), ())
    kept_whole = entry("large", vram_mb=36_000, spread="device")
    assert refused(place(kept_whole, boxes)).code == "exceeds_device"


def test_a_load_by_hand_divides_it_too() -> None:
    box = neuron("box", *MIXED)
    assert len(loaded(place_on(large(), box, fleet(box))).stages) == 3
    assert is_large_enough(Needs(large()), "box", MIXED)
    assert not is_large_enough(Needs(large(60, needs_gib=60)), "box", MIXED)


def test_a_promise_to_another_model_is_kept() -> None:
    cards = (card(0, free=24), card(1, free=24))
    time_slice = TimeSlice(model="other", neuron="box", devices=("cuda:1",), device_bytes=20 * GIB)
    boxes = fleet(neuron("box", *cards), time_slices=(time_slice,))
    decision = placed(large(), snapshot=boxes)
    assert isinstance(decision, Wait) and decision.needs_time_slice
