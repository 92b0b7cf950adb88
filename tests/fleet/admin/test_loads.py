"""The admin's actions that load, reload and unload, and how jobs and replicas show."""

from __future__ import annotations

import pytest
import redis
from django.test import Client

from fleet import services
from fleet.lifecycles import LoadJobStatus
from fleet.live import reading as live
from fleet.models import CatalogueModel, LoadJob, Neuron, Replica
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from metering.actor import COMMAND
from tests.fleet.admin.admin_pages import act, page

pytestmark = pytest.mark.django_db(transaction=True)


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
