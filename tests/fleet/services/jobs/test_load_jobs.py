"""Load jobs as they are started: the sent task, and an existing job of the same kind."""

from __future__ import annotations

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import services
from fleet.errors import (
    ModelDisabledError,
    UnknownModelError,
    UnknownNeuronError,
)
from fleet.lifecycles import LoadJobStatus
from fleet.live.load_orders import load_orders
from fleet.models import CatalogueModel, LoadJob, Neuron
from fleet.services.jobs import load_jobs, steps
from inference.protocol.load import LoadSpec
from metering.actor import COMMAND
from tests.fleet.services.jobs.load_job_steps import fresh, job, model, neuron, start

__all__ = ["job", "model", "neuron"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_start_sends_the_spec_to_the_neurons_queue(model, neuron, sent) -> None:
    job = start()
    assert (job.status, job.requested_by) == (LoadJobStatus.PENDING, str(COMMAND))
    ((name, (spec,), options),) = sent.tasks
    assert name == "neuron.load_model"
    assert msgspec.convert(spec, LoadSpec) == LoadSpec(
        job_id=str(job.pk),
        model="tiny",
        order=load_orders().order(neuron="beast", model="tiny"),
        source="pypi:tiny",
        revision="1.0",
        max_context_tokens=512,
        max_prefill_s=300,
    )
    assert options["queue"] == "neuron.beast"
    assert 0 < options["expires"] <= 60


def test_start_is_idempotent(job, sent) -> None:
    assert start().pk == job.pk
    assert len(sent.tasks) == 1
    assert LoadJob.objects.count() == 1


def test_a_new_job_after_the_last_one_ended(job, sent) -> None:
    load_jobs.job_end(job=job, status=LoadJobStatus.CANCELLED)
    assert start().pk != job.pk
    assert len(sent.tasks) == 2


def test_nothing_is_sent_before_the_commit(model, neuron, sent) -> None:
    with transaction.atomic():
        start()
        assert sent.tasks == []
    assert len(sent.tasks) == 1


def test_nothing_is_sent_after_a_rollback(model, neuron, sent) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        start()
        raise RuntimeError
    assert sent.tasks == []


def test_a_broker_that_is_away_fails_the_job_with_its_reason(model, neuron, sent) -> None:
    sent.broker_is_away = True
    job = start()
    assert (job.status, job.failure_code) == (LoadJobStatus.FAILED, "broker_away")
    assert fresh(job).status == LoadJobStatus.FAILED


def test_start_refuses_what_is_not_there(model, neuron, sent) -> None:
    with pytest.raises(UnknownModelError):
        services.load_job_start(actor=COMMAND, model_name="other", neuron_name="beast")
    with pytest.raises(UnknownNeuronError):
        services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="other")
    CatalogueModel.objects.update(enabled=False)
    with pytest.raises(ModelDisabledError):
        start()
    assert sent.tasks == []


def test_the_database_holds_one_active_job_for_a_model_and_neuron(job, model, neuron) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron)


def test_a_load_of_an_edited_model_takes_the_place_of_the_one_under_way(job, model, sent) -> None:
    CatalogueModel.objects.update(revision="2.0")
    edited = start()
    assert (edited.pk != job.pk, fresh(job).status) == (True, LoadJobStatus.CANCELLED)
    assert sent.tasks[-1][1][0]["revision"] == "2.0"


def test_where_and_what_must_go_travels_with_the_load(model, neuron, sent, caplog) -> None:
    job = services.load_job_start(
        actor=COMMAND,
        model_name="tiny",
        neuron_name="beast",
        devices=("cuda:1",),
        evict=("other",),
    )
    assert (job.devices, job.evict) == (["cuda:1"], ["other"])
    assert caplog.messages == ["loading tiny evicts other from beast"]
    spec = msgspec.convert(sent.tasks[0][1][0], LoadSpec)
    assert (spec.devices, spec.evict) == (["cuda:1"], ["other"])


@pytest.mark.parametrize(
    ("device", "devices"), [("auto", []), ("cpu", ["cpu"]), ("cuda", ["cuda"])]
)
def test_the_kind_of_device_that_the_catalogue_asks_for_travels(
    model, neuron, sent, device, devices
) -> None:
    CatalogueModel.objects.update(device=device)
    start()
    assert sent.tasks[0][1][0].get("devices", []) == devices


@pytest.mark.parametrize(
    "values",
    [
        {"status": "dancing"},
        {"status": LoadJobStatus.SUCCEEDED},
        {"finished_at": timezone.now()},
        {"status": LoadJobStatus.FAILED, "finished_at": timezone.now()},
        {"failure_code": "x"},
    ],
    ids=["unknown status", "ended unfinished", "active finished", "no reason", "active failure"],
)
def test_the_database_refuses_a_job_that_contradicts_itself(model, neuron, values) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron, **values)


def test_a_neuron_that_is_removed_meanwhile_is_named(
    model, neuron, sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was always taken for another job that came first."""

    def removing(job: LoadJob) -> None:
        Neuron.objects.filter(name="beast").delete()

    monkeypatch.setattr(steps, "_active_beside", removing)
    with pytest.raises(UnknownNeuronError, match="beast"):
        start()
    assert not LoadJob.objects.exists() and not sent.tasks


def test_a_model_that_is_removed_meanwhile_is_named(
    model, neuron, sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removing(job: LoadJob) -> None:
        CatalogueModel.objects.filter(name="tiny").delete()

    monkeypatch.setattr(steps, "_active_beside", removing)
    with pytest.raises(UnknownModelError, match="tiny"):
        start()
    assert not LoadJob.objects.exists() and not sent.tasks
