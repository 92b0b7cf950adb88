"""The operator's dashboard, the pages of a model and of a neuron, and where ``/`` leads."""

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

from fleet import services
from fleet.dashboard.board import BoardQuery, board_of
from fleet.models import CatalogueModel, Download, LoadJob, Neuron, Replica
from fleet.overview import fleet_overview
from inference.protocol.delivery import BROKE_WORKER
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import (
    AsleepBytes,
    LoadFailure,
    LoadProgress,
    LoadStage,
    StageReport,
)
from inference.protocol.refusals import Refused, encode_field, refusals_key
from inference.version import VERSION
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.fleet.conftest import GIB, change, offer
from tests.metering.callers import recorded, staff, text_of, used

pytestmark = pytest.mark.django_db(transaction=True)

BOARD, DO = "/admin/dashboard/board", "/admin/dashboard/do"
FAILED = {"outcome": "failed", "code": "engine_crashed", "message": "Its engine stopped."}


def push(
    client: Client, command: str, *, status: int = 200, target: str = "board", home: str = ""
) -> str:
    """One of the buttons, as htmx sends it."""
    headers = {"hx-request": "true", "hx-target": target}
    response = client.post(DO, {"do": command, "home": home}, headers=headers)
    assert response.status_code == status
    return response.content.decode()


def test_what_is_loaded_where_and_its_counts(admin_client, model, redis_db, beat, build) -> None:
    card = build.device(kind="cuda", utilization_percent=71, temperature_c=63, power_w=250.0)
    stats = build.stats(in_flight=2, queue_depth=1, decode_tokens_per_s=40.0)
    held = {"devices": ["cuda:0"], "memory_bytes": 6 * GIB}
    loaded = build.replica(report=build.report(), stats=stats, **held)
    beat(devices=[card], replicas=[loaded])
    key = refusals_key(time.time())
    redis_db.hincrby(key, encode_field(Refused("queue_full", "research")), 17)
    redis_db.hincrby(key, encode_field(Refused(BROKE_WORKER, "research", "hx-1")), 5)
    text = text_of(admin_client, BOARD)
    for words in (
        *("71 % busy, 63 °C, 250 W", "tiny 6.0 GiB", "other 2.0 GiB", "1 waiting, 40 tok/s"),
        '<a id="tile-4" href="/requests/?outcome=refused&amp;since=2h">17</a>',
        '<a id="refused-queue_full" href="/requests/?code=queue_full&amp;since=2h">',
        'href="/admin/dashboard/model?name=tiny">tiny</a>',
    ):
        assert words in text
    assert board_of(fleet_overview())["neurons"][0]["memory"] == "8.0 GiB of 16.0 GiB"
    refusals = text[text.index('id="refusals-title"') :]
    assert BROKE_WORKER not in refusals, "those have failed"

    def colour() -> str:
        (neuron,) = board_of(fleet_overview())["neurons"]
        (device,) = neuron["devices"]
        return {one["label"]: one["color"] for one in device["segments"]}["tiny 6.0 GiB"]

    alone = colour()
    # A neuron may be hostile, and its word is shown to an operator.
    script = "<script>alert(1)</script>"
    failure = LoadFailure(code="bad_file", message=script)
    hostile = {"model": f'a"{script}', "status": ReplicaStatus.FAILED, "failure": failure}
    other = build.replica(**held | {"memory_bytes": GIB}, **hostile)
    beat(devices=[build.device(kind="cuda", name=f'"{script}')], replicas=[other, loaded])
    assert colour() == alone, "it stays when others load"
    text = text_of(admin_client, BOARD)
    assert script not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_notice_follows_its_job(admin_client, model, beat, build, sent) -> None:
    beat()
    text = push(admin_client, "load model tiny")
    (job,) = LoadJob.objects.all()
    assert "Loading tiny on beast" in text and "load on beast: waiting for the neuron" in text
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
    seen = re.sub(r'title="[^"]*"', "", text)
    assert seen.count("There is no such file") == 2, "it needs attention, and its replica's row"


def test_buttons_unload_reload_drain_and_cancel(admin_client, model, beat, build, sent) -> None:
    beat(replicas=[build.replica(spec_digest="0123456789abcdef")])
    (replica,) = Replica.objects.all()
    board = text_of(admin_client, BOARD)
    for asked in ("Unload tiny?", "Unload tiny from beast?", "Drain beast? Nothing new"):
        assert f'data-ask="{asked}' in board
    # Models of its kind cannot sleep: that is not offered.
    assert 'value="sleep ' not in board + text_of(admin_client, PART)
    for verb in ("reload replica", "sleep replica", "wake replica", "sleep model nothing"):
        push(admin_client, f"{verb} {replica.pk}")
    assert [job.kind for job in LoadJob.objects.all()] == ["reload"]
    push(admin_client, f"unload replica {replica.pk}")
    assert LoadJob.objects.filter(kind="unload").count() == 1
    for command, words in (
        ("drain neuron beast", "is being drained"),
        ("resume neuron beast", "takes models and requests again"),
        ("sell neuron beast", "There is no such action"),
        ("unload replica 999999", "not there any more"),
        ("unload replica x", "not there any more"),
        ("load model x", "not there any more"),
        ("cancel job x", "not there any more"),
    ):
        assert words in push(admin_client, command)
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


