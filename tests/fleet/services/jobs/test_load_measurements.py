"""What loads took is kept, reaches the next load, and is forgotten when it would mislead."""

from __future__ import annotations

import msgspec
import pytest

from fleet import selectors, services
from fleet.live.measurements import MeasuredLoad
from fleet.models import CatalogueModel, LoadJob, LoadMeasurement, Neuron
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.load import EarlierLoads, LoadSpec, PrefillSpeed
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import StageReport
from metering.actor import COMMAND
from tests.cases import each_case

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3
MEASURED = PrefillSpeed(token_s=0.001, growth_s=1e-6, window_tokens=4096)
TOOK = {
    "kv_bytes": GIB,
    "num_kv_blocks": 64,
    "kv_block_tokens": 16,
    "actual_bytes": 4 * GIB,
    "estimated_bytes": 5 * GIB,
    "process_bytes": GIB // 4,
    "memory_correction_bytes": -GIB,
    "prefill_speed": MEASURED,
}


@pytest.fixture
def loaded(model, build, sent):
    """Loads it on a neuron; ``changes`` are of the report."""

    def loaded(neuron: str = "beast", **changes) -> ReplicaState:
        services.heartbeat_record(heartbeat=build.heartbeat(neuron))
        job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name=neuron)
        report = build.report(**TOOK | changes)
        state = build.replica(job_id=str(job.pk), report=report)
        services.heartbeat_record(heartbeat=build.heartbeat(neuron, replicas=[state]))
        return state

    return loaded


def measured_loads() -> tuple[MeasuredLoad, ...]:
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    return entry.measured_loads


def test_a_load_leaves_what_it_took_to_the_next_one(loaded, sent) -> None:
    stage = StageReport(device="cpu", layers=(0, 1), execution="", estimated_bytes=1, kv_bytes=1)
    loaded(stages=[stage])
    loaded(actual_bytes=0)
    assert measured_loads() == (), "parts and engines that do not measure leave nothing"
    loaded()
    assert measured_loads() == (
        MeasuredLoad(
            neuron="beast",
            device_kind="cpu",
            load_bytes=3 * GIB,
            process_bytes=GIB // 4,
            kv_token_bytes=GIB // 1024,
            memory_correction_bytes=-GIB,
            load_s=1.5,
            prefill_speed=None,
            context_tokens=1024,
            capabilities=(),
        ),
    )
    services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    _, (spec,), _ = sent.tasks[-1]
    assert msgspec.convert(spec, LoadSpec).earlier_loads == EarlierLoads(
        device_kind="cpu",
        needed_bytes=7 * GIB // 2,  # with the process, and 256 tokens of keys and values
        memory_correction_bytes=-GIB,
    )
    LoadJob.objects.all().delete()
    loaded(adapter_bytes=GIB)
    assert measured_loads()[0].load_bytes == 2 * GIB, "without the adapters' room"


@pytest.fixture
def too_large(model, build, sent):
    """A load that did not fit on beast, for want of so many bytes on each of its devices."""

    def too_large(needed_bytes: int, *devices: str) -> None:
        services.heartbeat_record(heartbeat=build.heartbeat())
        job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
        failure = LoadFailure(code="does_not_fit", message="no", needed_bytes=needed_bytes)
        state = build.replica(
            job_id=str(job.pk),
            status=ReplicaStatus.FAILED,
            failure=failure,
            devices=list(devices) or ["cpu"],
        )
        services.heartbeat_record(heartbeat=build.heartbeat(replicas=[state]))

    return too_large


def test_a_load_that_did_not_fit_leaves_what_it_needs_and_a_load_is_worth_more(
    too_large, loaded
) -> None:
    too_large(9 * GIB, "cuda:0", "cuda:1")
    entry = selectors.catalogue_find("tiny")
    assert entry is not None
    assert entry.needed_memory_bytes("beast", "cuda") == 18 * GIB, "on all its devices"
    LoadMeasurement.objects.all().delete()
    for needed_gib in (9, 11, 10):
        too_large(needed_gib * GIB)
    assert [measured.load_bytes for measured in measured_loads()] == [11 * GIB]
    loaded()
    too_large(12 * GIB)
    assert [measured.load_bytes for measured in measured_loads()] == [3 * GIB]


@each_case(
    "field", ["source", "file", "revision", "dtype", "quantization", "kv_dtype", "tensor_parallel"]
)
def test_other_files_or_another_form_are_another_load(loaded, field: str) -> None:
    LoadJob.objects.all().delete()
    loaded()
    model = CatalogueModel.objects.get()
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["description"])
    assert len(measured_loads()) == 1
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=[field])
    assert measured_loads() == ()


def speaks(build, state: ReplicaState, speed: PrefillSpeed) -> None:
    timed = msgspec.structs.replace(state, stats=build.stats(prefill_speed=speed))
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[timed]))


def test_the_average_of_requests_is_kept_once_it_is_news(loaded, build) -> None:
    state = loaded()
    for factor, kept in ((1, None), (1.09, None), (1.5, 1.5), (1.45, 1.5), (1, 1)):
        speaks(build, state, MEASURED.slowed(factor))
        speed = None if kept is None else MEASURED.slowed(kept)
        assert measured_loads()[0].prefill_speed == speed, factor
    LoadJob.objects.all().delete()
    loaded(device="cuda:0")
    (load,) = measured_loads()
    assert (load.device_kind, load.prefill_speed) == ("cuda", None), "another device's is another"


def test_the_last_load_on_each_neuron_counts_and_goes_with_its_model_and_neuron(
    loaded, build
) -> None:
    loaded("a")
    loaded("b", actual_bytes=3 * GIB)
    loaded("a", actual_bytes=6 * GIB)
    found = [(load.neuron, load.load_bytes) for load in measured_loads()]
    assert found == [("a", 5 * GIB), ("b", 2 * GIB)]
    Neuron.objects.get(name="a").delete()
    selectors.catalogue_cache_clear()
    assert [load.neuron for load in measured_loads()] == ["b"]
    # A replica of another job or model leaves nothing.
    LoadMeasurement.objects.all().delete()
    selectors.catalogue_cache_clear()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="b")
    for values in ({"job_id": "before"}, {"job_id": "x", "spec_digest": job.spec_digest}):
        other = build.replica(report=build.report(**TOOK), **values)
        services.heartbeat_record(heartbeat=build.heartbeat("b", replicas=[other]))
    job.refresh_from_db()
    assert job.status == "succeeded" and measured_loads() == ()
    speaks(build, build.replica(model="stranger", report=build.report(**TOOK)), MEASURED.slowed(2))
    assert not LoadMeasurement.objects.exists()
    loaded("b")
    services.catalogue_model_delete(actor=COMMAND, model=CatalogueModel.objects.get())
    assert not LoadMeasurement.objects.exists()
