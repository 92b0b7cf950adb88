"""Rows follow heartbeats. Drain, resume, admit, refuse and remove."""

from __future__ import annotations

import itertools
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet import services, tasks
from fleet.errors import NeuronAliveError, UnknownNeuronError
from fleet.lifecycles import LoadJobKind, NeuronStatus, RecordedReplicaStatus
from fleet.live import reading as live
from fleet.live.desired_state import AdmissionPolicy
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from fleet.models import CatalogueModel, Device, LoadJob, Neuron, NeuronWish, Replica
from inference.protocol import keys
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadFailure
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.conftest import GIB, offer

pytestmark = pytest.mark.django_db(transaction=True)


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

    offer()
    row = recorded(status=ReplicaStatus.LOADING)
    assert (row.status, row.report) == (RecordedReplicaStatus.LOADING, None)
    assert row.model is not None and row.model.name == "tiny"
    busy = build.stats(in_flight=4, queue_depth=2, decode_tokens_per_s=50.0)
    idle = {"stats": build.stats(in_flight=0, decode_tokens_per_s=50.0)}
    for gone in ({"status": ReplicaStatus.RECOVERING}, {"status": ReplicaStatus.FAILED}, idle):
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
    now, looks = timezone.now(), itertools.count()
    clock = lambda: now + timedelta(milliseconds=next(looks))  # noqa: E731
    monkeypatch.setattr("django.utils.timezone.now", clock)

    def written(in_flight: int = 3, free_bytes: int = 2 * GIB) -> list[str]:
        replica = build.replica(report=build.report(), stats=build.stats(in_flight=in_flight))
        devices = [build.device(free_memory_bytes=free_bytes)]
        return record(build.heartbeat(replicas=[replica], devices=devices))

    assert written(in_flight=0) and written(in_flight=0) == []
    (statement,) = written()
    assert "in_flight" in statement and "status" not in statement
    assert Replica.objects.get().in_flight == 3
    assert written(free_bytes=GIB) == []
    Neuron.objects.update(last_seen_at=now - timedelta(seconds=11))
    statements = written(free_bytes=GIB)
    assert len(statements) == 2 and all("UPDATE" in one for one in statements)
    assert Device.objects.get().free_memory_bytes == GIB


def test_a_silent_neuron_goes_away_once_and_comes_back(build) -> None:
    stats = build.stats(in_flight=2, decode_tokens_per_s=50.0)
    beat = build.heartbeat(replicas=[build.replica(stats=stats)])
    for _ in range(2):
        record(beat)
        neuron, row = Neuron.objects.get(), Replica.objects.get()
        assert (neuron.status, row.status) == (NeuronStatus.ONLINE, RecordedReplicaStatus.READY)
        assert (row.in_flight, row.decode_tokens_per_s) == (2, 50.0)
        assert services.silent_neurons_mark_away(snapshot=build_snapshot([beat])) == 0
        assert services.silent_neurons_mark_away(snapshot=NOBODY) == 1
        assert services.silent_neurons_mark_away(snapshot=NOBODY) == 0
        assert not services.neuron_mark_away(neuron=neuron)
        assert status() == NeuronStatus.AWAY
        row.refresh_from_db()
        assert (row.status, row.in_flight) == (RecordedReplicaStatus.AWAY, 0)
        assert row.decode_tokens_per_s == 0.0


def view(redis_db):
    return live.read_snapshot_sync(redis_db).neurons[0]


def status() -> str:
    return Neuron.objects.get().status


def actions() -> list[str]:
    return [entry.action for entry in AuditEntry.objects.order_by("id")]


def test_a_drain_from_desired_state_to_drained(beat, build, redis_db, monkeypatch) -> None:
    def drained_at() -> Any:
        return Neuron.objects.get().drained_at

    now = timezone.now()
    monkeypatch.setattr("django.utils.timezone.now", lambda: now)
    beat()
    first, again = (services.neuron_drain(actor=COMMAND, neuron_name="beast") for _ in range(2))
    assert again.drain_wanted_at == first.drain_wanted_at and actions() == ["neuron.drain"]
    assert view(redis_db).is_draining, "gateways know at once"
    beat()
    assert (status(), drained_at()) == (NeuronStatus.DRAINING, None), "one may have just sent it"
    NeuronWish.objects.update(drain_wanted_at=now - timedelta(seconds=10))
    for held in ({"stats": build.stats(in_flight=1)}, {"status": ReplicaStatus.LOADING}):
        beat(replicas=[build.replica(**held)])
        assert drained_at() is None
    for seconds in range(2):
        at = now + timedelta(seconds=seconds)
        monkeypatch.setattr("django.utils.timezone.now", lambda at=at: at)
        beat(replicas=[build.replica(stats=build.stats())])
        assert drained_at() == now
    services.neuron_resume(actor=COMMAND, neuron_name="beast")
    assert not view(redis_db).is_draining
    beat()
    assert (status(), drained_at()) == (NeuronStatus.ONLINE, None)
    assert actions() == ["neuron.drain", "neuron.resume"]
    beat(is_leaving=True)
    assert (status(), Neuron.objects.get().is_leaving) == (NeuronStatus.DRAINING, True)
    services.silent_neurons_mark_away(snapshot=NOBODY)
    assert (status(), Neuron.objects.get().is_leaving) == (NeuronStatus.AWAY, False)