def test_the_front_door_leads_on_by_who_asks(admin_client, publish) -> None:
    User.objects.create_user("mia", password="a long password")
    member = Client()
    login = {"username": "mia", "password": "a long password"}
    assert member.post("/login/", login)["Location"] == "/"
    assert member.get("/")["Location"] == "/playground/"
    assert staff("olga").get("/")["Location"] == "/admin/"
    assert Client().get("/")["Location"] == member.post("/logout/")["Location"] == "/login/"
    assert member.get("/usage/")["Location"] == "/login/?next=/usage/"
    assert board_of(fleet_overview())["steps"] == ["neuron", "model"]


PART = "/admin/dashboard/model-home?name=tiny"


@pytest.fixture
def loaded(beat, build) -> None:
    card = build.device(kind="cuda", name="a card")
    report = build.report(asleep=AsleepBytes(device_bytes=GIB, host_bytes=0))
    here = build.replica(devices=["cuda:0"], stats=build.stats(in_flight=3), report=report)
    beat(devices=[card], replicas=[here])


def test_what_is_outdated_is_reloaded_where_it_is_shown(admin_client, model, beat, build, sent):
    outdated = {"spec_digest": "0123456789abcdef"}
    beat(replicas=[build.replica(**outdated)])
    assert "Reload tiny now" in text_of(admin_client, "/admin/dashboard/outdated")
    text = push(admin_client, "reload model tiny", target="outdated")
    assert "reload on beast: waiting for the neuron" in text and 'id="outdated"' in text
    # One on several hosts is offered nothing that is refused.
    values: dict[str, Any] = {"execution": "", "estimated_bytes": 1, "kv_bytes": 1}
    stages = [
        StageReport(device="cuda:0", layers=layers, neuron=neuron, **values)
        for layers, neuron in (((0, 2), ""), ((2, 4), "attic"))
    ]
    beat(replicas=[build.replica(report=build.report(stages=stages), **outdated)])
    for path in (PART, "/admin/dashboard/outdated", "/admin/"):
        text = text_of(admin_client, path)
        assert 'value="sleep ' not in text and 'value="reload ' not in text, path
    text = text_of(admin_client, PART)
    assert "outdated" in text and 'value="unload model tiny"' in text


def test_a_models_page_is_its_home(admin_client, model, loaded, beat, sent) -> None:
    def pushed(verb: str, client: Client = admin_client, **options: Any) -> str:
        return push(client, f"{verb} model tiny", target="model-home", home="tiny", **options)

    def offered(path: str = PART) -> set[str]:
        return set(re.findall(r'value="(\w+) model tiny"', text_of(admin_client, path)))

    where = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    for account, requests in (("research", 7), ("ops", 2_500)):
        used(account, requests=requests, completion_tokens=234, cost_micro_usd=requests)
    failed = recorded(neuron="attic", **FAILED)
    text = text_of(admin_client, where)
    for words in (
        'href="/playground/?model=tiny"',
        'hx-get="/admin/dashboard/log/beast/tiny"',
        f'href="/requests/{failed}"',
        "Its engine stopped.",
    ):
        assert words in text
    common, _, folded = text.partition("Advanced: ")
    assert 'name="temperature"' not in common and 'name="temperature"' in folded
    users = text[text.index("Who uses it") :]
    assert users.index(">ops</a>") < users.index(">research</a>")
    looker = staff("olga", "view_cataloguemodel")
    text = text_of(looker, where)
    assert 'name="do"' not in text and "Who uses it" not in text and "beast" in text
    pushed("pin", looker, status=403)
    assert offered(where) >= {"sleep", "unload", "pin"}
    # Pinned, the whole page comes again, as its form shows the setting as well.
    headers = {"hx-request": "true", "hx-target": "model-home"}
    form = {"do": "pin model tiny", "home": "tiny"}
    assert admin_client.post(DO, form, headers=headers)["HX-Refresh"] == "true"
    assert CatalogueModel.objects.get().pinned
    entry = AuditEntry.objects.filter(action="model.update").latest("id")
    assert (entry.object_id, "pinned" in entry.detail) == ("tiny", True)
    assert "unpin" in offered() and not {"unload", "sleep"} & (offered() | offered(BOARD))
    pushed("unpin")
    assert not CatalogueModel.objects.get().pinned
    LoadJob.objects.all().delete()
    beat()
    assert "load" in offered() and "unload" not in offered()
    pushed("load")
    assert LoadJob.objects.get().kind == "load"
    change(model, enabled=False)
    text = text_of(admin_client, PART)
    assert "Not offered" in text and "It is loaded nowhere" in text and 'name="do"' not in text
    assert admin_client.get("/admin/dashboard/model-home?name=x").status_code == 404
    # One without chats is not tried in the playground.
    services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")
    for name, task in (("far", "text"), ("voice", "speech")):
        offer(name, source=f"upstream:box/{name}", task=task)
        text = text_of(admin_client, f"/admin/dashboard/model-home?name={name}")
        assert "An upstream serves it" in text and 'value="load ' not in text
        assert (f'href="/playground/?model={name}"' in text) == (task == "text")


