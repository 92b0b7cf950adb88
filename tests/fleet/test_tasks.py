"""The periodic tasks over a real Redis."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from django.db import connection

from fleet import services, tasks
from fleet.control import leadership
from fleet.lifecycles import LoadJobStatus, NeuronStatus
from fleet.live import reading as live
from fleet.models import LoadJob, Neuron
from fleet.placement.decisions import Plan
from fleet.placement.reconcile import reconcile
from fleet.services.jobs import reconciling
from helexa_site.celery import EVERY_S, app
from inference.protocol import keys
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_pinned_model_from_first_heartbeat_to_loaded(publish, build, sent) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny", pinned=True)
    publish()
    tasks.tick()
    job = LoadJob.objects.get()
    assert [name for name, *_ in sent.tasks] == ["neuron.load_model"]

    loading = build.replica(job_id=str(job.pk), status=ReplicaStatus.LOADING)
    publish(replicas=[loading])
    tasks.tick()
    job.refresh_from_db()
    assert job.status == LoadJobStatus.RUNNING

    publish(replicas=[build.replica(job_id=str(job.pk))])
    tasks.tick()
    job.refresh_from_db()
    assert job.status == LoadJobStatus.SUCCEEDED
    assert LoadJob.objects.count() == 1


def test_nothing_is_locked_while_the_control_thinks(publish, build, sent, monkeypatch) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny", pinned=True)
    publish()
    in_transaction: list[bool] = []

    def think(*args: Any, **named: Any) -> Plan:
        in_transaction.append(connection.in_atomic_block)
        return reconcile(*args, **named)

    monkeypatch.setattr(reconciling, "reconcile", think)
    tasks.tick()
    assert in_transaction == [False]
    assert LoadJob.objects.count() == 1


def test_a_neuron_that_falls_silent_is_marked_away(publish, redis_db, monkeypatch) -> None:
    publish()
    tasks.tick()
    with monkeypatch.context() as patched:
        nowhere = redis.Redis.from_url("redis://127.0.0.1:1/0")
        patched.setattr(live, "redis_client", lambda: nowhere)
        tasks.tick()  # while Redis is away nothing is recorded
    redis_db.delete(keys.heartbeat_key("beast"))
    began_s = time.monotonic()
    for term_began_s, status in (
        (began_s, NeuronStatus.ONLINE),  # it may be connecting
        (began_s - tasks.CONNECTING_S, NeuronStatus.AWAY),
    ):
        monkeypatch.setattr(leadership.this_control, "_term_began_s", term_began_s)
        tasks.tick()
        assert Neuron.objects.get().status == status


def test_every_tick_has_its_task_and_messages_are_json_and_nothing_else() -> None:
    app.loader.import_default_modules()  # as a worker does at its start
    assert set(EVERY_S) <= set(app.tasks)
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
    assert app.conf.task_ignore_result
