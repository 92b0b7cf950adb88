"""The operator's dashboard: what it shows, what its buttons do, and where ``/`` leads."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from fleet import neuron_client
from fleet.dashboard.board import board_of
from fleet.dashboard.rows import progress_of_model
from fleet.models import LoadJob, Replica
from fleet.overview.lines import JobLine
from fleet.overview.selector import fleet_overview
from inference.neuron.replicas.engine_process import EngineLogs
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.held import BROKE_WORKER
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.protocol.refusals import Refused, encode_field, refusals_key
from metering.models import RequestRecord
from tests.metering.callers import person, staff, text_of

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3
BOARD, DO = "/admin/dashboard/board", "/admin/dashboard/do"


def push(client: Client, command: str, *, status: int = 200) -> str:
    """One of the board's buttons, as htmx sends it."""
    response = client.post(
        DO, {"do": command}, headers={"hx-request": "true", "hx-target": "board"}
    )
    assert response.status_code == status
    return response.content.decode()


def a_failed_request(neuron: str) -> uuid.UUID:
    request_id = uuid.uuid4()
    RequestRecord.objects.create(
        request_id=request_id,
        at=timezone.now(),
        account="research",
        model="tiny",
        neuron=neuron,
        endpoint="/v1/chat/completions",
        status=200,
        outcome="failed",
        code="engine_crashed",
        message="Its engine stopped.",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        cost_micro_usd=0,
        duration_ms=10,
    )
    return request_id


def job_line(kind: str, status: str, neuron: str = "beast") -> JobLine:
    return JobLine(
        id=f"{kind}-{neuron}",
        kind=kind,
        model="tiny",
        neuron=neuron,
        status=status,
        stage="",
        progress_fraction=None,
        eta_s=None,
    )


def test_a_model_shows_how_its_last_job_on_a_neuron_ended() -> None:
    newest_first = (
        job_line("unload", "succeeded"),
        job_line("load", "succeeded"),
        job_line("load", "failed", "attic"),
        job_line("sleep", "succeeded"),
    )
    words = [progress.text for progress in progress_of_model(newest_first)]
    assert words == ["unloaded on beast", "load failed on attic"]
    under_way = (job_line("reload", "running"), *newest_first)
    rows = progress_of_model(under_way)
    assert [one.text.partition(" on")[0] for one in rows] == ["reload", "load failed"]


def test_a_models_colour_stays_when_others_load(admin_client, model, beat, build) -> None:
    def colours() -> dict[str, str]:
        (neuron,) = board_of(fleet_overview()).neurons
        (device,) = neuron.devices
        return {one.label.split()[0]: one.color for one in device.segments}

    def held(name: str) -> Any:
        return build.replica(model=name, devices=["cuda:0"], memory_bytes=GIB)

    card = build.device(kind="cuda")
    beat(devices=[card], replicas=[held("tiny")])
    alone = colours()["tiny"]
    beat(devices=[card], replicas=[held("aardvark"), held("tiny")])
    assert colours()["tiny"] == alone


def test_an_empty_fleet_shows_what_to_do_next(admin_client, publish) -> None:
    text = text_of(admin_client, "/admin/")
    assert "Let a host join" in text and "Add a model" in text and "Make an API key" in text
    assert board_of(fleet_overview()).steps == ("neuron", "model")


def test_what_is_loaded_where(admin_client, model, beat, build) -> None:
    card = build.device(kind="cuda", utilization_percent=71, temperature_c=63, power_w=250.0)
    loaded = build.replica(
        devices=["cuda:0"],
        memory_bytes=6 * GIB,
        report=build.report(),
        stats=build.stats(in_flight=2, queue_depth=1, kv_blocks_used=16, decode_tokens_per_s=40.0),
    )
    beat(devices=[card], replicas=[loaded])
    text = text_of(admin_client, BOARD)
    assert "71 % busy, 63 °C, 250 W" in text
    assert "tiny 6.0 GiB" in text and "other 2.0 GiB" in text
    assert "25 %" in text and "40.0" in text
    assert "1 waiting, 40 tok/s" in text
    assert "What to do next" not in text


def test_a_load_shows_its_progress_where_it_was_started(
    admin_client, model, beat, build, sent
) -> None:
    beat()
    text = push(admin_client, "load model tiny")
    assert "Loading tiny on beast" in text
    assert "load on beast: waiting for the neuron" in text
    (job,) = LoadJob.objects.all()
    progress = LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=4, unit="tensors")
    loading = build.replica(job_id=str(job.pk), status=ReplicaStatus.LOADING, progress=progress)
    beat(replicas=[loading])
    text = text_of(admin_client, BOARD)
    assert "load on beast: weights 25%" in text
    assert 'aria-valuenow="25"' in text
    beat(replicas=[build.replica(job_id=str(job.pk))])
    assert "loaded on beast" in text_of(admin_client, BOARD)


