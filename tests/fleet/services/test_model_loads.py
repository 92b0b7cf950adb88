"""A model that an operator loads on a named neuron, and one that does not fit on a card."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from fleet import selectors, services
from fleet.api.access import problem_of
from fleet.errors import ModelRecoveringError, NeuronAwayError, PlacementRefusedError
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from fleet.models import CatalogueModel, LoadJob, Neuron
from fleet.placement import Load, place_on
from fleet.services.job_steps import spec_of
from fleet.services.load_measurements import load_need_record
from fleet.services.model_loads import placed_load_start
from fleet.services.reconciling import jobs_known
from inference.loading.model_costs import packed, unpacked
from inference.protocol.heartbeat import DeviceInfo, ReplicaState, ReplicaStatus
from inference.protocol.keys import heartbeat_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import DeviceMemory, LoadFailure, StageReport
from metering.api.problems import problem_response
from metering.audit import COMMAND
from tests.cases import each_case
from tests.fleet.conftest import GIB, NOW_UNIX_S, change, offer
from tests.fleet.placement.fleets import card, cards, dense, mixture
from tests.fleet.services.conftest import HERE, fresh, names, observe, start
from tests.fleet.test_stage_plans import LARGE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def full(beat, build, sent):
    """beast has one card, of which ``old`` holds nearly all."""
    offer("new", vram_mb=4096)

    def full(*others: ReplicaState, cards: tuple[DeviceInfo, ...] = (), **old: Any) -> None:
        offer("old", **old)
        replica = build.replica(
            model="old",
            devices=["cuda:0"],
            memory_bytes=6 * GIB,
            stats=build.stats(),
            last_used_unix_s=NOW_UNIX_S - 60,
        )
        beat(devices=[card(free=1, total=8), *cards], replicas=[replica, *others])

    return full


def load(**named: Any) -> LoadJob:
    named = {"model_name": "new", "neuron_name": "beast"} | named
    return services.model_load_start(actor=COMMAND, **named)


def test_a_host_that_is_away_is_refused_at_once(full, redis_db, sent) -> None:
    full()
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    Neuron.objects.update(status_since=timezone.now() - timedelta(seconds=70))
    redis_db.delete(heartbeat_key("beast"))
    services.desired_states_publish()
    here = {"actor": COMMAND, "neuron_name": "beast"}
    for begin in (
        load,
        lambda: load(devices=["cuda:0"]),
        lambda: services.reload_job_start(model_name="old", **here),
        lambda: services.model_download_start(model_name="new", **here),
    ):
        with pytest.raises(NeuronAwayError, match="beast has been away for 7") as caught:
            begin()
        assert 70 <= (caught.value.retry_after_s or 0) < 80
        answer = problem_response(problem_of(caught.value), {})
        assert 70 <= int(answer["Retry-After"]) <= 80
    with pytest.raises(ModelRecoveringError, match="new can only be loaded on beast"):
        load(neuron_name=None)
    assert sent.tasks == []


def test_a_load_that_the_control_would_undo_is_refused(full, beat, build, sent) -> None:
    """It used to succeed, and what was loaded, or the other copy, was gone seconds later."""
    full()
    beat("beauty", devices=[card(free=60, total=64)])

    def refusal(model_name: str = "old") -> str:
        with pytest.raises(PlacementRefusedError) as refused:
            load(model_name=model_name, neuron_name="beauty", devices=["cuda:0"])
        assert sent.tasks == [] and not LoadJob.objects.filter(neuron__name="beauty").exists()
        return str(refused.value)

    assert "old is loaded on beast, and by its max_replicas on 1 at most" in refusal()
    offer("tied", pinned_on=("beast",))
    assert "tied may run on beast only, by its pinned_on" in refusal("tied")
    services.neuron_drain(actor=COMMAND, neuron_name="beast")
    load(model_name="old", neuron_name="beauty")
    assert len(sent.tasks) == 1, "what is to leave its neuron anyway is no other copy"


def test_a_named_device_that_is_no_card_of_its_least_size_is_refused(beat, build, sent) -> None:
    beat(devices=[build.device(), card(free=8, total=8), card(1, free=24, total=24)])
    offer("new", min_device_vram_mb=20_000)
    for device, why in (("cpu", "is no card"), ("cuda:0", "has 8,589,934,592")):
        with pytest.raises(PlacementRefusedError, match=f"by its min_device_vram_mb, .* {why}"):
            load(devices=[device])
    assert sent.tasks == []
    assert load(devices=["cuda:1"]).devices == ["cuda:1"]


@pytest.mark.parametrize("has_left", [False, True])
def test_what_leaves_moves(full, publish, beat, build, sent, monkeypatch, has_left) -> None:
    full()
    beat("beauty", devices=[card(free=7, total=8)])
    send = sent.send_task

    def send_and_leave(*args: Any, **options: Any) -> Any:
        publish(devices=[card(free=7, total=8)], replicas=[])
        return send(*args, **options)

    if has_left:
        monkeypatch.setattr(sent, "send_task", send_and_leave)
    job = load()
    assert job.note == "old makes room and moves to beauty"
    moved = LoadJob.objects.get(model_name="old")
    assert (moved.neuron.name, moved.devices, moved.evict) == ("beauty", ["cuda:0"], [])
    assert moved.note == "Moves from beast, where new needs its room"
    assert names(sent) == [("load_model", "beast"), ("load_model", "beauty")]
    assert load().pk == job.pk and LoadJob.objects.count() == 2


@pytest.mark.parametrize("is_failed", [True, False])
def test_an_idle_model_leaves_for_it(full, build, sent, is_failed: bool) -> None:
    if is_failed:  # one that failed there, for good or not, makes room when it is asked for
        failure = LoadFailure(code="bad_file", message="half a file")
        full(build.replica(model="new", status=ReplicaStatus.FAILED, failure=failure))
    else:
        full(vram_mb=3300, cards=(card(1, free=3500 / 1024, total=5),))
    job = load()
    assert (job.devices, job.evict) == (["cuda:0"], ["old"])
    assert sent.tasks[0][1][0]["evict"] == ["old"]
    if not is_failed:  # its load is the control's: a neuron has a model once
        assert job.note == "old makes room and moves to cuda:1 of beast"
        assert jobs_known().to_restore == {"beast": ("old",)}
        assert jobs_known().evicting == {("old", "beast")}
        assert LoadJob.objects.count() == 1 == len(sent.tasks)


COSTS = dense(24, num_layers=8)
TOO_LARGE = LoadFailure(
    code="does_not_fit", message="too large", needed_bytes=26 * GIB, costs=packed(COSTS)
)


def test_costs_that_no_model_has_are_not_recorded(build, model, neuron, sent) -> None:
    wrong: list[dict[str, Any]] = [{"layers": []}, {"layers": [1]}, {"kinds": []}]
    for changes in (*wrong, {"hidden_size": -1}, {"active_share": 0.0}):
        costs = msgspec.structs.replace(packed(COSTS), **changes)
        failure = msgspec.structs.replace(TOO_LARGE, costs=costs)
        observe(build, start(), ReplicaStatus.FAILED, failure=failure, devices=["cuda:0"])
        assert CatalogueModel.objects.get().layer_costs is None, changes


def test_the_load_after_one_that_did_not_fit_is_divided(build, job, sent, beat) -> None:
    observe(build, job, ReplicaStatus.FAILED, failure=TOO_LARGE, devices=["cuda:0"])
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.costs == COSTS
    assert unpacked(packed(mixture(60))) == mixture(60)
    heartbeat = build.heartbeat(devices=cards(16, 16))
    services.heartbeat_record(heartbeat=heartbeat)
    snapshot = build_snapshot([heartbeat])
    load = place_on(entry, snapshot.neurons[0], snapshot)
    assert isinstance(load, Load)
    placed = fresh(placed_load_start(actor=COMMAND, load=load))
    spec, devices = spec_of(placed), ["cuda:0", "cuda:1"]
    assert [stage.device for stage in spec.stages] == spec.devices == devices
    assert spec.stages == list(load.stages)
    assert spec.predicted_tokens_per_s == load.predicted_tokens_per_s
    assert msgspec.convert(sent.tasks[-1][1][0], LoadSpec).stages == spec.stages
    assert placed.spec_digest == job.spec_digest, "where a model lies does not make it another"
    lacked = msgspec.structs.replace(TOO_LARGE, costs=None, needed_bytes=90 * GIB)
    observe(build, placed, ReplicaStatus.FAILED, failure=lacked, devices=devices)
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.measured_loads[0].load_bytes == 26 * GIB, "a stage's need"
    bounds = [stage.layers for stage in spec.stages]
    values: dict[str, Any] = {"execution": "", "estimated_bytes": GIB, "kv_bytes": 1}
    report = build.report(
        stages=[
            StageReport(device=name, layers=layers, **values)
            for name, layers in zip(devices, bounds, strict=True)
        ],
        stage_memory=[
            DeviceMemory(device=name, actual_bytes=GIB, process_bytes=1) for name in devices
        ],
        actual_bytes=2 * GIB,
        predicted_tokens_per_s=7.0,
    )
    again = fresh(placed_load_start(actor=COMMAND, load=load))
    replica = build.replica(job_id=str(again.pk), report=report, devices=devices)
    beat(devices=cards(16, 16), replicas=[replica])
    assert fresh(again).status == "succeeded"
    reload = services.reload_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    assert [stage.layers for stage in spec_of(reload).stages] == bounds
    assert spec_of(reload).predicted_tokens_per_s == 7.0


ON_ONE = Load(neuron="beast", model="tiny", devices=("cuda:0",), evict=())


@each_case(
    ("gib", "may_divide", "is_divided"),
    [
        ((16, 16), True, True),
        ((16,), True, False),
        ((16, 2), True, False),
        ((16, 16), False, False),
    ],
)
def test_a_load_too_large_is_divided(build, beat, model, sent, gib, may_divide, is_divided) -> None:
    def reported(**values: Any) -> LoadJob:
        replica = build.replica(**{"job_id": str(placed.pk), "devices": ["cuda:0"]} | values)
        beat(devices=cards(*gib), replicas=[replica])
        return fresh(placed)

    LoadJob.objects.all().delete()
    sent.tasks.clear()
    beat(devices=cards(*gib))
    placed = (
        placed_load_start(actor=COMMAND, load=ON_ONE)
        if may_divide
        else services.model_load_start(**HERE, devices=["cuda:0"])
    )
    both = {"devices": ["cuda:0", "cuda:1"]}
    for _ in range(2):
        job = reported(status=ReplicaStatus.FAILED, failure=TOO_LARGE)
        assert job.is_active == is_divided
    assert selectors.catalogue_find("tiny").costs == COSTS
    specs = [msgspec.convert(arguments[0], LoadSpec) for _, arguments, _ in sent.tasks]
    assert [len(spec.stages) for spec in specs] == ([0, 2] if is_divided else [0])
    assert {spec.job_id for spec in specs} == {str(placed.pk)}
    if is_divided:
        assert job.devices == both["devices"] and "divided" in job.note
        assert job.predicted_tokens_per_s > 0
    lacked = msgspec.structs.replace(TOO_LARGE, costs=None)
    ended = reported(status=ReplicaStatus.FAILED, failure=lacked, **both)
    assert ended.status == "failed", "it lacks memory divided"
    if is_divided:
        placed = placed_load_start(actor=COMMAND, load=replace(ON_ONE, devices=("cuda:1",)))
        assert reported(devices=["cuda:1"]).status == "succeeded"
    for quantization in ("q4", "auto"):
        changed = change(CatalogueModel.objects.get(), quantization=quantization)
        assert changed.layer_costs is None, "other files have other layers"


@pytest.mark.parametrize("neuron_name", [None, "beast"])
def test_a_load_by_hand_weighs_its_model(build, beat, sent, tmp_path, neuron_name) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    (tmp_path / "model.safetensors").touch()
    large = offer("large", source=f"path:{tmp_path}", device="cuda")
    beat(devices=cards(16, 12))
    host = Neuron.objects.get()
    load_need_record(model=large, neuron=host, device="cuda:0", needed_bytes=20 * GIB)
    made = load(model_name="large", neuron_name=neuron_name)
    assert [stage.device for stage in spec_of(made).stages] == ["cuda:0", "cuda:1"]
    assert CatalogueModel.objects.get(name="large").layer_costs is not None