def test_a_neurons_page_is_its_home(admin_client, model, loaded) -> None:
    neuron = Neuron.objects.get()
    download = {"source": "hf:org/large", "status": "running", "bytes_done": 1, "bytes_total": 4}
    Download.objects.create(neuron=neuron, **download)
    failed, elsewhere = (recorded(neuron=name, **FAILED) for name in ("beast", "attic"))
    text = text_of(admin_client, reverse("admin:fleet_neuron_change", args=[neuron.pk]))
    for words in (
        *("cuda:0", "3 running", f'href="/requests/{failed}"'),
        'href="/admin/dashboard/model?name=tiny">tiny</a>',
        'hx-get="/admin/dashboard/log/beast/tiny"',
    ):
        assert words in text
    assert elsewhere not in text
    part = text_of(admin_client, "/admin/dashboard/neuron-home?name=beast")
    assert "hf:org/large" in part and 'aria-valuenow="25"' in part
    text = push(admin_client, "drain neuron beast", target="neuron-home", home="beast")
    assert "is being drained" in text and 'id="neuron-home"' in text
    assert admin_client.get("/admin/dashboard/neuron-home?name=x").status_code == 404


def test_two_hundred_models_on_fifty_hosts_are_paged(admin_client, beat, build) -> None:
    def board(query: str = "") -> str:
        return text_of(admin_client, f"{BOARD}?{query}")

    def first(*query: BoardQuery) -> list[str]:
        rows = board_of(fleet_overview(), *query)
        return [rows[noun][0]["line"].name for noun in ("models", "neurons")]

    CatalogueModel.objects.bulk_create(
        CatalogueModel(name=f"model-{n:03}", source="path:/m") for n in range(200)
    )
    moments = dict.fromkeys(("status_since", "started_at", "last_seen_at"), timezone.now())
    Neuron.objects.bulk_create(
        Neuron(name=f"node-{n:02}", status="away", version=VERSION, **moments) for n in range(49)
    )
    stats = build.stats(in_flight=5, decode_tokens_per_s=31.5)
    beat("node-49", replicas=[build.replica(model="model-100", stats=stats)])
    text, unfolded = board(), board("flipped=node-49")
    assert first() == ["model-100", "node-49"], "what works comes first"
    kept = BoardQuery(kept_models="model-150", kept_neurons="node-30")
    assert first(kept) == ["model-150", "node-30"]
    assert "1 to 12 of 200" in text and "1 to 6 of 50" in text
    assert "model-015" not in text and "hx-device" not in text, "hosts are folded"
    assert unfolded.count('class="hx-device"') == 1 and "31.5" in unfolded
    # A refresh leaves the focus where it is: htmx gives it to the element with the same id.
    for page in (text, unfolded):
        assert len(page.encode()) <= 40_000
        stops = re.findall(r"<(?:a|button|select) [^>]*>", page)
        ids = [found[1] for stop in stops if (found := re.search(r' id="([^"]+)"', stop))]
        assert len(set(ids)) == len(ids) == len(stops)
    found = board("models=MODEL-19&neurons=node-4&shown=unloaded")
    assert found.count('<th scope="row">') == 10 and "model-190" in found
    for query, words in (
        ("models_page=9999", "193 to 200 of 200"),
        ("neurons=x", "No neuron has a name like that"),
        ("shown=nonsense&models_page=x", "1 to 12 of 200"),
    ):
        assert words in board(query)
    # The address follows, so that the page can be sent to a colleague.
    path = f"{BOARD}?models=19&models_page=&kept_models=a+b"
    assert admin_client.get(path)["HX-Replace-Url"] == "/admin/?models=19"
    same = {"hx-current-url": "http://testserver/admin/?models=19"}
    assert "HX-Replace-Url" not in admin_client.get(path, headers=same)
    assert "model-190" in text_of(admin_client, "/admin/?models=19")
