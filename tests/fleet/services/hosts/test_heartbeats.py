"""Rows follow heartbeats, and an idle fleet writes next to nothing."""

from __future__ import annotations

import itertools
from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet import services
from fleet.admin.replica_report import report_rows
from fleet.errors import IllegalTransitionError
from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from fleet.models import Device, Neuron, Replica
from inference.protocol.heartbeat import HostInfo, ReplicaStatus
from inference.protocol.load_progress import LoadFailure
from metering.actor import COMMAND

pytestmark = pytest.mark.django_db

GIB = 1024**3
NOBODY = FleetSnapshot(neurons=())


@pytest.fixture
def at_one_moment(monkeypatch) -> None:
    """Ten seconds later the same heartbeat would be written as a sign of life: between two looks at
    this clock a millisecond passes."""
    began, num_looks = timezone.now(), itertools.count()
    monkeypatch.setattr(
        "django.utils.timezone.now", lambda: began + timedelta(milliseconds=next(num_looks))
    )


def record(heartbeat) -> list[str]:
    """Records and returns the statements that wrote."""
    with CaptureQueriesContext(
        connection,
    ) as queries:
        services.heartbeat_record(heartbeat=heartbeat)
    return [
        query["sql"]
        for query in queries
        if query["sql"].split()[0] in {"INSERT", "UPDATE", "DELETE"}
    ]


def test_a_host_that_joins_appears_by_itself(build) -> None:
    cuda = build.device(
        kind="cuda", name="a card", total_memory_bytes=24 * GIB, compute_capability="9.0"
    )
    record(build.heartbeat(devices=[build.device(), cuda]))
    neuron = Neuron.objects.get()
    assert (neuron.name, neuron.status) == ("beast", NeuronStatus.ONLINE)
    assert (neuron.hostname, neuron.num_cores) == ("beast.local", 8)
    assert [str(device) for device in Device.objects.all()] == ["beast cpu:0", "beast cuda:0"]
    assert Device.objects.get(kind="cuda").compute_capability == "9.0"


def test_the_same_heartbeat_again_writes_nothing(at_one_moment, build) -> None:
    beat = build.heartbeat(replicas=[build.replica(report=build.report(), stats=build.stats())])
    record(beat)
    assert record(beat) == []


def test_free_memory_alone_waits_for_the_refresh(at_one_moment, build) -> None:
    record(build.heartbeat())
    busier = build.heartbeat(devices=[build.device(free_memory_bytes=GIB)])
    assert record(busier) == []
    Neuron.objects.update(last_seen_at=timezone.now() - timedelta(seconds=11))
    written = record(busier)
    assert len(written) == 2
    assert all("UPDATE" in statement for statement in written)
    assert Device.objects.get().free_memory_bytes == GIB


def test_writes_name_their_columns(at_one_moment, build) -> None:
    record(build.heartbeat(replicas=[build.replica(stats=build.stats())]))
    (statement,) = record(build.heartbeat(replicas=[build.replica(stats=build.stats(in_flight=3))]))
    assert "in_flight" in statement
    assert "status" not in statement
    assert Replica.objects.get().in_flight == 3


def test_a_new_life_of_the_neuron_is_recorded(build) -> None:
    record(build.heartbeat())
    record(build.heartbeat(epoch="epoch-2", started_unix_s=1_700_000_100.0))
    neuron = Neuron.objects.get()
    assert neuron.epoch == "epoch-2"
    assert neuron.started_at.timestamp() == 1_700_000_100.0


def test_problems_of_the_host_are_kept(build) -> None:
    beat = build.heartbeat()
    host = msgspec.structs.replace(beat.host, problems=["driver 1 does not match library 2"])
    assert isinstance(host, HostInfo)
    record(msgspec.structs.replace(beat, host=host))
    assert Neuron.objects.get().problems == ["driver 1 does not match library 2"]


def test_threads_that_broke_are_problems_of_the_neuron(build) -> None:
    problem = "the thread heartbeat broke once lately and was started again: PanicException: no"
    record(msgspec.structs.replace(build.heartbeat(), thread_problems=[problem]))
    assert Neuron.objects.get().problems == [problem]
    record(build.heartbeat())
    assert Neuron.objects.get().problems == []


def test_a_device_that_is_gone_is_gone(build) -> None:
    record(build.heartbeat(devices=[build.device(), build.device(kind="cuda")]))
    record(build.heartbeat(devices=[build.device()]))
    assert [device.kind for device in Device.objects.all()] == ["cpu"]


