"""Rows follow heartbeats, and an idle fleet writes next to nothing."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet import services
from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from fleet.models import Device, Neuron, Replica
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure
from metering.actor import COMMAND

pytestmark = pytest.mark.django_db

GIB = 1024**3
NOBODY = FleetSnapshot(neurons=())


def record(heartbeat) -> list[str]:
    """Records and returns the statements that wrote."""
    with CaptureQueriesContext(connection) as queries:
        services.heartbeat_record(heartbeat=heartbeat)
    statements = [query["sql"] for query in queries]
    return [one for one in statements if one.split()[0] in {"INSERT", "UPDATE", "DELETE"}]


def test_a_host_that_joins_appears_by_itself_and_its_rows_follow_it(build) -> None:
    cuda = build.device(kind="cuda", compute_capability="9.0")
    record(build.heartbeat(devices=[build.device(), cuda]))
    neuron = Neuron.objects.get()
    assert (neuron.name, neuron.status) == ("beast", NeuronStatus.ONLINE)
    assert (neuron.hostname, neuron.num_cores) == ("beast.local", 8)
    assert [str(device) for device in Device.objects.all()] == ["beast cpu:0", "beast cuda:0"]
    assert Device.objects.get(kind="cuda").compute_capability == "9.0"
    beat = build.heartbeat(epoch="epoch-2", started_unix_s=1_700_000_100.0)
    record(beat)
    neuron.refresh_from_db()
    assert (neuron.epoch, neuron.started_at.timestamp()) == ("epoch-2", 1_700_000_100.0)
    assert [device.kind for device in Device.objects.all()] == ["cpu"]
    host = msgspec.structs.replace(beat.host, problems=["driver 1 does not match library 2"])
    thread = "the thread heartbeat broke once lately and was started again: PanicException: no"
    for problems in ({"host": host}, {"thread_problems": [thread]}):
        record(msgspec.structs.replace(beat, **problems))
        (problem,) = Neuron.objects.get().problems
        assert problem in (thread, *host.problems)
    record(beat)
    assert Neuron.objects.get().problems == []


def test_replicas_come_change_and_go(build) -> None:
    def recorded(**changes: Any) -> Replica:
        record(build.heartbeat(replicas=[build.replica(**changes)]))
        return Replica.objects.get()

    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    row = recorded(status=ReplicaStatus.LOADING)
    assert (row.status, row.report) == (RecordedReplicaStatus.LOADING, None)
    assert row.model is not None and row.model.name == "tiny"
    busy = build.stats(in_flight=4, queue_depth=2, decode_tokens_per_s=50.0)
    for gone in (
        {"status": ReplicaStatus.RECOVERING},
        {"status": ReplicaStatus.FAILED},
        {"stats": build.stats(in_flight=0, decode_tokens_per_s=50.0)},
    ):
        row = recorded(report=build.report(), stats=busy)
        assert (row.status, row.report["context_tokens"]) == (RecordedReplicaStatus.READY, 1024)
        row = recorded(**gone)
        assert (row.in_flight, row.queue_depth, row.decode_tokens_per_s) == (0, 0, 0.0)
    failure = LoadFailure(code="bad_file", message="not a GGUF")
    row = recorded(model="stranger", status=ReplicaStatus.FAILED, failure=failure)
    assert (row.failure_code, row.failure_message) == ("bad_file", "not a GGUF")
    assert row.model is None, "the catalogue does not know it"
    record(build.heartbeat())
    assert not Replica.objects.exists()


def test_only_what_differs_is_written_and_free_memory_waits(build, monkeypatch) -> None:
    # Ten seconds later the same heartbeat would be written as a sign of life: between two looks
    # at this clock a millisecond passes.
    began, num_looks = timezone.now(), itertools.count()
    monkeypatch.setattr(
        "django.utils.timezone.now", lambda: began + timedelta(milliseconds=next(num_looks))
    )

    def beat(in_flight: int = 0, free_bytes: int = 2 * GIB):
        replica = build.replica(report=build.report(), stats=build.stats(in_flight=in_flight))
        devices = [build.device(free_memory_bytes=free_bytes)]
        return build.heartbeat(replicas=[replica], devices=devices)

    record(beat())
    assert record(beat()) == []
    (statement,) = record(beat(in_flight=3))
    assert "in_flight" in statement and "status" not in statement
    assert Replica.objects.get().in_flight == 3
    assert record(beat(in_flight=3, free_bytes=GIB)) == []
    Neuron.objects.update(last_seen_at=timezone.now() - timedelta(seconds=11))
    written = record(beat(in_flight=3, free_bytes=GIB))
    assert len(written) == 2 and all("UPDATE" in statement for statement in written)
    assert Device.objects.get().free_memory_bytes == GIB


def test_a_silent_neuron_goes_away_once_and_comes_back(build) -> None:
    stats = build.stats(in_flight=2, decode_tokens_per_s=50.0)
    beat = build.heartbeat(replicas=[build.replica(stats=stats)])
    record(beat)
    assert Replica.objects.get().decode_tokens_per_s == 50.0
    stale = Neuron.objects.get()
    assert services.silent_neurons_mark_away(snapshot=build_snapshot([beat])) == 0
    assert services.silent_neurons_mark_away(snapshot=NOBODY) == 1
    assert services.silent_neurons_mark_away(snapshot=NOBODY) == 0
    assert not services.neuron_mark_away(neuron=stale)
    assert Neuron.objects.get().status == NeuronStatus.AWAY
    row = Replica.objects.get()
    assert (row.status, row.in_flight) == (RecordedReplicaStatus.AWAY, 0)
    assert row.decode_tokens_per_s == 0.0
    record(beat)
    assert Neuron.objects.get().status == NeuronStatus.ONLINE
    assert Replica.objects.get().status == RecordedReplicaStatus.READY
