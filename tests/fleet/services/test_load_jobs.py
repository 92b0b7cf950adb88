"""Load jobs and unloads from start to end; what loads took reaches the next load."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import errors, selectors, services
from fleet.catalogue.entry import MeasuredLoad
from fleet.lifecycles import LoadJobStatus
from fleet.live.reports import load_orders
from fleet.live.snapshot import FleetSnapshot
from fleet.models import CatalogueModel, LoadJob, LoadMeasurement, Neuron, Replica
from fleet.services import job_steps, reconciling
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.load import EarlierLoads, LoadSpec, PrefillSpeed
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage, StageReport
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.cases import each_case
from tests.fleet.conftest import GIB, offer
from tests.fleet.services.conftest import HERE, fresh, later, names, observe, start, unload

pytestmark = pytest.mark.django_db(transaction=True)

LOADING = ReplicaStatus.LOADING


def audited(action: str) -> list[tuple[str, str, Any]]:
    entries = AuditEntry.objects.filter(action=action)
    return list(entries.values_list("actor", "object_id", "detail"))


def detail_of(job: LoadJob) -> dict[str, str]:
    return {"neuron": "beast", "load_job": str(job.pk)}


def test_start_sends_the_spec_to_the_neurons_queue_once(model, neuron, sent) -> None:
    job = start()
    assert (job.status, job.requested_by) == (LoadJobStatus.PENDING, str(COMMAND))
    assert start().pk == job.pk and LoadJob.objects.count() == 1
    assert audited("model.load") == [(str(COMMAND), "tiny", detail_of(job))]
    ((name, (spec,), options),) = sent.tasks
    assert (name, options["queue"]) == ("neuron.load_model", "neuron.beast")
    assert msgspec.convert(spec, LoadSpec) == LoadSpec(
        job_id=str(job.pk),
        model="tiny",
        order=load_orders().order(neuron="beast", model="tiny"),
        source="pypi:tiny",
        revision="1.0",
        max_context_tokens=512,
        max_prefill_s=300,
    )
    assert 0 < options["expires"] <= 60
    CatalogueModel.objects.update(revision="2.0")
    edited = start()
    assert (edited.pk != job.pk, fresh(job).status) == (True, LoadJobStatus.CANCELLED)
    assert sent.tasks[-1][1][0]["revision"] == "2.0"
    job_steps.job_end(job=edited, status=LoadJobStatus.CANCELLED)
    assert start().pk != edited.pk, "the last one has ended"
    assert len(sent.tasks) == 3
    sent.broker_is_away = True
    CatalogueModel.objects.update(revision="3.0")
    for failed in (unload(), start()):
        assert (failed.status, failed.failure_code) == (LoadJobStatus.FAILED, "broker_away")
        assert fresh(failed).status == LoadJobStatus.FAILED


@each_case(
    ("table", "error"),
    [(Neuron, errors.UnknownNeuronError), (CatalogueModel, errors.UnknownModelError)],
)
def test_what_is_removed_meanwhile_is_named(beat, sent, monkeypatch, table, error) -> None:
    def removing(job: LoadJob) -> None:
        table.objects.all().delete()

    CatalogueModel.objects.all().delete()
    offer()
    beat()
    monkeypatch.setattr(job_steps, "_active_beside", removing)
    with pytest.raises(error, match="beast" if table is Neuron else "tiny"):
        start()
    assert not LoadJob.objects.exists() and not sent.tasks


def test_the_database_refuses_a_job_that_contradicts_itself(job, model, neuron) -> None:
    now = timezone.now()
    for values in (
        {"status": "dancing"},
        {"status": LoadJobStatus.SUCCEEDED},
        {"finished_at": now},
        {"status": LoadJobStatus.FAILED, "finished_at": now},
        {"failure_code": "x"},
        {},  # a second one
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron, **values)


def test_what_is_pinned_or_missing_is_refused_and_an_unload_is_one_job(model, neuron, sent) -> None:
    for begin, wrong, error in (
        (services.load_job_start, {"model_name": "other"}, errors.UnknownModelError),
        (services.load_job_start, {"neuron_name": "other"}, errors.UnknownNeuronError),
        (services.unload_job_start, {"neuron_name": "other"}, errors.UnknownNeuronError),
        (services.unload_job_start, {}, errors.ReplicaNotFoundError),
    ):
        with pytest.raises(error):
            begin(**HERE | wrong)
    CatalogueModel.objects.update(enabled=False)
    with pytest.raises(errors.ModelDisabledError):
        start()
    held = {"neuron": neuron, "model_name": "tiny", "status": "ready"}
    Replica.objects.create(**held, status_since=timezone.now())
    for changes, fix in (
        ({"enabled": True, "pinned": True}, "unpin it"),
        ({"pinned": True, "pinned_on": ["beast"]}, "unpin it"),
        ({"pinned": False, "min_replicas": 1}, "least number of replicas to 0"),
    ):
        CatalogueModel.objects.update(**changes)
        with pytest.raises(errors.ModelPinnedError, match=fix):
            unload()
    assert sent.tasks == []
    CatalogueModel.objects.update(pinned_on=["beauty"])  # it would be loaded again, but not here
    job = unload()
    assert (job.kind, job.status, job.requested_by) == ("unload", "pending", str(COMMAND))
    assert unload().pk == job.pk
    assert audited("model.unload") == [(str(COMMAND), "tiny", detail_of(job))]
    ((name, arguments, options),) = sent.tasks
    assert (name, arguments, options["queue"]) == ("neuron.unload_model", ["tiny"], "neuron.beast")
    services.unload_job_start(**HERE, at_once=True)
    assert sent.tasks[-1][1] == ["tiny", True], "also where one waits for its requests"


@each_case("code", ["not_picked_up", "neuron_away", "load_lost"])
def test_a_job_fails_that_no_neuron_works_on(model, neuron, sent, build, code) -> None:
    LoadJob.objects.all().delete()
    job, limit_s = start(), 70 if code == "not_picked_up" else 15
    if code != "not_picked_up":
        for _ in range(2):  # a stage that stands still is still reported
            observe(build, job, LOADING, progress=LoadProgress(stage=LoadStage.WARMUP))
            LoadJob.objects.filter(reported_at=None).update(reported_at=later(seconds=-14))
    if code == "neuron_away":
        services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    elif code == "load_lost":
        services.heartbeat_record(heartbeat=build.heartbeat())
    assert services.load_jobs_expire(now=later(seconds=limit_s - 1)) == 0
    assert services.load_jobs_expire(now=later(seconds=limit_s + 1)) == 1
    assert fresh(job).failure_code == code
    assert services.load_jobs_expire(now=later(seconds=limit_s + 1)) == 0


def test_cancelling_unloads_and_a_restarted_neuron_has_lost_it(job, build, sent) -> None:
    ending = services.load_job_cancel(actor=COMMAND, job=job)
    assert names(sent) == [("load_model", "beast"), ("unload_model", "beast")]
    with pytest.raises(errors.JobCannotBeCancelledError, match="An unload cannot be called back"):
        services.load_job_cancel(actor=COMMAND, job=ending)
    job_steps.job_end(job=job, status=LoadJobStatus.CANCELLED)
    with pytest.raises(errors.JobCannotBeCancelledError, match="has ended"):
        services.load_job_cancel(actor=COMMAND, job=job)
    LoadJob.objects.all().delete()
    job = start()
    loading = build.replica(job_id=str(job.pk), status=LOADING)
    observe(build, job, LOADING)
    services.heartbeat_record(heartbeat=build.heartbeat(epoch="second", replicas=[loading]))
    assert fresh(job).status == LoadJobStatus.RUNNING
    services.heartbeat_record(heartbeat=build.heartbeat(epoch="third"))
    assert (fresh(job).status, fresh(job).failure_code) == ("failed", "neuron_restarted")
    assert reconciling.jobs_known().num_failures == {}


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
        job = services.load_job_start(**HERE | {"neuron_name": neuron})
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
    start()
    _, (spec,), _ = sent.tasks[-1]
    assert msgspec.convert(spec, LoadSpec).earlier_loads == EarlierLoads(
        device_kind="cpu",
        needed_bytes=7 * GIB // 2,  # with the process, and 256 tokens of keys and values
        memory_correction_bytes=-GIB,
    )
    LoadJob.objects.all().delete()
    loaded(adapter_bytes=GIB)
    assert measured_loads()[0].load_bytes == 2 * GIB, "without the adapters' room"
    # Other files or another form are another load.
    for field in ("source", "file", "revision", "dtype", "quantization", "kv_dtype"):
        for changed, num_loads in (("description", 1), (field, 0)):
            model = CatalogueModel.objects.get()
            services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=[changed])
            assert len(measured_loads()) == num_loads, field
        LoadJob.objects.all().delete()
        loaded()
    model = CatalogueModel.objects.get()
    fields = {"changed_fields": ["tensor_parallel"]}
    services.catalogue_model_update(actor=COMMAND, model=model, **fields)
    assert measured_loads() == ()


def test_a_load_that_did_not_fit_leaves_what_it_needs(loaded, build) -> None:
    def too_large(needed_gib: int, *devices: str) -> None:
        services.heartbeat_record(heartbeat=build.heartbeat())
        needed_bytes = needed_gib * GIB
        failure = LoadFailure(code="does_not_fit", message="no", needed_bytes=needed_bytes)
        values = {"failure": failure, "devices": list(devices) or ["cpu"]}
        observe(build, start(), ReplicaStatus.FAILED, **values)

    too_large(9, "cuda:0", "cuda:1")
    entry = selectors.catalogue_find("tiny")
    assert entry.needed_memory_bytes("beast", "cuda") == 18 * GIB, "on all its devices"
    LoadMeasurement.objects.all().delete()
    for needed_gib in (9, 11, 10):
        too_large(needed_gib)
    assert [measured.load_bytes for measured in measured_loads()] == [11 * GIB]
    loaded()
    too_large(12)
    assert [measured.load_bytes for measured in measured_loads()] == [3 * GIB]


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


def test_the_last_load_on_each_neuron_counts_and_goes_with_it(loaded, build) -> None:
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