def test_what_was_loaded_before_a_drain_is_loaded_after_it(beat, build, redis_db, sent) -> None:
    drain, resume = (
        partial(one, actor=COMMAND, neuron_name="beast")
        for one in (services.neuron_drain, services.neuron_resume)
    )

    def to_restore() -> list[str]:
        return NeuronWish.objects.get().models_before_drain

    for name in ("old", "new", "lost"):
        offer(name)
    uses = {"old": 10.0, "lost": 5.0, "new": 20.0}
    held = [build.replica(model=name, last_used_unix_s=used) for name, used in uses.items()]
    beat(replicas=[*held, build.replica(model="gone", status=ReplicaStatus.DRAINING)])
    drain()
    assert to_restore() == ["new", "old", "lost"]
    services.catalogue_model_delete(actor=COMMAND, model=CatalogueModel.objects.get(name="lost"))
    beat()
    drain()
    tasks.tick()
    loads = LoadJob.objects.filter(kind=LoadJobKind.LOAD).order_by("created_at", "pk")
    assert not loads.exists()
    resume()
    tasks.tick()
    assert list(loads.values_list("model_name", flat=True)) == to_restore() == ["new", "old"]
    beat(replicas=[build.replica(model="new"), build.replica(model="old")])
    tasks.tick()
    assert to_restore() == []
    # A drain that interrupts it keeps what is missing.
    drain()
    resume()
    beat(replicas=[build.replica(model="new")])
    drain()
    services.neuron_models_restored(neuron_name="beast", model_names=["old"])
    assert to_restore() == ["new", "old"], "it drains again"
    # One does not keep what stands in for another neuron.
    beat("benjy", replicas=[build.replica(model="new"), build.replica(model="own")])
    resume()
    services.neuron_drain(actor=COMMAND, neuron_name="benjy")
    assert NeuronWish.objects.get(neuron_name="benjy").models_before_drain == ["own"]


def test_a_host_that_is_away_is_known_with_its_devices(beat, redis_db, monkeypatch) -> None:
    beat("beast")
    with monkeypatch.context() as patched:
        nowhere = live.redis.Redis.from_url("redis://127.0.0.1:1/0")
        patched.setattr(live, "redis_client", lambda: nowhere)
        services.neuron_drain(actor=COMMAND, neuron_name="beast")
        assert not live.is_reporting("beast")
    assert not view(redis_db).is_draining
    services.desired_states_publish()
    assert view(redis_db).is_draining, "the wish outlives that Redis was away"
    services.silent_neurons_mark_away(snapshot=NOBODY)
    long_ago = timezone.now() - timedelta(seconds=70)
    Neuron.objects.update(status_since=long_ago)
    NeuronWish.objects.update(drain_wanted_at=long_ago)
    redis_db.delete(keys.heartbeat_key("beast"))
    services.desired_states_publish()
    snapshot = live.read_snapshot_sync(redis_db)
    host = snapshot.desired_states.of("beast").host
    assert snapshot.neurons == () and host is not None
    assert [(one.kind, one.total_memory_bytes) for one in host.devices] == [("cpu", 16 * 1024**3)]
    for seconds in (host.away_s, host.draining_s):
        assert 70 <= (seconds or 0) < 500


def test_by_click_new_neurons_wait_and_known_and_expected_ones_do_not(beat, redis_db) -> None:
    beat("old")
    services.admission_policy_set(actor=COMMAND, policy=AdmissionPolicy.CLICK)
    services.neuron_expect(actor=COMMAND, neuron_name="expected")
    for name in ("new", "expected", "old"):
        beat(name)
    statuses = dict(Neuron.objects.values_list("name", "status"))
    assert statuses == {"old": "online", "expected": "online", "new": "refused"}
    admitted = {n.name for n in live.read_snapshot_sync(redis_db).neurons if n.is_admitted}
    assert admitted == {"old", "expected"}
    services.neuron_admit(actor=COMMAND, neuron_name="new")
    assert all(n.is_admitted for n in live.read_snapshot_sync(redis_db).neurons)
    for _ in range(2):
        services.neuron_refuse(actor=COMMAND, neuron_name="expected")
    services.neuron_expect(actor=COMMAND, neuron_name="expected")
    assert not view(redis_db).is_admitted, "an operator has decided"
    admissions = ["fleet.admission", "neuron.admit", "neuron.admit"]
    assert actions() == [*admissions, "neuron.refuse"], "each once"


def test_a_dead_neuron_is_removed_with_all_its_rows(beat, build, redis_db) -> None:
    beat(replicas=[build.replica()])
    with pytest.raises(NeuronAliveError):
        services.neuron_remove(actor=COMMAND, neuron_name="beast")
    redis_db.delete(keys.heartbeat_key("beast"))
    with pytest.raises(NeuronAliveError):
        services.neuron_remove(actor=COMMAND, neuron_name="beast")
    services.silent_neurons_mark_away(snapshot=NOBODY)
    redis_db.hset(keys.specs_key("beast"), "tiny", b"{}")
    services.neuron_remove(actor=COMMAND, neuron_name="beast")
    assert not (Neuron.objects.exists() or Device.objects.exists() or NeuronWish.objects.exists())
    assert set(redis_db.keys()) == {keys.NEURON_DESIRED_STATES.encode()}
    assert live.read_snapshot_sync(redis_db).neurons == ()
    assert actions() == ["neuron.remove"]
    for name in ("drain", "resume", "admit", "refuse", "remove"):
        with pytest.raises(UnknownNeuronError):
            getattr(services, f"neuron_{name}")(actor=COMMAND, neuron_name="nobody")
