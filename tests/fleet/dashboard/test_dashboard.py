"""The operator's dashboard and the pages of a model and of a neuron: what they show, what their
buttons do, and where ``/`` leads."""

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
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage, StageReport
from inference.protocol.refusals import Refused, encode_field, refusals_key
from inference.version import VERSION
from metering.audit import COMMAND
from metering.models import AuditEntry
from tests.metering.callers import recorded, staff, text_of, used

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3
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


def test_what_is_loaded_where_and_where_counts_lead(
    admin_client, model, redis_db, beat, build
) -> None:
    card = build.device(kind="cuda", utilization_percent=71, temperature_c=63, power_w=250.0)
    loaded = build.replica(
        devices=["cuda:0"],
        memory_bytes=6 * GIB,
        report=build.report(),
        stats=build.stats(in_flight=2, queue_depth=1, kv_blocks_used=16, decode_tokens_per_s=40.0),
    )
    beat(devices=[card], replicas=[loaded])
    key = refusals_key(time.time())
    redis_db.hincrby(key, encode_field(Refused("queue_full", "research")), 17)
    redis_db.hincrby(key, encode_field(Refused(BROKE_WORKER, "research", "hx-1")), 5)
    text = text_of(admin_client, BOARD)
    pages = {1: "/requests/", 2: "/usage/", 3: "/admin/fleet/replica/", 5: "/usage/accounts"}
    for words in (
        "71 % busy, 63 °C, 250 W",
        "tiny 6.0 GiB",
        "other 2.0 GiB",
        "1 waiting, 40 tok/s",
        "1 ready, 0 to 1 wanted",
        *(f'<a id="tile-{number}" href="{address}">' for number, address in pages.items()),
        '<a id="tile-4" href="/requests/?outcome=refused&amp;since=2h">17</a>',
        '<a id="refused-queue_full" href="/requests/?code=queue_full&amp;since=2h">',
    ):
        assert words in text
    assert board_of(fleet_overview())["neurons"][0]["memory"] == "8.0 GiB of 16.0 GiB"
    assert "What to do next" not in text
    refusals = text[text.index('id="refusals-title"') :]
    assert BROKE_WORKER not in refusals, "those have failed"
    changes = text[text.index('id="audit-title"') :]
    assert 'href="/admin/dashboard/model?name=tiny">tiny</a>' in changes

    def colour() -> str:
        (neuron,) = board_of(fleet_overview())["neurons"]
        (device,) = neuron["devices"]
        return {one["label"]: one["color"] for one in device["segments"]}["tiny 6.0 GiB"]

    alone = colour()
    # A neuron may be hostile, and its word is shown to an operator.
    script = "<script>alert(1)</script>"
    failure = LoadFailure(code="bad_file", message=script)
    hostile = {"model": f'a"{script}', "status": ReplicaStatus.FAILED, "failure": failure}
    other = build.replica(devices=["cuda:0"], memory_bytes=GIB, **hostile)
    card = build.device(kind="cuda", name=f'"{script}')
    beat(devices=[card], replicas=[other, loaded])
    assert colour() == alone, "it stays when others load"
    text = text_of(admin_client, BOARD)
    assert script not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text


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


def test_the_front_door_leads_on_by_who_asks(admin_client, publish) -> None:
    User.objects.create_user("mia", password="a long password")
    member = Client()
    login = {"username": "mia", "password": "a long password"}
    assert member.post("/login/", login)["Location"] == "/"
    assert member.get("/")["Location"] == "/playground/"
    assert staff("olga").get("/")["Location"] == "/admin/"
    assert Client().get("/")["Location"] == member.post("/logout/")["Location"] == "/login/"
    assert member.get("/usage/")["Location"] == "/login/?next=/usage/"
    text = text_of(admin_client, "/admin/")
    assert "Let a host join" in text and "Add a model" in text and "Make an API key" in text
    assert board_of(fleet_overview())["steps"] == ["neuron", "model"]


def test_what_is_outdated_is_reloaded_where_it_is_shown(admin_client, model, beat, build, sent):
    beat(replicas=[build.replica(spec_digest="0123456789abcdef")])
    catalogue = text_of(admin_client, reverse("admin:fleet_cataloguemodel_changelist"))
    assert 'hx-get="/admin/dashboard/outdated"' in catalogue
    assert "Reload tiny now" in text_of(admin_client, "/admin/dashboard/outdated")
    text = push(admin_client, "reload model tiny", target="outdated")
    assert "Reloading tiny on beast" in text and 'id="outdated"' in text
    assert "reload on beast: waiting for the neuron" in text