def test_replicas_come_change_and_go(build) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    record(build.heartbeat(replicas=[build.replica(status=ReplicaStatus.LOADING)]))
    row = Replica.objects.get()
    assert (row.status, row.report) == (RecordedReplicaStatus.LOADING, None)
    assert row.model is not None
    assert row.model.name == "tiny"
    record(build.heartbeat(replicas=[build.replica(report=build.report())]))
    row.refresh_from_db()
    assert (row.status, row.report["context_tokens"]) == (RecordedReplicaStatus.READY, 1024)
    record(build.heartbeat())
    assert not Replica.objects.exists()


def test_a_replicas_page_shows_how_many_drafts_were_right(build) -> None:
    stats = build.stats(num_drafted_tokens=2000, num_accepted_drafts=1240)
    words = build.report(speculation="prompt lookup, up to 8 tokens a step")
    record(build.heartbeat(replicas=[build.replica(report=words, stats=stats)]))
    rows = dict(report_rows(Replica.objects.get()))
    assert rows["Drafts"] == "prompt lookup, up to 8 tokens a step"
    assert rows["Drafts that were right"] == "1,240 of 2,000 (62%)"
    record(build.heartbeat(replicas=[build.replica(report=build.report(), stats=build.stats())]))
    assert "Drafts that were right" not in dict(report_rows(Replica.objects.get()))


def test_a_replicas_page_has_its_warnings(build) -> None:
    report = build.report(warnings=["prefixes on disk are off", "no C compiler"])
    record(build.heartbeat(replicas=[build.replica(report=report)]))
    rows = dict(report_rows(Replica.objects.get()))
    assert rows["Warnings"] == "prefixes on disk are off; no C compiler"


def test_a_replica_that_the_catalogue_does_not_know_is_shown_all_the_same(build) -> None:
    record(build.heartbeat(replicas=[build.replica(model="stranger")]))
    assert Replica.objects.get(model_name="stranger").model is None


def test_why_a_replica_failed_is_kept(build) -> None:
    failure = LoadFailure(code="bad_file", message="not a GGUF")
    state = build.replica(status=ReplicaStatus.FAILED, failure=failure)
    record(build.heartbeat(replicas=[state]))
    row = Replica.objects.get()
    assert (row.failure_code, row.failure_message) == ("bad_file", "not a GGUF")


def test_a_silent_neuron_goes_away_and_comes_back(build) -> None:
    stats = build.stats(in_flight=2, decode_tokens_per_s=50.0)
    beat = build.heartbeat(replicas=[build.replica(stats=stats)])
    record(beat)
    assert Replica.objects.get().decode_tokens_per_s == 50.0
    assert services.silent_neurons_mark_away(snapshot=build_snapshot([beat])) == 0
    assert services.silent_neurons_mark_away(snapshot=NOBODY) == 1
    assert services.silent_neurons_mark_away(snapshot=NOBODY) == 0
    assert Neuron.objects.get().status == NeuronStatus.AWAY
    row = Replica.objects.get()
    assert (row.status, row.in_flight) == (RecordedReplicaStatus.AWAY, 0)
    assert row.decode_tokens_per_s == 0.0
    record(beat)
    assert Neuron.objects.get().status == NeuronStatus.ONLINE
    assert Replica.objects.get().status == RecordedReplicaStatus.READY


def test_an_engine_that_is_gone_or_idle_works_on_nothing(build) -> None:
    busy = build.stats(in_flight=4, queue_depth=2, decode_tokens_per_s=50.0)
    idle = build.stats(in_flight=0, decode_tokens_per_s=50.0)
    for gone in (
        build.replica(status=ReplicaStatus.RECOVERING),
        build.replica(status=ReplicaStatus.FAILED),
        build.replica(stats=idle),
    ):
        record(build.heartbeat(replicas=[build.replica(stats=busy)]))
        record(build.heartbeat(replicas=[gone]))
        row = Replica.objects.get()
        assert (row.in_flight, row.queue_depth, row.decode_tokens_per_s) == (0, 0, 0.0)


def test_a_neuron_is_marked_away_once(build) -> None:
    record(build.heartbeat())
    stale, neuron = Neuron.objects.get(), Neuron.objects.get()
    assert services.neuron_mark_away(neuron=neuron)
    assert not services.neuron_mark_away(neuron=stale)
    with pytest.raises(IllegalTransitionError):
        services.neuron_mark_away(neuron=Neuron.objects.get())
