"""The pages of a model and of a neuron: everything of it in one place."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from fleet import services
from fleet.models import CatalogueModel, Download, LoadJob, Neuron
from inference.protocol.load_report import StageReport
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.dashboard.test_dashboard import BOARD, DO, FAILED
from tests.metering.callers import recorded, staff, text_of, used

pytestmark = pytest.mark.django_db(transaction=True)

PART = "/admin/dashboard/model-home?name=tiny"


@pytest.fixture
def loaded(beat, build) -> None:
    card = build.device(kind="cuda", name="a card")
    here = build.replica(devices=["cuda:0"], stats=build.stats(in_flight=3))
    beat(devices=[card], replicas=[here])


def push(client: Client, command: str, target: str, home: str) -> Any:
    headers = {"hx-request": "true", "hx-target": target}
    return client.post(DO, {"do": command, "home": home}, headers=headers)


def test_a_models_page_is_its_home(admin_client, model, loaded) -> None:
    for account, requests in (("research", 7), ("ops", 2_500)):
        used(account, requests=requests, completion_tokens=234, cost_micro_usd=requests)
    failed = recorded(neuron="attic", **FAILED)
    text = text_of(admin_client, reverse("admin:fleet_cataloguemodel_change", args=[model.pk]))
    for verb in ("sleep", "unload", "pin"):
        assert f'value="{verb} model tiny"' in text
    board = text_of(admin_client, BOARD)
    assert 'value="unload model tiny"' in board and 'value="sleep replica ' in board
    assert 'href="/playground/?model=tiny"' in text
    assert 'href="/admin/dashboard/neuron?name=beast">beast</a>' in text
    assert 'hx-get="/admin/dashboard/log/beast/tiny"' in text
    assert f'href="/requests/{failed}"' in text and "Its engine stopped." in text
    common, _, folded = text.partition("Advanced: ")
    assert "Please correct" not in text and 'name="quantization"' in common
    assert 'name="temperature"' in folded and 'name="temperature"' not in common
    users = text[text.index("Who uses it") :]
    assert users.index(">ops</a>") < users.index(">research</a>")
    assert "2,500" in users and "234" in users and "$0.0025" in users
    assert "A million tokens cost: <strong>none</strong>" in users
    assert 'href="/requests/?model=tiny&amp;account=ops"' in users
    looker = staff("olga", "view_cataloguemodel")
    text = text_of(looker, reverse("admin:fleet_cataloguemodel_change", args=[model.pk]))
    assert 'name="do"' not in text and "Who uses it" not in text and "beast" in text
    assert push(looker, "pin model tiny", "model-home", "tiny").status_code == 403


def test_a_model_names_what_it_waits_for(admin_client, model, beat, build) -> None:
    card = build.device(kind="cuda", name="a card", total_memory_bytes=1024**3)
    beat(devices=[card])
    assert "No host" not in text_of(admin_client, PART)
    services.neuron_drain(actor=COMMAND, neuron_name="beast")
    Neuron.objects.update(status="draining")
    assert "No host takes it now: beast is draining." in text_of(admin_client, PART)
    model.min_device_vram_mb = 48_000
    services.catalogue_model_update(
        actor=COMMAND, model=model, changed_fields=["min_device_vram_mb"]
    )
    assert "No host can run it: it needs a card of 46.9 GiB" in text_of(admin_client, PART)


def test_its_buttons_answer_with_its_state(admin_client, model, loaded, beat, sent) -> None:
    assert "ready" in text_of(admin_client, PART)
    response = push(admin_client, "unload model tiny", "model-home", "tiny")
    assert 'id="model-home"' in response.text and "Unloading tiny from beast" in response.text
    assert LoadJob.objects.get().kind == "unload"
    assert admin_client.get("/admin/dashboard/model-home?name=x").status_code == 404
    LoadJob.objects.all().delete()
    beat()
    text = text_of(admin_client, PART)
    assert 'value="load model tiny"' in text and 'value="unload model tiny"' not in text
    push(admin_client, "load model tiny", "model-home", "tiny")
    assert LoadJob.objects.get().kind == "load"
    model.enabled = False
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["enabled"])
    text = text_of(admin_client, PART)
    assert "Not offered" in text and "It is loaded nowhere" in text
    assert 'name="do"' not in text


def test_a_model_on_several_hosts_is_offered_nothing_that_is_refused(
    admin_client, model, beat, build
) -> None:
    stages = [
        StageReport(
            device="cuda:0",
            layers=(first, first + 2),
            execution="",
            estimated_bytes=1,
            kv_bytes=1,
            neuron=neuron,
        )
        for first, neuron in ((0, ""), (2, "attic"))
    ]
    divided = build.replica(spec_digest="0123456789abcdef", report=build.report(stages=stages))
    beat(replicas=[divided])
    for path in (PART, "/admin/dashboard/outdated", "/admin/"):
        text = text_of(admin_client, path)
        assert 'value="sleep ' not in text and 'value="reload ' not in text, path
    text = text_of(admin_client, PART)
    assert "outdated" in text and 'value="unload model tiny"' in text


def test_a_model_without_chats_is_not_tried_in_the_playground(admin_client) -> None:
    services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")
    for name, task in (("far", "text"), ("voice", "speech")):
        services.catalogue_model_create(
            actor=COMMAND, name=name, source=f"upstream:box/{name}", task=task
        )
        text = text_of(admin_client, f"/admin/dashboard/model-home?name={name}")
        assert "An upstream serves it" in text and 'value="load ' not in text
        assert (f'href="/playground/?model={name}"' in text) == (task == "text")


def test_a_model_is_pinned_and_unpinned(admin_client, model, loaded) -> None:
    """The whole page comes again, as its form shows the setting as well."""
    response = push(admin_client, "pin model tiny", "model-home", "tiny")
    assert response["HX-Refresh"] == "true"
    assert CatalogueModel.objects.get().pinned
    entry = AuditEntry.objects.filter(action="model.update").latest("id")
    assert (entry.object_id, "pinned" in entry.detail) == ("tiny", True)
    assert 'value="unpin model tiny"' in text_of(admin_client, PART)
    assert "kept loaded" in text_of(admin_client, BOARD)
    for path in (PART, BOARD):
        text = text_of(admin_client, path)
        assert 'value="unload ' not in text and 'value="sleep ' not in text
    push(admin_client, "unpin model tiny", "model-home", "tiny")
    assert not CatalogueModel.objects.get().pinned


def test_a_neurons_page_is_its_home(admin_client, model, loaded) -> None:
    neuron = Neuron.objects.get()
    Download.objects.create(
        neuron=neuron, source="hf:org/large", status="running", bytes_done=1, bytes_total=4
    )
    failed, elsewhere = (recorded(neuron=name, **FAILED) for name in ("beast", "attic"))
    text = text_of(admin_client, reverse("admin:fleet_neuron_change", args=[neuron.pk]))
    assert 'id="neuron-home"' in text and "cuda:0" in text and "3 running" in text
    assert 'href="/admin/dashboard/model?name=tiny">tiny</a>' in text
    log = text[text.index("Engine's log of tiny") :]
    assert 'hx-get="/admin/dashboard/log/beast/tiny"' in log
    assert f'href="/requests/{failed}"' in text and "Its engine stopped." in text
    assert 'href="/requests/?neuron=beast">All of its requests</a>' in text
    assert elsewhere not in text
    part = text_of(admin_client, "/admin/dashboard/neuron-home?name=beast")
    assert "hf:org/large" in part and 'aria-valuenow="25"' in part
    response = push(admin_client, "drain neuron beast", "neuron-home", "beast")
    assert "is being drained" in response.text and 'id="neuron-home"' in response.text
    assert admin_client.get("/admin/dashboard/neuron-home?name=x").status_code == 404