pytestmark = pytest.mark.django_db(transaction=True)

PART = "/admin/dashboard/model-home?name=tiny"


@pytest.fixture
def loaded(beat, build) -> None:
    card = build.device(kind="cuda", name="a card")
    here = build.replica(devices=["cuda:0"], stats=build.stats(in_flight=3))
    beat(devices=[card], replicas=[here])


def test_a_model_on_several_hosts_is_offered_nothing_that_is_refused(
    admin_client, model, beat, build
) -> None:
    values: dict[str, Any] = {"execution": "", "estimated_bytes": 1, "kv_bytes": 1}
    stages = [
        StageReport(device="cuda:0", layers=layers, neuron=neuron, **values)
        for layers, neuron in (((0, 2), ""), ((2, 4), "attic"))
    ]
    divided = build.replica(spec_digest="0123456789abcdef", report=build.report(stages=stages))
    beat(replicas=[divided])
    for path in (PART, "/admin/dashboard/outdated", "/admin/"):
        text = text_of(admin_client, path)
        assert 'value="sleep ' not in text and 'value="reload ' not in text, path
    text = text_of(admin_client, PART)
    assert "outdated" in text and 'value="unload model tiny"' in text


def test_a_models_page_is_its_home(admin_client, model, loaded, beat, sent) -> None:
    home = {"target": "model-home", "home": "tiny"}
    where = reverse("admin:fleet_cataloguemodel_change", args=[model.pk])
    for account, requests in (("research", 7), ("ops", 2_500)):
        used(account, requests=requests, completion_tokens=234, cost_micro_usd=requests)
    failed = recorded(neuron="attic", **FAILED)
    text = text_of(admin_client, where)
    for words in (
        *(f'value="{verb} model tiny"' for verb in ("sleep", "unload", "pin")),
        'href="/playground/?model=tiny"',
        'href="/admin/dashboard/neuron?name=beast">beast</a>',
        'hx-get="/admin/dashboard/log/beast/tiny"',
        f'href="/requests/{failed}"',
        "Its engine stopped.",
    ):
        assert words in text
    common, _, folded = text.partition("Advanced: ")
    assert 'name="quantization"' in common and 'name="temperature"' not in common
    assert 'name="temperature"' in folded
    users = text[text.index("Who uses it") :]
    assert users.index(">ops</a>") < users.index(">research</a>")
    assert "2,500" in users and "234" in users and "$0.0025" in users
    assert 'href="/requests/?model=tiny&amp;account=ops"' in users
    looker = staff("olga", "view_cataloguemodel")
    text = text_of(looker, where)
    assert 'name="do"' not in text and "Who uses it" not in text and "beast" in text
    push(looker, "pin model tiny", status=403, **home)
    # Pinned, the whole page comes again, as its form shows the setting as well.
    pushed = {"do": "pin model tiny", "home": "tiny"}
    headers = {"hx-request": "true", "hx-target": "model-home"}
    assert admin_client.post(DO, pushed, headers=headers)["HX-Refresh"] == "true"
    assert CatalogueModel.objects.get().pinned
    entry = AuditEntry.objects.filter(action="model.update").latest("id")
    assert (entry.object_id, "pinned" in entry.detail) == ("tiny", True)
    assert 'value="unpin model tiny"' in text_of(admin_client, PART)
    for path in (PART, BOARD):
        text = text_of(admin_client, path)
        assert 'value="unload ' not in text and 'value="sleep ' not in text
    assert "kept loaded" in text
    push(admin_client, "unpin model tiny", **home)
    assert not CatalogueModel.objects.get().pinned
    text = push(admin_client, "unload model tiny", **home)
    assert 'id="model-home"' in text and "Unloading tiny from beast" in text
    LoadJob.objects.all().delete()
    beat()
    text = text_of(admin_client, PART)
    assert 'value="load model tiny"' in text and 'value="unload model tiny"' not in text
    push(admin_client, "load model tiny", **home)
    assert LoadJob.objects.get().kind == "load"
    model = CatalogueModel.objects.get()
    model.enabled = False
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["enabled"])
    text = text_of(admin_client, PART)
    assert "Not offered" in text and "It is loaded nowhere" in text
    assert 'name="do"' not in text
    assert admin_client.get("/admin/dashboard/model-home?name=x").status_code == 404
    # One without chats is not tried in the playground.
    services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")
    for name, task in (("far", "text"), ("voice", "speech")):
        far = {"name": name, "source": f"upstream:box/{name}", "task": task}
        services.catalogue_model_create(actor=COMMAND, **far)
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
        'id="neuron-home"',
        "cuda:0",
        "3 running",
        'href="/admin/dashboard/model?name=tiny">tiny</a>',
        f'href="/requests/{failed}"',
        'href="/requests/?neuron=beast">All of its requests</a>',
    ):
        assert words in text
    log = text[text.index("Engine's log of tiny") :]
    assert 'hx-get="/admin/dashboard/log/beast/tiny"' in log and elsewhere not in text
    part = text_of(admin_client, "/admin/dashboard/neuron-home?name=beast")
    assert "hf:org/large" in part and 'aria-valuenow="25"' in part
    text = push(admin_client, "drain neuron beast", target="neuron-home", home="beast")
    assert "is being drained" in text and 'id="neuron-home"' in text
    assert admin_client.get("/admin/dashboard/neuron-home?name=x").status_code == 404


