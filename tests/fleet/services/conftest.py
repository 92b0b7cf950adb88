"""A load job of one model on one neuron, and the neuron's heartbeats about it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from fleet import services
from fleet.models import CatalogueModel, LoadJob, Neuron
from inference.protocol.heartbeat import ReplicaStatus
from metering.audit import COMMAND
from tests.fleet.conftest import offer

HERE = {"actor": COMMAND, "model_name": "tiny", "neuron_name": "beast"}


@pytest.fixture
def model() -> CatalogueModel:
    return offer(revision="1.0", max_context_tokens=512)


@pytest.fixture
def neuron(build: Any) -> Neuron:
    services.heartbeat_record(heartbeat=build.heartbeat())
    return Neuron.objects.get()


@pytest.fixture
def job(model: CatalogueModel, neuron: Neuron, sent: Any) -> LoadJob:
    return start()


def start() -> LoadJob:
    return services.load_job_start(**HERE)


def unload() -> LoadJob:
    return services.unload_job_start(**HERE)


def fresh(job: LoadJob) -> LoadJob:
    return LoadJob.objects.get(pk=job.pk)


def status_of(job: LoadJob) -> str:
    return fresh(job).status


def observe(build: Any, job: LoadJob, status: ReplicaStatus, **values: Any) -> LoadJob:
    """Records the neuron's next heartbeat, with this state of the job's replica."""
    state = build.replica(**{"job_id": str(job.pk), "status": status} | values)
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[state]))
    return fresh(job)


def later(**delta: int) -> datetime:
    return timezone.now() + timedelta(**delta)


def names(sent: Any) -> list[tuple[str, str]]:
    """The messages that were sent, with the neurons that they were sent to."""
    return [
        (task.partition(".")[2], options["queue"].partition(".")[2])
        for task, _, options in sent.tasks
    ]