def test_a_notice_follows_its_job_and_an_error_is_not_repeated(
    admin_client, model, beat, build, sent
) -> None:
    beat()
    text = push(admin_client, "load model tiny")
    (job,) = LoadJob.objects.all()
    assert f'name="job" value="{job.pk}"' in text and "hx-notice hx-good" not in text
    assert "tiny: load on beast" in text_of(admin_client, f"{BOARD}?job={job.pk}")
    failed = build.replica(
        job_id=str(job.pk),
        status=ReplicaStatus.FAILED,
        failure=LoadFailure(code="bad_file", message="There is no such file"),
    )
    beat(replicas=[failed])
    text = text_of(admin_client, f"{BOARD}?job={job.pk}&job=x&job={uuid.uuid4()}")
    assert '<p class="hx-notice hx-bad">tiny: load failed on beast</p>' in text
    assert "Loading tiny" not in text and 'name="job"' not in text
    seen = re.sub(r'title="[^"]*"', "", text)
    assert seen.count("There is no such file") == 2, "it needs attention, and its replica's row"
    assert "notices" not in text_of(admin_client, BOARD)


def test_buttons_unload_reload_drain_and_cancel(admin_client, model, beat, build, sent) -> None:
    beat(replicas=[build.replica(spec_digest="0123456789abcdef")])
    (replica,) = Replica.objects.all()
    board = text_of(admin_client, BOARD)
    assert "tiny on beast is outdated: reload it" in board
    assert 'href="/admin/dashboard/model?name=tiny">its page</a>' in board
    push(admin_client, f"reload replica {replica.pk}")
    assert LoadJob.objects.filter(kind="reload").count() == 1
    push(admin_client, f"sleep replica {replica.pk}")  # it cannot: that is all that happens
    push(admin_client, f"wake replica {replica.pk}")
    push(admin_client, "sleep model nothing")
    assert LoadJob.objects.count() == 1
    push(admin_client, f"unload replica {replica.pk}")
    assert LoadJob.objects.filter(kind="unload").count() == 1
    assert "is being drained" in push(admin_client, "drain neuron beast")
    assert "takes models and requests again" in push(admin_client, "resume neuron beast")
    assert "There is no such action" in push(admin_client, "sell neuron beast")
    for gone in ("unload replica 999999", "unload replica x", "load model x", "cancel job x"):
        assert "not there any more" in push(admin_client, gone)


def test_without_scripts_a_button_leads_back_to_the_dashboard(admin_client, model, beat, sent):
    beat()
    response = admin_client.post(DO, {"do": "load model tiny"}, follow=True)
    assert response.redirect_chain == [("/admin/", 302)]
    assert "Loading tiny on beast" in response.content.decode()
    LoadJob.objects.all().delete()
    sent.broker_is_away = True
    assert "hx-bad" in push(admin_client, "load model tiny")


def test_buttons_are_for_those_who_may(model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])
    client = staff("olga")
    text = text_of(client, "/admin/")
    assert 'name="do"' not in text and "Spent today" not in text and "Newest changes" not in text
    push(client, "load model tiny", status=403)
    push(client, "drain neuron beast", status=403)
    assert not LoadJob.objects.exists()


def test_strangers_and_members_are_led_to_the_log_in() -> None:
    member = person("mia")
    for path in (BOARD, DO, "/admin/dashboard/outdated"):
        for client in (Client(), member):
            response = client.post(path) if path == DO else client.get(path)
            assert response.status_code == 302
            assert response["Location"].startswith("/admin/login/")


def test_a_form_of_elsewhere_does_nothing(model, beat, sent) -> None:
    beat()
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    assert client.post(DO, {"do": "load model tiny"}).status_code == 403
    assert not LoadJob.objects.exists()


def test_the_front_door_leads_on_by_who_asks() -> None:
    member = person("mia")
    assert Client().get("/")["Location"] == "/login/"
    assert member.get("/")["Location"] == "/playground/"
    assert staff("olga").get("/")["Location"] == "/admin/"
    assert Client().get("/favicon.ico")["Location"].startswith("/static/helexa/favicon.svg")


def test_a_member_logs_in_and_out() -> None:
    User.objects.create_user("mia", password="a long password")
    client = Client()
    response = client.post("/login/", {"username": "mia", "password": "a long password"})
    assert response["Location"] == "/"
    assert client.get("/usage/").status_code == 200
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/usage/")["Location"] == "/login/?next=/usage/"


