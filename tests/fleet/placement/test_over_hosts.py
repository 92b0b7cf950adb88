"""A model that no host could hold lies on several, where it may; no other one does."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, HeldStageView, NeuronView
from fleet.placement import Load, Reject, Wait, place, place_on
from fleet.placement.decisions import Jobs, Observed, Unload
from fleet.placement.expected import with_load
from fleet.placement.reconcile import reconcile
from inference.protocol.heartbeat import HeldStage, HeldStageStatus, device_name
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import DeviceMemory, LoadReport, StageReport
from tests.fleet.placement.fleets import (
    FAILED,
    busy,
    card,
    catalogue,
    entry,
    fleet,
    neuron,
    processor,
    replica,
)
from tests.fleet.placement.stages.stage_fleets import dense

GIB = 1024**3
NOTHING_KNOWN = Jobs()
NOTHING_SEEN = Observed()


def large(gb: float = 40, **changes: Any) -> CatalogueEntry:
    return entry("large", **{"costs": dense(gb), "spread": "fleet"} | changes)


def host(name: str, *devices: Any, **changes: Any) -> NeuronView:
    return neuron(name, *devices, **{"stage_host": f"{name}.lan"} | changes)


def placed(model: CatalogueEntry, snapshot: FleetSnapshot, **options: Any) -> Any:
    return place(model, snapshot, catalogue=catalogue(model), **options)


def loaded(decision: Any) -> Load:
    assert isinstance(decision, Load), decision
    return decision


def refused(decision: Any) -> Reject:
    assert isinstance(decision, Reject), decision
    return decision


def held(on: str, status: str, age_s: float = 1.0, **changes: Any) -> HeldStageView:
    values: dict[str, Any] = {
        "model": "large",
        "job_id": "job",
        "order": "",
        "engine_neuron": "a",
        "index": 1,
        "num_stages": 2,
        "layers": (30, 48),
        "device": "cuda:0",
        "status": HeldStageStatus(status),
        "since_unix_s": 0.0,
    }
    return HeldStageView(neuron=on, stage=HeldStage(**values | changes), status_age_s=age_s)


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
    for spread in ("host", "device"):
        assert refused(placed(large(spread=spread), fleet(*TWO))).code == "exceeds_device"


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


def test_a_named_neuron_holds_it_alone_or_not() -> None:
    snapshot = fleet(*TWO)
    assert isinstance(place_on(large(), snapshot.neurons[0], snapshot), Reject)


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
        StageReport(device="cuda:0", layers=(0, 30), execution="", estimated_bytes=1, kv_bytes=1),
        StageReport(
            device="cuda:0",
            layers=(30, 48),
            execution="",
            estimated_bytes=1,
            kv_bytes=1,
            neuron="b",
        ),
    ]
    memory = [DeviceMemory(device="cuda:0", actual_bytes=22 * GIB, process_bytes=0)]
    report = LoadReport(
        architecture="llama", device="", dtype="", num_parameters=1, weight_bytes=1, kv_bytes=1,
        num_kv_blocks=1, kv_block_tokens=1, context_tokens=1, vocab_size=1, quantization="",
        compiled="", load_seconds=1.0, tokenizer_dir="", stages=stages, stage_memory=memory,
    )  # fmt: skip
    there = replica("large", on="a", gib=22, report=report)
    return fleet(
        host("a", card(0, free=2), holds=(there,)),
        host("b", card(0, free=6), is_draining=True, held_stages=(held("b", "ready"),)),
    )


def test_a_stage_on_a_draining_neuron_leaves_with_its_model() -> None:
    model = large()
    plan = reconcile(catalogue(model), spanning(), jobs=NOTHING_KNOWN, observed=NOTHING_SEEN)
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


sizes = st.floats(min_value=1, max_value=24)


@settings(max_examples=60, deadline=None)
@given(
    hosts=st.lists(st.lists(sizes, min_size=1, max_size=2), min_size=1, max_size=4),
    gb=st.floats(min_value=4, max_value=70),
    lends=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_no_device_is_given_more_than_it_has(
    hosts: list[list[float]], gb: float, lends: list[bool]
) -> None:
    views = [
        host(f"n{at}", *(card(index, free=size) for index, size in enumerate(devices)),
             stage_host="lan" if lends[at] else "")
        for at, devices in enumerate(hosts)
    ]  # fmt: skip
    decision = placed(large(gb), fleet(*views))
    if not isinstance(decision, Load) or not decision.stages:
        return
    free = {
        (view.name, device_name(one)): one.free_memory_bytes
        for view in views
        for one in view.devices
    }
    last = 0
    for stage in decision.stages:
        where = stage.neuron or decision.neuron
        free[where, stage.device] -= stage.memory_bytes
        assert free[where, stage.device] >= 0
        assert stage.layers[0] == last < stage.layers[1]
        last = stage.layers[1]
    assert len(decision.stages) > 1 and last == 48 and not decision.stages[0].neuron
    far = {stage.neuron for stage in decision.stages} - {""}
    if far:
        lending = {view.name for view in views if view.stage_host}
        assert {decision.neuron, *far} <= lending and decision.neuron not in far
        alone = [place_on(large(gb), view, fleet(view)) for view in views]
        assert all(isinstance(one, Reject) for one in alone), "no host could hold it"
