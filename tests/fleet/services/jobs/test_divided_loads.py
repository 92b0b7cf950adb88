"""Tests the way from a load that did not fit on a card to one that is divided over several, over
the database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleet import selectors, services
from fleet.live.snapshot import build_snapshot
from fleet.models import CatalogueModel, LoadJob, Neuron
from fleet.placement import Load, place_on
from fleet.services.jobs.load_measurements import load_need_record
from fleet.services.jobs.model_loads import placed_load_start
from fleet.services.jobs.steps import spec_of
from inference.loading.costs.model_costs import packed, unpacked
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import DeviceMemory, StageReport
from metering.actor import COMMAND
from tests.fleet.overview.test_plans import LARGE
from tests.fleet.placement.fleets import dense, mixture
from tests.fleet.services.jobs.conftest import HERE, fresh, observe, start

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3
COSTS = dense(24, num_layers=8)
TOO_LARGE = LoadFailure(
    code="does_not_fit", message="too large", needed_bytes=26 * GIB, costs=packed(COSTS)
)


def cards(build, *gib: int):
    return [
        build.device(
            kind="cuda", index=index, total_memory_bytes=size * GIB, free_memory_bytes=size * GIB
        )
        for index, size in enumerate(gib)
    ]


def divided(build) -> Load:
    heartbeat = build.heartbeat(devices=cards(build, 16, 16))
    services.heartbeat_record(heartbeat=heartbeat)
    snapshot = build_snapshot([heartbeat])
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    load = place_on(entry, snapshot.neurons[0], snapshot)
    assert isinstance(load, Load)
    return load


def test_costs_that_no_model_has_are_not_recorded(build, model, neuron, sent) -> None:
    cases: list[dict[str, Any]] = [{"layers": []}, {"layers": [1]}, {"kinds": []}]
    for changes in (*cases, {"hidden_size": -1}, {"active_share": 0.0}):
        costs = msgspec.structs.replace(packed(COSTS), **changes)
        failure = msgspec.structs.replace(TOO_LARGE, costs=costs)
        observe(build, start(), ReplicaStatus.FAILED, failure=failure, devices=["cuda:0"])
        assert CatalogueModel.objects.get().layer_costs is None, changes


def test_the_next_load_after_one_that_did_not_fit_is_divided(build, job, sent) -> None:
    observe(build, job, ReplicaStatus.FAILED, failure=TOO_LARGE, devices=["cuda:0"])
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.costs == COSTS
    assert unpacked(packed(mixture(60))) == mixture(60)
    load = divided(build)
    placed = fresh(placed_load_start(actor=COMMAND, load=load))
    spec = spec_of(placed)
    assert [stage.device for stage in spec.stages] == ["cuda:0", "cuda:1"]
    assert spec.stages == list(load.stages) and spec.devices == ["cuda:0", "cuda:1"]
    assert spec.predicted_tokens_per_s == load.predicted_tokens_per_s
    assert msgspec.convert(sent.tasks[-1][1][0], LoadSpec).stages == spec.stages
    assert placed.spec_digest == job.spec_digest, "where a model lies does not make it another"
    lacked = msgspec.structs.replace(TOO_LARGE, costs=None, needed_bytes=90 * GIB)
    observe(build, placed, ReplicaStatus.FAILED, failure=lacked, devices=["cuda:0", "cuda:1"])
    entry = selectors.catalogue_find("tiny")
    assert entry is not None and entry.measured_loads[0].load_bytes == 26 * GIB, "a stage's need"


def too_large(build, beat, placed: LoadJob, *gib: int) -> LoadJob:
    """The neuron, with cards of these sizes, reports it of the job."""
    state = build.replica(
        job_id=str(placed.pk), status=ReplicaStatus.FAILED, failure=TOO_LARGE, devices=["cuda:0"]
    )
    beat(devices=cards(build, *gib), replicas=[state])
    return fresh(placed)


ON_ONE = Load(neuron="beast", model="tiny", devices=("cuda:0",), evict=())


def test_a_load_that_turns_out_too_large_continues_divided(build, beat, model, sent) -> None:
    """The same job is sent once more; it is not failed by what the neuron reports until then."""
    beat(devices=cards(build, 16, 16))
    placed = placed_load_start(actor=COMMAND, load=ON_ONE)
    for _ in range(2):
        divided_job = too_large(build, beat, placed, 16, 16)
        assert divided_job.is_active and divided_job.devices == ["cuda:0", "cuda:1"]
        assert "divided" in divided_job.note and divided_job.predicted_tokens_per_s > 0
    specs = [msgspec.convert(arguments[0], LoadSpec) for _, arguments, _ in sent.tasks]
    assert [len(spec.stages) for spec in specs] == [0, 2]
    assert len({spec.job_id for spec in specs}) == 1
    assert selectors.catalogue_find("tiny").costs == COSTS
    ready = build.replica(
        job_id=str(placed.pk), status=ReplicaStatus.READY, devices=["cuda:0", "cuda:1"]
    )
    beat(devices=cards(build, 16, 16), replicas=[ready])
    assert fresh(placed).status == "succeeded"


@pytest.mark.parametrize(
    ("gib", "may_divide", "is_divided"),
    [
        ((16, 16), True, True),
        ((16,), True, False),
        ((16, 2), True, False),
        ((16, 16), False, False),
    ],
)
def test_one_that_its_neuron_cannot_hold_divided_has_failed(
    build, beat, model, sent, gib: tuple[int, ...], may_divide: bool, is_divided: bool
) -> None:
    """Nor is one divided whose device was named; the next load is."""
    beat(devices=cards(build, *gib))
    placed = (
        placed_load_start(actor=COMMAND, load=ON_ONE)
        if may_divide
        else services.model_load_start(**HERE, devices=["cuda:0"])
    )
    assert too_large(build, beat, placed, *gib).is_active == is_divided
    assert len(sent.tasks) == 1 + is_divided
    assert selectors.catalogue_find("tiny").costs == COSTS
    lacked = msgspec.structs.replace(TOO_LARGE, costs=None)
    state = {"status": ReplicaStatus.FAILED, "failure": lacked, "devices": ["cuda:0", "cuda:1"]}
    beat(devices=cards(build, *gib), replicas=[build.replica(job_id=str(placed.pk), **state)])
    assert fresh(placed).status == "failed", "it lacks memory divided"
    changed = CatalogueModel.objects.get()
    changed.quantization = "q4"
    services.catalogue_model_update(actor=COMMAND, model=changed, changed_fields=["quantization"])
    assert CatalogueModel.objects.get().layer_costs is None, "other files have other layers"


def test_a_reload_in_place_divides_it_alike(build, job, sent, beat) -> None:
    observe(build, job, ReplicaStatus.FAILED, failure=TOO_LARGE, devices=["cuda:0"])
    placed = placed_load_start(actor=COMMAND, load=divided(build))
    bounds = [stage.layers for stage in spec_of(placed).stages]
    devices = ["cuda:0", "cuda:1"]
    stages = [
        StageReport(device=name, layers=layers, execution="", estimated_bytes=GIB, kv_bytes=1)
        for name, layers in zip(devices, bounds, strict=True)
    ]
    memory = [DeviceMemory(device=name, actual_bytes=GIB, process_bytes=1) for name in devices]
    report = build.report(
        stages=stages, stage_memory=memory, actual_bytes=2 * GIB, predicted_tokens_per_s=7.0
    )
    state = build.replica(
        job_id=str(placed.pk), status=ReplicaStatus.READY, report=report, devices=devices
    )
    beat(devices=cards(build, 16, 16), replicas=[state])
    assert fresh(placed).status == "succeeded"
    again = services.reload_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    assert [stage.layers for stage in spec_of(again).stages] == bounds
    assert spec_of(again).predicted_tokens_per_s == 7.0
    assert LoadJob.objects.count() == 3


@pytest.mark.parametrize("neuron_name", [None, "beast"])
def test_a_load_by_hand_weighs_what_no_device_holds(
    build, beat, sent, tmp_path: Path, neuron_name: str | None
) -> None:
    """Earlier loads have shown that no card holds it, and not yet what its layers take."""
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    (tmp_path / "model.safetensors").touch()
    large = services.catalogue_model_create(
        actor=COMMAND, name="large", source=f"path:{tmp_path}", device="cuda"
    )
    beat(devices=cards(build, 16, 12))
    host = Neuron.objects.get()
    load_need_record(model=large, neuron=host, device="cuda:0", needed_bytes=20 * GIB)
    made = services.model_load_start(actor=COMMAND, model_name="large", neuron_name=neuron_name)
    assert [stage.device for stage in spec_of(made).stages] == ["cuda:0", "cuda:1"]
    assert CatalogueModel.objects.get(name="large").layer_costs is not None
