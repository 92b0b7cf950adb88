"""A load job of one model on one neuron, and the neuron's heartbeats about it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from fleet import services
from fleet.models import CatalogueModel, LoadJob, Neuron
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND


@pytest.fixture
def model() -> CatalogueModel:
    return services.catalogue_model_create(
        actor=COMMAND, name="tiny", source="pypi:tiny", revision="1.0", max_context_tokens=512
    )


@pytest.fixture
def neuron(build) -> Neuron:
    services.heartbeat_record(heartbeat=build.heartbeat())
    return Neuron.objects.get()


@pytest.fixture
def job(model, neuron, sent) -> LoadJob:
    return start()


def start() -> LoadJob:
    return services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")


def unload() -> LoadJob:
    return services.unload_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")


def fresh(job: LoadJob) -> LoadJob:
    return LoadJob.objects.get(pk=job.pk)


def status_of(job: LoadJob) -> str:
    return fresh(job).status


def observe(build, job: LoadJob, status: ReplicaStatus, **values) -> LoadJob:
    """Records the neuron's next heartbeat, with this state of the job's replica."""
    state = build.replica(**{"job_id": str(job.pk), "status": status} | values)
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[state]))
    return fresh(job)


def later(**delta: int):
    return timezone.now() + timedelta(**delta)
