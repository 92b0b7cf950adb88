"""The admin's lists and rows of neurons, invitations, jobs and replicas, and their actions."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import redis

from fleet import services
from fleet.lifecycles import LoadJobStatus, NeuronStatus
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot
from fleet.models import (
    Alias,
    CatalogueModel,
    Device,
    Download,
    FleetPolicy,
    Invitation,
    LoadJob,
    Neuron,
    NeuronWish,
    Replica,
)
from inference.protocol import keys
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.joining import decode_joining
from inference.protocol.load_report import AsleepBytes, LoadProgress, LoadStage
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.admin.admin_pages import act, page, url
from tests.fleet.admin.admin_pages import sent as sent_form
from tests.fleet.conftest import GIB
from tests.metering.callers import recorded, staff

MODEL = "cataloguemodel"
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_neuron_is_drained_refused_readmitted_and_removed(admin_client, beat, redis_db) -> None:
    def acted(action: str) -> str:
        return act(admin_client, "neuron", action, neuron)

    def wished() -> tuple[bool, str]:
        wish = NeuronWish.objects.get()
        return wish.desired_state().drain, wish.admission

    beat()
    neuron = Neuron.objects.get()
    assert "beast is being drained" in acted("drain")
    acted("refuse")
    assert wished() == (True, "refused")
    acted("admit")
    assert "takes models and requests again" in acted("resume")
    assert wished() == (False, "admitted")
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {"user:admin"}
    assert "stop it before it is removed" in acted("remove")
    redis_db.delete(keys.heartbeat_key("beast"))
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    shown = page(admin_client, "neuron")
    assert re.search(r"Last seen[^>]*>[^<]* ago<", shown), "and not now"
    assert "beast is forgotten" in acted("remove")
    assert not Neuron.objects.exists()


def test_an_invitation_is_shown_once_and_revoked(admin_client, shared_redis) -> None:
    def invited(name: str, share: str = "10.0.0.5:7000") -> Any:
        services.share_record(actor=COMMAND, address=share, is_tls=False, certificate="")
        return admin_client.post(url("invitation", "add"), {"neuron_name": name, "address": ""})

    assert "no other host can reach this Redis" in invited("beast", share="").text
    for name in ("a b", "-a", "a" * 64, "beast\n-"):
        assert "Letters, digits" in invited(name).text
    shown = invited("beast")
    assert "no-store" in shown["Cache-Control"]
    found = re.search(r"neuron --join (hx1\.[\w-]+)", shown.text)
    assert found is not None and decode_joining(found[1]).neuron == "beast"
    assert "neuron-beast" in shared_redis.acl_users()
    row = Invitation.objects.get()
    text = page(admin_client, "invitation", "change", row.pk)
    assert row.secret_sha256 not in text and "user:admin" in text
    act(admin_client, "invitation", "delete_selected", row, post="yes")
    assert not Invitation.objects.exists()
    assert "neuron-beast" not in shared_redis.acl_users()


def test_lookers_change_nothing_and_the_policy_is_one_row(model, beat, sent, admin_client) -> None:
    beat()
    neuron = Neuron.objects.get()
    client = staff("looker", "view_neuron", "view_cataloguemodel", "view_loadjob")
    for action in ("drain", "remove"):
        act(client, "neuron", action, neuron)
    assert NeuronWish.objects.get().drain_wanted_at is None
    assert client.get(url("invitation", "add")).status_code == 403
    assert "tiny" in page(client, MODEL)
    act(client, MODEL, "load_selected", model)
    assert not LoadJob.objects.exists()
    drainer = staff("drainer", "view_neuron", "change_neuron")
    assert "is forgotten" not in act(drainer, "neuron", "remove", neuron)
    assert "is being drained" in act(drainer, "neuron", "drain", neuron)
    sent_form(admin_client, "fleetpolicy", "add", admission="click")
    assert FleetPolicy.objects.get().admission == "click"
    for view, args in (("add", ()), ("delete", (1,))):
        assert admin_client.get(url("fleetpolicy", view, *args)).status_code == 403
    sent_form(admin_client, "fleetpolicy", "change", 1, admission="automatic")
    assert FleetPolicy.objects.get().admission == "automatic"
    assert AuditEntry.objects.filter(action="fleet.admission").count() == 2
    services.share_record(actor=COMMAND, address="10.0.0.5:1", is_tls=True, certificate="")
    assert "10.0.0.5:1 by TLS" in page(admin_client, "fleetpolicy")


def test_every_list_and_row_shows_at_the_same_cost_however_many_rows(
    admin_client, model, beat, build, sent, django_assert_max_num_queries
) -> None:
    limited = [build.device(total_memory_bytes=6 * GIB, installed_memory_bytes=16 * GIB)]
    beat(devices=limited)
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    values = {"stage": LoadStage.WEIGHTS, "unit": "tensors", "detail": "to q4"}
    progress = LoadProgress(done=3, total=4, **values)
    loading = {"status": ReplicaStatus.LOADING, "progress": progress}
    beat(devices=limited, replicas=[build.replica(job_id=str(job.pk), **loading)])
    text = page(admin_client, "loadjob")
    assert "weights 75 % (3 of 4 tensors), to q4" in text and 'aria-valuenow="75"' in text
    beat(devices=limited, replicas=[build.replica(job_id=str(job.pk), stats=build.stats())])
    assert "loaded 100 %" in page(admin_client, "loadjob")
    stage = {"model": "other", "first_layer": 0, "last_layer": 12, "device": "cuda:1"}
    stage |= {"memory_bytes": GIB, "status": "failed", "engine_neuron": "attic", "failure": "why"}
    Neuron.objects.update(problems=["driver 1 does not match library 2"], held_stages=[stage])
    download = {"neuron": Neuron.objects.get(), "source": "pypi:tiny", "status": "running"}
    Download.objects.create(**download, bytes_done=GIB, bytes_total=4 * GIB)
    tables = (Neuron, Device, CatalogueModel, Replica, LoadJob, Download)
    lists, rows = {}, {}
    for table in tables:
        noun = table.__name__.lower()
        lists[table] = page(admin_client, noun)
        rows[table] = page(admin_client, noun, "change", table.objects.get().pk)
    for table in (CatalogueModel, Replica, LoadJob):
        assert "tiny" in lists[table] and "tiny" in rows[table]
    for table in (Neuron, Device):
        assert "a processor" in lists[table] and "6.0 GiB (limit, of 16.0 GiB)" in lists[table]
    assert "running 25 % (1.0 GiB of 4.0 GiB)" in lists[Download]
    assert re.search(r'"Free memory">[^<]*8.0 GiB', lists[Neuron])
    assert "(layers 0 to 11 on cuda:1 for attic, 1.0 GiB, failed: why)" in rows[Neuron]
    for name in "abcdefgh":
        beat(name, replicas=[build.replica(stats=build.stats())])
        LoadJob.objects.create(model=model, model_name="tiny", neuron=Neuron.objects.get(name=name))
    for table in (*tables, Alias):
        with django_assert_max_num_queries(14):
            page(admin_client, table.__name__.lower())


def test_load_goes_where_it_fits(admin_client, model, beat, build, sent) -> None:
    def load() -> str:
        return act(admin_client, MODEL, "load_selected", model)

    assert "No neuron that could run tiny" in load()
    for status, message in (
        (ReplicaStatus.READY, "tiny is loaded on beast already"),
        (ReplicaStatus.RECOVERING, "tiny is recovering on beast"),
    ):
        beat(replicas=[build.replica(status=status)])
        assert message in load()
    assert sent.tasks == []
    beat(replicas=[build.replica(spec_digest="0123456789abcdef")])
    text = load()
    assert "Reloading tiny on beast" in text and "no other neuron has room" in text
    assert LoadJob.objects.get().kind == "reload"
    LoadJob.objects.all().delete()
    beat()
    text = load()
    for words in ("Started: Loading tiny on beast", "waiting for the neuron", "hx-get"):
        assert words in text
    job = LoadJob.objects.get()
    assert (job.requested_by, len(sent.tasks)) == ("user:admin", 2)
    assert "Cancelling the load" in act(admin_client, "loadjob", "cancel_selected", job)
    beat(replicas=[build.replica(job_id=str(job.pk), status=ReplicaStatus.DRAINING)])
    job.refresh_from_db()
    assert job.status == LoadJobStatus.CANCELLED
    assert "has ended" in act(admin_client, "loadjob", "cancel_selected", job)


def test_load_on_a_chosen_neuron(admin_client, model, beat, build, sent, monkeypatch) -> None:
    for name in ("beast", "beauty"):
        beat(name=name)

    def load(**form: str) -> str:
        chosen = {"action": "load_selected_on_neuron", "_selected_action": model.pk}
        return sent_form(admin_client, MODEL, "changelist", **chosen, **form)

    assert "This field is required" in load(sure="1", neuron="")
    assert not LoadJob.objects.exists()
    assert "Loading tiny on beauty" in load(sure="1", neuron=Neuron.objects.get(name="beauty").pk)
    assert LoadJob.objects.get().neuron.name == "beauty"
    beat(replicas=[build.replica()])
    nowhere = redis.Redis.from_url("redis://127.0.0.1:1/0")
    monkeypatch.setattr(live, "redis_client", lambda: nowhere)
    assert "Redis does not answer" in act(admin_client, MODEL, "load_selected", model)
    assert "what is cached is not known" in page(admin_client, "download", "cached")
    sent.broker_is_away = True
    LoadJob.objects.all().delete()
    assert "nothing was sent" in act(admin_client, MODEL, "unload_selected", model)


def test_unload_reload_sleep_and_wake(admin_client, model, beat, build, sent) -> None:
    def act_there(action: str) -> str:
        return act(admin_client, "replica", action, Replica.objects.get())

    assert "not loaded anywhere" in act(admin_client, MODEL, "unload_selected", model)
    report = build.report(asleep=AsleepBytes(device_bytes=GIB, host_bytes=0))
    beat(replicas=[build.replica(report=report)])
    CatalogueModel.objects.update(pinned=True)
    assert "unpin it first" in act_there("unload_selected")
    CatalogueModel.objects.update(pinned=False)
    for noun, row in (("replica", Replica.objects.get()), (MODEL, model)):
        form = {"action": "unload_selected", "_selected_action": row.pk}
        assert "Are you sure?" in sent_form(admin_client, noun, "changelist", **form)
    assert sent.tasks == []
    message = "Unloading tiny from beast"
    assert message in act(admin_client, MODEL, "unload_selected", model)
    assert message in act_there("unload_selected")
    assert [name for name, *_ in sent.tasks] == ["neuron.unload_model"]  # one job for both
    for action, status, orders in (
        ("reload_selected", ReplicaStatus.READY, ["unload_model", "load_model"]),
        ("sleep_selected", ReplicaStatus.READY, ["sleep_model"]),
        ("wake_selected", ReplicaStatus.ASLEEP, ["load_model"]),
    ):
        LoadJob.objects.all().delete()
        sent.tasks.clear()
        beat(replicas=[build.replica(status=status, report=report)])
        act_there(action)
        assert [name for name, *_ in sent.tasks] == [f"neuron.{order}" for order in orders]


def test_a_replica_shows_its_report_figures_and_errors(admin_client, model, beat, build) -> None:
    def shown(**changes: Any) -> str:
        beat(replicas=[build.replica(**changes)])
        return page(admin_client, "replica", "change", Replica.objects.get().pk)

    text = shown(status=ReplicaStatus.LOADING, report=None)
    assert "Not loaded yet" in text and "None in the last 24 hours" in text
    took = {
        "actual_bytes": 4 * 1000**2,
        "warnings": ["prefixes on disk are off", "no C compiler"],
    }
    stats = msgspec.structs.replace(
        build.stats(in_flight=1234, kv_blocks_used=16),
        num_drafted_tokens=2000,
        num_accepted_drafts=1240,
    )
    request_id = recorded(neuron="beast", outcome="failed", code="engine_crashed", message="Stop.")
    text = shown(report=build.report(**took), stats=stats, memory_bytes=3 * GIB)
    row = r'<th scope="row">([^<]*)</th><td class="hx-wrapped">([^<]*)</td>'
    rows = dict(re.findall(row, text))
    expected = {
        "Memory": "3.8 MiB",
        "Sampling defaults": "temperature 0.6, top_k 20",
        "Drafts that were right": "1,240 of 2,000 (62%)",
        "Warnings": "prefixes on disk are off; no C compiler",
    }
    assert expected.items() <= rows.items() and "Structured output" not in rows
    for words in ("3.0 GiB", "1,234", "16 of ", "engine_crashed: Stop.", request_id):
        assert words in text
    Neuron.objects.update(status=NeuronStatus.AWAY)
    assert "1,234" not in page(admin_client, "replica"), "it is offline"