def test_two_hundred_models_on_fifty_hosts_are_paged_and_searched(
    admin_client, beat, build
) -> None:
    CatalogueModel.objects.bulk_create(
        CatalogueModel(name=f"model-{n:03}", source="path:/m") for n in range(200)
    )
    moments = dict.fromkeys(("status_since", "started_at", "last_seen_at"), timezone.now())
    Neuron.objects.bulk_create(
        Neuron(name=f"node-{n:02}", status="away", version=VERSION, **moments) for n in range(49)
    )
    stats = build.stats(in_flight=5, decode_tokens_per_s=31.5)
    held = build.replica(model="model-100", stats=stats)
    beat("node-49", replicas=[held])
    text = text_of(admin_client, BOARD)
    assert text.count(" is away <a ") == 10 and "And 39 more." in text
    board = board_of(fleet_overview())
    first = [board[noun][0]["line"].name for noun in ("models", "neurons")]
    assert first == ["model-100", "node-49"], "what works comes first"
    assert "1 to 12 of 200" in text and "1 to 6 of 50" in text
    assert "model-015" not in text and "hx-device" not in text, "hosts are folded"
    second = text_of(admin_client, f"{BOARD}?models_page=2")
    assert 'name="models_page" value="2"' in second and "model-015" in second
    assert "193 to 200 of 200" in text_of(admin_client, f"{BOARD}?models_page=9999")
    unfolded = text_of(admin_client, f"{BOARD}?flipped=node-49")
    assert unfolded.count('class="hx-device"') == 1 and "31.5" in unfolded
    # A refresh leaves the focus where it is: htmx gives it to the element with the same id.
    for page in (text, unfolded):
        assert len(page.encode()) <= 40_000
        stops = re.findall(r"<(?:a|button|select) [^>]*>", page)
        ids = [found[1] for stop in stops if (found := re.search(r' id="([^"]+)"', stop))]
        assert len(set(ids)) == len(ids) == len(stops)
    found = text_of(admin_client, f"{BOARD}?models=MODEL-19&neurons=node-4&shown=unloaded")
    assert found.count('<th scope="row">') == 10 and "model-190" in found
    assert 'value="MODEL-19"' in found and 'value="unloaded" selected' in found
    assert found.count('class="hx-neuron"') == 6 and "1 to 6 of 10" in found
    for query, words in (
        ("shown=active", "No model is like that"),
        ("neurons=x", "No neuron has a name like that"),
        ("shown=nonsense&models_page=x", "1 to 12 of 200"),
    ):
        assert words in text_of(admin_client, f"{BOARD}?{query}")
    # The address follows, so that the page can be sent to a colleague.
    path = f"{BOARD}?models=19&models_page=&kept_models=a+b"
    assert admin_client.get(path)["HX-Replace-Url"] == "/admin/?models=19"
    same = {"hx-current-url": "http://testserver/admin/?models=19"}
    assert "HX-Replace-Url" not in admin_client.get(path, headers=same)
    whole = text_of(admin_client, "/admin/?models=19")
    assert 'value="19"' in whole and "model-190" in whole and "model-000" not in whole
    kept = BoardQuery(kept_models="model-150", kept_neurons="node-30")
    board = board_of(fleet_overview(), kept)
    first = [board[noun][0]["line"].name for noun in ("models", "neurons")]
    assert first == ["model-150", "node-30"]