def test_what_is_outdated_is_reloaded_where_it_is_shown(admin_client, model, beat, build, sent):
    beat(replicas=[build.replica(spec_digest="0123456789abcdef")])
    catalogue = text_of(admin_client, reverse("admin:fleet_cataloguemodel_changelist"))
    assert 'hx-get="/admin/dashboard/outdated"' in catalogue
    assert "Reload tiny now" in text_of(admin_client, "/admin/dashboard/outdated")
    response = admin_client.post(
        DO,
        {"do": "reload model tiny"},
        headers={"hx-request": "true", "hx-target": "outdated"},
    )
    text = response.content.decode()
    assert "Reloading tiny on beast" in text and 'id="outdated"' in text
    assert "reload on beast: waiting for the neuron" in text


def test_a_replicas_page_shows_its_report_and_errors(admin_client, model, beat, build) -> None:
    beat(replicas=[build.replica(report=build.report())])
    (replica,) = Replica.objects.all()
    where = reverse("admin:fleet_replica_change", args=[replica.pk])
    text = text_of(admin_client, where)
    assert "1.0 GiB for 1,024 tokens (64 blocks of 16)" in text
    assert "temperature 0.6, top_k 20" in text
    assert "None in the last 24 hours" in text
    request_id = a_failed_request("beast")
    text = text_of(admin_client, where)
    assert "engine_crashed: Its engine stopped." in text
    assert f'href="/requests/{request_id.hex}"' in text
    assert 'href="/requests/?model=tiny&amp;neuron=beast"' in text


def test_an_engines_log_is_asked_of_its_neuron(
    admin_client, beat, build, redis_db, monkeypatch
) -> None:
    beat(replicas=[build.replica()])
    (replica,) = Replica.objects.all()
    logs = EngineLogs(redis_db, neuron="beast")
    logs.writer("tiny")(b"CUDA <out> of memory\n")

    class Answering:
        """Stands where Celery is."""

        def send_task(self, _name: str, args: list[Any], **_options: Any) -> None:
            logs.send(*args)

    monkeypatch.setattr(neuron_client, "app", Answering())
    where = "/admin/dashboard/log/beast/tiny"
    assert where in text_of(admin_client, reverse("admin:fleet_replica_change", args=[replica.pk]))
    assert "CUDA &lt;out&gt; of memory" in text_of(admin_client, where)
    beat()  # a reload: the replica's row goes, and another comes
    assert not Replica.objects.exists()
    assert "CUDA &lt;out&gt; of memory" in text_of(admin_client, where)
    beat(replicas=[build.replica(model="org/tiny")])
    (replica,) = Replica.objects.all()
    by_path = text_of(admin_client, reverse("admin:fleet_replica_change", args=[replica.pk]))
    assert "/admin/dashboard/log/beast/org/tiny" in by_path
    logs = EngineLogs(redis_db, neuron="beast")
    assert "No engine for tiny has run" in text_of(admin_client, where)
    assert "no neuron" in text_of(admin_client, "/admin/dashboard/log/nobody/tiny").lower()
    assert Client().get(where).status_code == 302


def test_what_neurons_report_is_text_on_the_board(admin_client, beat, build) -> None:
    """A neuron may be hostile, and its word is shown to an operator."""
    script = "<script>alert(1)</script>"
    failed = build.replica(
        model=f'a"{script}',
        status=ReplicaStatus.FAILED,
        failure=LoadFailure(code="bad_file", message=script),
        devices=["cuda:0"],
        memory_bytes=GIB,
    )
    beat(replicas=[failed], devices=[build.device(kind="cuda", name=f'"{script}')])
    text = text_of(admin_client, BOARD)
    assert script not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_counts_and_changes_lead_to_what_they_are_of(admin_client, model, redis_db, beat) -> None:
    beat()
    key = refusals_key(time.time())
    redis_db.hincrby(key, encode_field(Refused("queue_full", "research")), 17)
    redis_db.hincrby(key, encode_field(Refused(BROKE_WORKER, "research", "hx-1")), 5)
    text = text_of(admin_client, BOARD)
    pages = {1: "/requests/", 2: "/usage/", 3: "/admin/fleet/replica/", 5: "/usage/accounts"}
    for number, address in pages.items():
        assert f'<a id="tile-{number}" href="{address}">' in text
    assert '<a id="tile-4" href="/requests/?outcome=refused&amp;since=2h">17</a>' in text
    assert '<a id="refused-queue_full" href="/requests/?code=queue_full&amp;since=2h">' in text
    refusals = text[text.index('id="refusals-title"') :]
    assert BROKE_WORKER not in refusals, "those have failed"
    changes = text[text.index('id="audit-title"') :]
    assert 'href="/admin/dashboard/model?name=tiny">tiny</a>' in changes
