"""The admin's lists and rows, what each shows and costs, and who may look; the operator's actions
on neurons, invitations and the policy; loads, reloads and unloads with their jobs and replicas."""

from __future__ import annotations

import html
import re

import pytest
import redis
from django.test import Client
from django.urls import reverse

from fleet import services
from fleet.lifecycles import LoadJobStatus, NeuronStatus
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot
from fleet.models import (
    Alias,
    CatalogueModel,
    Device,
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
from tests.fleet.admin.admin_pages import act, page
from tests.fleet.services.hosts.invited_hosts import shared_redis
from tests.metering.callers import staff

__all__ = ["shared_redis"]

GIB = 1024**3
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def neuron(beat) -> Neuron:
    beat()
    return Neuron.objects.get()


def act_on(client, action: str, neuron: Neuron) -> str:
    return html.unescape(act(client, "neuron", action, neuron))


def test_drained_refused_and_back(admin_client, neuron) -> None:
    assert "beast is being drained" in act_on(admin_client, "drain", neuron)
    assert NeuronWish.objects.get().desired_state().drain
    act_on(admin_client, "refuse", neuron)
    assert NeuronWish.objects.get().admission == "refused"
    act_on(admin_client, "admit", neuron)
    assert "takes models and requests again" in act_on(admin_client, "resume", neuron)
    desired = NeuronWish.objects.get()
    assert (desired.drain_wanted_at, desired.admission) == (None, "admitted")
    actors = set(AuditEntry.objects.values_list("actor", flat=True))
    assert actors == {"user:admin"}


def test_a_living_one_is_not_removed_and_a_dead_one_is(admin_client, neuron, redis_db) -> None:
    assert "stop it before it is removed" in act_on(admin_client, "remove", neuron)
    redis_db.delete(keys.heartbeat_key("beast"))
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert Neuron.objects.get().status == NeuronStatus.AWAY
    assert "beast is forgotten" in act_on(admin_client, "remove", neuron)
    assert not Neuron.objects.exists()


def test_an_invitation_is_shown_once_and_revoked(admin_client, shared_redis) -> None:
    add = reverse("admin:fleet_invitation_add")
    services.share_record(actor=COMMAND, address="", is_tls=False, certificate="")
    refused = admin_client.post(add, {"neuron_name": "beast", "address": ""})
    assert "no other host can reach this Redis" in html.unescape(refused.content.decode())
    services.share_record(actor=COMMAND, address="10.0.0.5:7000", is_tls=False, certificate="")
    assert b"letters, digits" in admin_client.post(add, {"neuron_name": "a b"}).content
    shown = admin_client.post(add, {"neuron_name": "beast", "address": ""})
    assert "no-store" in shown["Cache-Control"]
    found = re.search(r"neuron --join (hx1\.[\w-]+)", shown.content.decode())
    assert found is not None
    assert decode_joining(found[1]).neuron == "beast"
    assert "neuron-beast" in shared_redis.acl_users()
    assert "beast" in page(admin_client, "invitation")
    row = Invitation.objects.get()
    assert row.secret_sha256 not in page(admin_client, "invitation", "change", row.pk)
    admin_client.post(reverse("admin:fleet_invitation_delete", args=[row.pk]), {"post": "yes"})
    assert not Invitation.objects.exists()
    assert "neuron-beast" not in shared_redis.acl_users()


def test_the_policy(admin_client) -> None:
    add = reverse("admin:fleet_fleetpolicy_add")
    assert admin_client.post(add, {"admission": "click"}).status_code == 302
    assert FleetPolicy.objects.get().admission == "click"
    assert admin_client.get(add).status_code == 403
    change = reverse("admin:fleet_fleetpolicy_change", args=[1])
    admin_client.post(change, {"admission": "automatic"})
    assert FleetPolicy.objects.get().admission == "automatic"
    assert AuditEntry.objects.filter(action="fleet.admission").count() == 2


NOUNS = ("neuron", "device", "cataloguemodel", "alias", "replica", "loadjob")


def test_who_may_only_look_changes_nothing(model, neuron, sent) -> None:
    client = staff("looker", "view_neuron", "view_cataloguemodel", "view_loadjob")
    act_on(client, "drain", neuron)
    assert NeuronWish.objects.get().drain_wanted_at is None
    assert client.get(reverse("admin:fleet_invitation_add")).status_code == 403
    assert "tiny" in page(client, "cataloguemodel")
    act(client, "cataloguemodel", "load_selected", model)
    assert not LoadJob.objects.exists()


def test_every_list_and_row_shows(admin_client, model, beat, build, sent) -> None:
    services.alias_create(actor=COMMAND, name="nick", model=model)
    limited = build.device(total_memory_bytes=6 * GIB, installed_memory_bytes=16 * GIB)
    beat(devices=[limited])
    services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    loaded = build.replica(report=build.report(), stats=build.stats(in_flight=3))
    beat(devices=[limited], replicas=[loaded])
    Neuron.objects.update(problems=["driver 1 does not match library 2"])
    assert admin_client.get(reverse("admin:index")).status_code == 200
    shown = {noun: page(admin_client, noun) for noun in NOUNS}
    for noun, table in zip(
        NOUNS, (Neuron, Device, CatalogueModel, Alias, Replica, LoadJob), strict=True
    ):
        assert "tiny" in shown[noun] or noun in {"neuron", "device"}
        page(admin_client, noun, "change", table.objects.get().pk)
    for noun in ("neuron", "device"):
        assert "a processor" in shown[noun] and "6.0 GiB (limit, of 16.0 GiB)" in shown[noun]
    assert "driver 1 does not match library 2" in shown["neuron"]


def test_a_list_costs_the_same_however_many_rows(
    admin_client, model, beat, build, django_assert_max_num_queries
) -> None:
    for name in "abcdefgh":
        beat(name, replicas=[build.replica(stats=build.stats())])
        LoadJob.objects.create(model=model, model_name="tiny", neuron=Neuron.objects.get(name=name))
    for noun in NOUNS:
        with django_assert_max_num_queries(14):
            page(admin_client, noun)


def load(client: Client, model: CatalogueModel) -> str:
    return act(client, "cataloguemodel", "load_selected", model)


def test_load_goes_where_it_fits_and_ends_on_the_job(admin_client, model, beat, sent) -> None:
    assert "No neuron that could run tiny" in load(admin_client, model)
    assert sent.tasks == []
    beat()
    html = load(admin_client, model)
    for words in ("Loading tiny on beast", "waiting for the neuron", "hx-get"):
        assert words in html
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
    html = load(admin_client, model)
    assert "Reloading tiny on beast" in html and "no other neuron has room" in html
    assert LoadJob.objects.get().kind == "reload"


def test_load_on_a_chosen_neuron(admin_client, model, beat, sent) -> None:
    beat(name="beast")
    beat(name="beauty")

    def load(**form: str) -> str:
        return act(admin_client, "cataloguemodel", "load_selected_on_neuron", model, **form)

    assert "beauty" in load()
    assert "This field is required" in load(chosen="1", neuron="")
    assert not LoadJob.objects.exists()
    chosen = str(Neuron.objects.get(name="beauty").pk)
    assert "Loading tiny on beauty" in load(chosen="1", neuron=chosen)
    assert LoadJob.objects.get().neuron.name == "beauty"


def test_unload_and_reload_from_both_lists(admin_client, model, beat, build, sent) -> None:
    assert "not loaded anywhere" in act(admin_client, "cataloguemodel", "unload_selected", model)
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
    message = "Unloading tiny from beast"
    assert message in act(admin_client, "cataloguemodel", "unload_selected", model)
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
    assert "Redis does not answer" in act(admin_client, "cataloguemodel", "load_selected", model)
    sent.broker_is_away = True
    html = act(admin_client, "cataloguemodel", "unload_selected", model)
    assert "nothing was sent" in html


def test_a_job_shows_its_progress_and_its_end(admin_client, model, beat, build, sent) -> None:
    beat()

    def shown(**state) -> str:
        job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
        values = {"job_id": str(job.pk), "status": ReplicaStatus.LOADING}
        beat(replicas=[build.replica(**values | state)])
        return page(admin_client, "loadjob")

    html = shown(progress=LoadProgress(stage=LoadStage.DOWNLOADING, done=25, total=100))
    assert "downloading 25 %" in html
    assert 'aria-valuenow="25"' in html
    quantising = LoadProgress(
        stage=LoadStage.WEIGHTS, done=3, total=4, unit="tensors", detail="quantising to q4"
    )
    html = shown(progress=quantising)
    assert "weights 75 % (3 of 4 tensors), quantising to q4" in html
    failure = LoadFailure(code="does_not_fit", message="needs 8 GB, has 4 GB")
    assert "needs 8 GB, has 4 GB" in shown(status=ReplicaStatus.FAILED, failure=failure)
    shown(progress=LoadProgress(stage=LoadStage.WARMUP, done=62, total=100, unit="steps"))
    html = shown(status=ReplicaStatus.READY)
    assert "loaded 100 %" in html and "warmup" not in html, "not its last stage"


def test_a_replica_reports_what_it_took_in_words(admin_client, model, beat, build) -> None:
    def shown(**changes) -> str:
        beat(replicas=[build.replica(**changes)])
        html = page(admin_client, "replica", "change", Replica.objects.get().pk)
        return html.replace("&#x27;", "'").replace("\xa0", " ")

    loading = shown(status=ReplicaStatus.LOADING, report=None)
    assert "Not loaded yet" in loading
    reason = "1,024 tokens: bound by prompt speed, the model's own are 8,192"
    took = {
        "kv_bytes": 1000**2,
        "kv_dtype": "int8",
        "adapter_bytes": 500_000,
        "actual_bytes": 4 * 1000**2,
        "estimated_bytes": 5 * 1000**2,
        "quantization": "q4 things",
        "quality": "KL 0.012 nats a token against BF16",
    }
    words, _, report = shown(report=build.report(context_reason=reason, **took)).partition(
        "Load report"
    )
    assert took["quality"] in words and "q4 things" in words
    assert "1,024 tokens" in report and "<pre>" not in report
    assert reason in words
    room = "976.6 KiB int8 KV and 488.3 KiB for adapters"
    assert f"3.8 MiB, of them {room}; 4.8 MiB were estimated (+25.0%)" in words


def test_cancelling_a_job(admin_client, model, beat, build, sent) -> None:
    beat()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    assert "Cancelling the load" in act(admin_client, "loadjob", "cancel_selected", job)
    beat(replicas=[build.replica(job_id=str(job.pk), status=ReplicaStatus.DRAINING)])
    job.refresh_from_db()
    assert job.status == LoadJobStatus.CANCELLED
    assert "has ended" in act(admin_client, "loadjob", "cancel_selected", job)
