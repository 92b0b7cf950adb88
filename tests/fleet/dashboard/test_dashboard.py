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

from fleet.dashboard.board import board_of
from fleet.models import LoadJob, Replica
from fleet.overview.selector import fleet_overview
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.held import BROKE_WORKER
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.protocol.refusals import Refused, encode_field, refusals_key
from tests.metering.callers import staff, text_of

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3
BOARD, DO = "/admin/dashboard/board", "/admin/dashboard/do"
FAILED = {"outcome": "failed", "code": "engine_crashed", "message": "Its engine stopped."}


def push(client: Client, command: str, *, status: int = 200) -> str:
    """One of the board's buttons, as htmx sends it."""
    response = client.post(
        DO, {"do": command}, headers={"hx-request": "true", "hx-target": "board"}
    )
    assert response.status_code == status
    return response.content.decode()


def test_an_empty_fleet_shows_what_to_do_next(admin_client, publish) -> None:
    text = text_of(admin_client, "/admin/")
    assert "Let a host join" in text and "Add a model" in text and "Make an API key" in text
    assert board_of(fleet_overview())["steps"] == ["neuron", "model"]


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
    assert "1 waiting, 40 tok/s" in text and "1 ready, 0 to 1 wanted" in text
    assert board_of(fleet_overview())["neurons"][0]["memory"] == "8.0 GiB of 16.0 GiB"
    assert "What to do next" not in text

    def colour() -> str:
        (neuron,) = board_of(fleet_overview())["neurons"]
        (device,) = neuron["devices"]
        return {one["label"]: one["color"] for one in device["segments"]}["tiny 6.0 GiB"]

    alone = colour()
    other = build.replica(model="aardvark", devices=["cuda:0"], memory_bytes=GIB)
    beat(devices=[card], replicas=[other, loaded])
    assert colour() == alone, "it stays when others load"


def test_a_notice_follows_its_job_and_an_error_is_not_repeated(
    admin_client, model, beat, build, sent
) -> None:
    beat()
    text = push(admin_client, "load model tiny")
    (job,) = LoadJob.objects.all()
    assert "Loading tiny on beast" in text and "load on beast: waiting for the neuron" in text
    assert f'name="job" value="{job.pk}"' in text and "hx-notice hx-good" not in text
    assert "tiny: load on beast" in text_of(admin_client, f"{BOARD}?job={job.pk}")
    is_shown = {"active": True, "unloaded": True, "loaded": False, "problems": False}
    for shown, is_listed in is_shown.items():
        listed = text_of(admin_client, f"{BOARD}?shown={shown}")
        assert ('id="open-model-tiny"' in listed) == is_listed, shown

    def reported(status: ReplicaStatus, **changes: Any) -> str:
        beat(replicas=[build.replica(job_id=str(job.pk), status=status, **changes)])
        return text_of(admin_client, f"{BOARD}?job={job.pk}&job=x&job={uuid.uuid4()}")

    progress = LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=4, unit="tensors")
    text = reported(ReplicaStatus.LOADING, progress=progress)
    assert "load on beast: weights 25%" in text and 'aria-valuenow="25"' in text
    failure = LoadFailure(code="bad_file", message="There is no such file")
    text = reported(ReplicaStatus.FAILED, failure=failure)
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
    for asked in ("Unload tiny?", "Unload tiny from beast?", "Drain beast? Nothing new"):
        assert f'data-ask="{asked}' in board
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
    sent.broker_is_away = True
    assert "hx-bad" in push(admin_client, "load model tiny")


def test_buttons_are_for_those_who_may_on_our_own_pages(model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])
    client = staff("olga")
    text = text_of(client, "/admin/")
    assert 'name="do"' not in text and "Spent today" not in text and "Newest changes" not in text
    for command in ("load model tiny", "drain neuron beast"):
        push(client, command, status=403)
    assert Client().post(DO)["Location"].startswith("/admin/login/")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    push(client, "load model tiny", status=403)
    assert not LoadJob.objects.exists()


def test_the_front_door_leads_on_by_who_asks() -> None:
    User.objects.create_user("mia", password="a long password")
    member = Client()
    login = {"username": "mia", "password": "a long password"}
    assert member.post("/login/", login)["Location"] == "/"
    assert member.get("/")["Location"] == "/playground/"
    assert staff("olga").get("/")["Location"] == "/admin/"
    assert Client().get("/")["Location"] == member.post("/logout/")["Location"] == "/login/"
    assert member.get("/usage/")["Location"] == "/login/?next=/usage/"


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
