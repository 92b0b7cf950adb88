"""The admin's lists and rows, what each shows and costs, and who may look; the operator's actions
on neurons, invitations and the policy; loads, reloads and unloads with their jobs and replicas."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
from django.test import Client

from fleet import services
from fleet.lifecycles import LoadJobStatus, NeuronStatus
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot
from fleet.models import (
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
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.admin.admin_pages import act, page, url
from tests.fleet.admin.admin_pages import sent as sent_form
from tests.fleet.services.hosts.invited_hosts import shared_redis
from tests.metering.callers import staff

__all__ = ["shared_redis"]

GIB = 1024**3
MODEL = "cataloguemodel"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def neuron(beat: Any) -> Neuron:
    beat()
    return Neuron.objects.get()


def test_a_neuron_is_drained_refused_readmitted_and_removed_when_away(
    admin_client, neuron, redis_db
) -> None:
    assert "beast is being drained" in act(admin_client, "neuron", "drain", neuron)
    assert NeuronWish.objects.get().desired_state().drain
    act(admin_client, "neuron", "refuse", neuron)
    assert NeuronWish.objects.get().admission == "refused"
    act(admin_client, "neuron", "admit", neuron)
    assert "takes models and requests again" in act(admin_client, "neuron", "resume", neuron)
    desired = NeuronWish.objects.get()
    assert (desired.drain_wanted_at, desired.admission) == (None, "admitted")
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {"user:admin"}
    assert "stop it before it is removed" in act(admin_client, "neuron", "remove", neuron)
    redis_db.delete(keys.heartbeat_key("beast"))
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert Neuron.objects.get().status == NeuronStatus.AWAY
    shown = page(admin_client, "neuron")
    assert re.search(r"Last seen[^>]*>[^<]* ago<", shown), "and not now"
    assert not re.search(r'"Free memory">[^<]*GiB', shown + page(admin_client, "device"))
    assert "beast is forgotten" in act(admin_client, "neuron", "remove", neuron)
    assert not Neuron.objects.exists()


def test_an_invitation_is_shown_once_and_revoked(admin_client, shared_redis) -> None:
    def share(address: str) -> None:
        services.share_record(actor=COMMAND, address=address, is_tls=False, certificate="")

    share("")
    refused = sent_form(admin_client, "invitation", "add", neuron_name="beast", address="")
    assert "no other host can reach this Redis" in refused
    share("10.0.0.5:7000")
    for name in ("a b", "-a", "a" * 64, "beast\n-"):
        assert "Letters, digits" in sent_form(admin_client, "invitation", "add", neuron_name=name)
    shown = admin_client.post(url("invitation", "add"), {"neuron_name": "beast", "address": ""})
    assert "no-store" in shown["Cache-Control"]
    found = re.search(r"neuron --join (hx1\.[\w-]+)", shown.text)
    assert found is not None
    assert decode_joining(found[1]).neuron == "beast"
    assert "neuron-beast" in shared_redis.acl_users()
    assert "beast" in page(admin_client, "invitation")
    row = Invitation.objects.get()
    text = page(admin_client, "invitation", "change", row.pk)
    assert row.secret_sha256 not in text and "user:admin" in text
    act(admin_client, "invitation", "delete_selected", row, post="yes")
    assert not Invitation.objects.exists()
    assert "neuron-beast" not in shared_redis.acl_users()


def test_the_policy_is_one_row(admin_client) -> None:
    sent_form(admin_client, "fleetpolicy", "add", admission="click")
    assert FleetPolicy.objects.get().admission == "click"
    assert admin_client.get(url("fleetpolicy", "add")).status_code == 403
    assert admin_client.get(url("fleetpolicy", "delete", 1)).status_code == 403
    sent_form(admin_client, "fleetpolicy", "change", 1, admission="automatic")
    assert FleetPolicy.objects.get().admission == "automatic"
    assert AuditEntry.objects.filter(action="fleet.admission").count() == 2
    services.share_record(actor=COMMAND, address="10.0.0.5:1", is_tls=True, certificate="")
    assert "10.0.0.5:1 by TLS" in page(admin_client, "fleetpolicy")


def test_who_may_only_look_changes_nothing(model, neuron, sent) -> None:
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


ROWS = {
    "neuron": Neuron,
    "device": Device,
    MODEL: CatalogueModel,
    "replica": Replica,
    "loadjob": LoadJob,
}


def test_every_list_and_row_shows(admin_client, model, beat, build, sent) -> None:
    limited = build.device(total_memory_bytes=6 * GIB, installed_memory_bytes=16 * GIB)
    beat(devices=[limited])
    services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    loaded = build.replica(report=build.report(), stats=build.stats(in_flight=3))
    beat(devices=[limited], replicas=[loaded])
    stage = {"model": "other", "first_layer": 0, "last_layer": 12, "device": "cuda:1"}
    stage |= {"memory_bytes": GIB, "status": "failed", "engine_neuron": "attic", "failure": "why"}
    Neuron.objects.update(problems=["driver 1 does not match library 2"], held_stages=[stage])
    assert admin_client.get("/admin/").status_code == 200
    shown = {noun: page(admin_client, noun) for noun in ROWS}
    rows = {
        noun: page(admin_client, noun, "change", table.objects.get().pk)
        for noun, table in ROWS.items()
    }
    for noun in (MODEL, "replica", "loadjob"):
        assert "tiny" in shown[noun] and "tiny" in rows[noun]
    for noun in ("neuron", "device"):
        assert "a processor" in shown[noun] and "6.0 GiB (limit, of 16.0 GiB)" in shown[noun]
    free = Neuron.objects.get().free_memory_bytes
    assert re.search(rf'"Free memory">[^<]*{free / GIB:.1f} GiB', shown["neuron"])
    assert "driver 1 does not match library 2" in shown["neuron"]
    words = "(layers 0 to 11 on cuda:1 for attic, 1.0 GiB, failed: why)"
    assert words in rows["neuron"] and 'data-label="Last seen">now<' in shown["neuron"]


def test_a_list_costs_the_same_however_many_rows(
    admin_client, model, beat, build, django_assert_max_num_queries
) -> None:
    for name in "abcdefgh":
        beat(name, replicas=[build.replica(stats=build.stats())])
        LoadJob.objects.create(model=model, model_name="tiny", neuron=Neuron.objects.get(name=name))
    for noun in (*ROWS, "alias"):
        with django_assert_max_num_queries(14):
            page(admin_client, noun)


def load(client: Client, model: CatalogueModel) -> str:
    return act(client, MODEL, "load_selected", model)


def test_load_goes_where_it_fits_and_ends_on_the_job(admin_client, model, beat, sent) -> None:
    assert "No neuron that could run tiny" in load(admin_client, model)
    assert sent.tasks == []
    beat()
    text = load(admin_client, model)
    for words in ("Started: Loading tiny on beast", "waiting for the neuron", "hx-get"):
        assert words in text
    assert LoadJob.objects.get().requested_by == "user:admin"
    assert len(sent.tasks) == 1


def test_load_of_what_is_there(admin_client, model, beat, build, sent) -> None:
    for status, message in (
        (ReplicaStatus.READY, "tiny is loaded on beast already"),
        (ReplicaStatus.RECOVERING, "tiny is recovering on beast"),
    ):
        beat(replicas=[build.replica(status=status)])
        assert message in load(admin_client, model)
    assert sent.tasks == []
    beat(replicas=[build.replica(spec_digest="0123456789abcdef")])
    assert "outdated" in page(admin_client, "replica")
    text = load(admin_client, model)
    assert "Reloading tiny on beast" in text and "no other neuron has room" in text
    assert LoadJob.objects.get().kind == "reload"


def test_load_on_a_chosen_neuron(admin_client, model, beat, sent) -> None:
    beat(name="beast")
    beat(name="beauty")

    def load(**form: str) -> str:
        chosen = {"action": "load_selected_on_neuron", "_selected_action": model.pk}
        return sent_form(admin_client, MODEL, "changelist", **chosen, **form)

    asked = load()
    assert "beauty" in asked and "Load on a neuron of your choice" in asked
    assert "This field is required" in load(sure="1", neuron="")
    assert not LoadJob.objects.exists()
    assert "Loading tiny on beauty" in load(sure="1", neuron=Neuron.objects.get(name="beauty").pk)
    assert LoadJob.objects.get().neuron.name == "beauty"


def test_unload_and_reload_from_both_lists(admin_client, model, beat, build, sent) -> None:
    assert "not loaded anywhere" in act(admin_client, MODEL, "unload_selected", model)
    beat(replicas=[build.replica()])

    def act_there(action: str) -> str:
        return act(admin_client, "replica", action, Replica.objects.get())

    for kept, words in (
        ({"pinned": True}, "unpin it first"),
        ({"pinned": False, "min_replicas": 1}, "set its least number of replicas to 0 first"),
    ):
        CatalogueModel.objects.update(**kept)
        assert words in act_there("unload_selected")
    assert sent.tasks == []
    CatalogueModel.objects.update(min_replicas=0)
    replica = {"action": "unload_selected", "_selected_action": Replica.objects.get().pk}
    for noun, row in (("replica", replica), (MODEL, replica | {"_selected_action": model.pk})):
        assert "Are you sure?" in sent_form(admin_client, noun, "changelist", **row)
    assert sent.tasks == []
    message = "Unloading tiny from beast"
    assert message in act(admin_client, MODEL, "unload_selected", model)
    assert message in act_there("unload_selected")
    assert [name for name, *_ in sent.tasks] == ["neuron.unload_model"]  # one job for both
    assert "unload" in page(admin_client, "loadjob")
    LoadJob.objects.all().delete()
    assert "Reloading tiny on beast" in act_there("reload_selected")
    assert [name for name, *_ in sent.tasks[1:]] == ["neuron.unload_model", "neuron.load_model"]


def test_redis_away_is_reported(admin_client, model, beat, build, sent, monkeypatch) -> None:
    beat(replicas=[build.replica()])
    nowhere = redis.Redis.from_url("redis://127.0.0.1:1/0")
    monkeypatch.setattr(live, "redis_client", lambda: nowhere)
    assert "Redis does not answer" in load(admin_client, model)
    assert "what is cached is not known" in page(admin_client, "download", "cached")
    sent.broker_is_away = True
    assert "nothing was sent" in act(admin_client, MODEL, "unload_selected", model)


def test_a_job_shows_its_progress_and_its_end(admin_client, model, beat, build, sent) -> None:
    beat()

    def shown(**state: Any) -> str:
        job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
        values = {"job_id": str(job.pk), "status": ReplicaStatus.LOADING}
        beat(replicas=[build.replica(**values | state)])
        return page(admin_client, "loadjob")

    text = shown(progress=LoadProgress(stage=LoadStage.DOWNLOADING, done=GIB, total=4 * GIB))
    assert "downloading 25 % (1.0 GiB of 4.0 GiB)" in text and 'aria-valuenow="25"' in text
    tensors = {"unit": "tensors", "detail": "quantising to q4"}
    text = shown(progress=LoadProgress(stage=LoadStage.WEIGHTS, done=3, total=4, **tensors))
    assert "weights 75 % (3 of 4 tensors), quantising to q4" in text
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    text = shown(status=ReplicaStatus.FAILED, failure=failure)
    assert "needs 8 GB, has 4 GB" in text and "aria-valuenow" not in text
    shown(progress=LoadProgress(stage=LoadStage.WARMUP, done=62, total=100, unit="steps"))
    text = shown(status=ReplicaStatus.READY)
    assert "loaded 100 %" in text and "warmup" not in text, "not its last stage"
    LoadJob.objects.update(progress_detail="quantising to q4")
    assert "quantising" not in page(admin_client, "loadjob"), "it has ended"
    download = {"neuron": Neuron.objects.get(), "source": "pypi:tiny", "status": "running"}
    Download.objects.create(**download, bytes_done=GIB, bytes_total=4 * GIB)
    Download.objects.create(**download | {"source": "pypi:other"})
    text = page(admin_client, "download")
    assert "running 25 % (1.0 GiB of 4.0 GiB)" in text and text.count("GiB of") == 2


def test_a_replica_shows_its_report_and_live_figures(admin_client, model, beat, build) -> None:
    def shown(**changes: Any) -> str:
        beat(replicas=[build.replica(**changes)])
        return page(admin_client, "replica", "change", Replica.objects.get().pk)

    assert "Not loaded yet" in shown(status=ReplicaStatus.LOADING, report=None)
    took = {
        "context_reason": "1,024 tokens: bound by prompt speed, the model's own are 8,192",
        "kv_dtype": "int8",
        "adapter_bytes": 500_000,
        "actual_bytes": 4 * 1000**2,
        "quantization": "q4 things",
        "quality": "KL 0.012 nats a token against BF16",
        "load_seconds": 12.34567,
        "generation_defaults": {"temperature": 0.6, "top_k": 20},
    }
    stats = build.stats(in_flight=1234, kv_blocks_used=16)
    text = shown(report=build.report(**took), stats=stats, memory_bytes=3 * GIB)
    rows = dict(
        re.findall(r'<th scope="row">([^<]*)</th><td class="hx-wrapped">([^<]*)</td>', text)
    )
    assert rows["Context"] == took["context_reason"] and rows["Quality"] == took["quality"]
    assert rows["Keys and values in"] == "int8" and rows["Weights"] == "q4 things"
    assert (rows["Memory"], rows["Memory for adapters"]) == ("3.8 MiB", "488.3 KiB")
    assert (rows["Tokens of context"], rows["Loaded in seconds"]) == ("1,024", "12.35")
    assert rows["Sampling defaults"] == "temperature 0.6, top_k 20"
    assert "Structured output" not in rows
    for words in ("3.0 GiB", "1,234", "16 of "):
        assert words in text
    Neuron.objects.update(status=NeuronStatus.AWAY)
    assert "1,234" not in page(admin_client, "replica"), "it is offline"


def test_cancelling_a_job(admin_client, model, beat, build, sent) -> None:
    beat()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    assert "Cancelling the load" in act(admin_client, "loadjob", "cancel_selected", job)
    beat(replicas=[build.replica(job_id=str(job.pk), status=ReplicaStatus.DRAINING)])
    job.refresh_from_db()
    assert job.status == LoadJobStatus.CANCELLED
    assert "has ended" in act(admin_client, "loadjob", "cancel_selected", job)
